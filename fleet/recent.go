package fleet

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	// RecentHalfLife is the time after which a request counts half in Recent and
	// RecentRequests. With half a minute long conversations wait up to 4 % less and agents
	// 1 %, but work is less even; with two minutes agents wait 1 to 4 % longer
	// (docs/constants.md).
	RecentHalfLife = time.Minute

	// maxRecent bounds what one request adds to Recent, in tokens: a prompt that is
	// longer says no more about how much its worker is asked for. A quarter of it is the same
	// within chance, four times as much up to 3 % slower with agents (docs/constants.md).
	maxRecent = 32 << 10
)

// recent is an exponentially decaying sum, true to the second. The sum and the
// time it was true at share one word, so that it can be read and added to without
// a lock.
type recent struct{ word atomic.Uint64 }

func (r *recent) value(now time.Time) float64 {
	return decayed(r.word.Load(), seconds(now))
}

func (r *recent) add(n float64, now time.Time) {
	at := seconds(now)
	for {
		old := r.word.Load()
		sum := float32(max(decayed(old, at)+n, 0))
		at = max(at, uint32(old)) //nolint:gosec // the lower half
		if r.word.CompareAndSwap(old, uint64(math.Float32bits(sum))<<32|uint64(at)) {
			return
		}
	}
}

// take takes back what is left of n that was added at then.
func (r *recent) take(n float64, then, now time.Time) {
	var one recent
	one.add(n, then)
	r.add(-one.value(now), now)
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
