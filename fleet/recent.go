package fleet

import (
	"math"
	"sync/atomic"
	"time"
)

// RecentHalfLife is the time after which a placed token counts half in Recent.
const RecentHalfLife = time.Minute

// recent is an exponentially decaying sum, true to the second. The sum and the
// time it was true at share one word, so that it can be read and added to without
// a lock.
type recent struct{ word atomic.Uint64 }

func (r *recent) value(now time.Time) float64 {
	return decayed(r.word.Load(), seconds(now))
}

func (r *recent) add(tokens float64, now time.Time) {
	at := seconds(now)
	for {
		old := r.word.Load()
		sum := float32(decayed(old, at) + tokens)
		at = max(at, uint32(old)) //nolint:gosec // the lower half
		if r.word.CompareAndSwap(old, uint64(math.Float32bits(sum))<<32|uint64(at)) {
			return
		}
	}
}

// decayed returns what is left at a time of a sum.
func decayed(word uint64, at uint32) float64 {
	sum := float64(math.Float32frombits(uint32(word >> 32)))
	then := uint32(word) //nolint:gosec // the lower half
	if at <= then || sum == 0 {
		return sum
	}
	halves, rest := (at-then)/halfLife, (at-then)%halfLife
	if halves >= 64 {
		return 0
	}
	return sum * decay[rest] / float64(uint64(1)<<halves)
}

const halfLife = uint32(RecentHalfLife / time.Second)

// decay is what is left of 1 after so many seconds: a table, as every decision
// needs one for every worker.
var decay = func() (table [halfLife]float64) {
	for i := range table {
		table[i] = math.Exp2(-float64(i) / float64(halfLife))
	}
	return table
}()

// seconds is the time in seconds since 1970, which 32 bits hold until 2106.
func seconds(now time.Time) uint32 { return uint32(now.Unix()) } //nolint:gosec // see above
