package kvevents

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/kvevents/zmtp"
)

// tries is how often a property is tried: the long form is for LONG=1.
func tries(short, long int) int {
	if os.Getenv("LONG") == "1" {
		return long
	}
	return short
}

// index counts the copies of each block, as a router would.
type index struct {
	held map[Hash]int
	last float64 // time of the last batch applied, which names it
}

func (x *index) Apply(b *Batch) {
	x.last = b.Time
	for _, e := range b.Events {
		if e.Kind == Cleared {
			clear(x.held)
		}
		for _, h := range e.Hashes {
			if e.Kind == Stored {
				x.held[h]++
			} else if x.held[h] > 0 {
				x.held[h]--
			}
		}
	}
	maps.DeleteFunc(x.held, func(_ Hash, n int) bool { return n == 0 })
}

func (x *index) Clear(Reason) { clear(x.held) }
func (x *index) State(Status) {}

// publisher is an engine. What it holds after each batch is written down under the
// batch's time.
type publisher struct {
	r       *rand.Rand
	life    int
	batches [][]byte
	held    map[Hash]int
	history map[float64]map[Hash]int
}

func (p *publisher) restart() {
	p.life++
	p.batches, p.held = nil, map[Hash]int{}
}

func (p *publisher) publish(t *testing.T) (seq uint64, payload []byte) {
	var events array
	for range 1 + p.r.IntN(3) {
		h := Hash(p.r.IntN(20))
		switch {
		case p.r.IntN(40) == 0:
			events = append(events, array{"AllBlocksCleared"})
			clear(p.held)
		case p.held[h] > 0 && p.r.IntN(2) == 0:
			events = append(events, array{"BlockRemoved", array{h}})
			if p.held[h]--; p.held[h] == 0 {
				delete(p.held, h)
			}
		default:
			events = append(events, array{"BlockStored", array{h}, nil, array{1}, 1})
			p.held[h]++
		}
	}
	seq = uint64(len(p.batches))
	at := float64(p.life*1_000_000 + len(p.batches))
	p.history[at] = maps.Clone(p.held)
	payload = pack(t, array{at, events, 0})
	p.batches = append(p.batches, payload)
	return seq, payload
}

type wire struct {
	seq     uint64
	payload []byte
}

// world is an engine, a network that fails, and a stream.
type world struct {
	t       *testing.T
	r       *rand.Rand
	now     time.Time
	engine  publisher
	index   index
	count   counters
	stream  *stream
	waiting []wire
	keep    int // batches the engine can replay
	bad     int // one of so many things goes wrong; 0 is none
	log     []string
}

func newWorld(t *testing.T, seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 1))
	w := &world{t: t, r: r, now: time.Unix(1e9, 0), bad: 2 + r.IntN(20), keep: 1 << 30}
	w.engine = publisher{r: r, life: 1, held: map[Hash]int{}, history: map[float64]map[Hash]int{}}
	w.index.held = map[Hash]int{}
	if r.IntN(3) == 0 {
		w.keep = r.IntN(20)
	}
	w.note("seed %d, keeps %d, fails 1 in %d", seed, w.keep, w.bad)
	w.stream = newStream(&w.index, &w.count, r.IntN(4) > 0, w.now)
	return w
}

func (w *world) fails() bool { return w.bad > 0 && w.r.IntN(w.bad) == 0 }

// failsBadly is for what is rarer.
func (w *world) failsBadly() bool { return w.fails() && w.r.IntN(w.bad) == 0 }

func (w *world) note(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) step() {
	switch w.r.IntN(30) {
	case 0:
		w.note("restart")
		w.down()
		w.engine.restart()
	case 1:
		w.down()
	case 2, 3:
		w.up()
	case 4:
		w.pass(time.Duration(w.r.IntN(40)) * time.Second)
	case 5:
		if w.fails() && len(w.waiting) > 0 {
			w.note("overflow")
			w.waiting = nil
			for !w.stream.overflowed(w.now) {
				w.replay()
			}
		}
	case 6: // more than is remembered, which waits for a replay
		w.publish()
		bad := w.bad
		w.bad = 100
		for range w.r.IntN(3 * markCount) {
			w.publish()
		}
		w.bad = bad
	default:
		w.publish()
	}
	w.drain()
	w.check()
}

func (w *world) up() {
	if !w.stream.up {
		w.note("up")
		w.stream.connected(w.now)
	}
}

func (w *world) down() {
	w.note("down")
	w.waiting = nil
	w.stream.interrupt()
	w.stream.disconnected(w.now, errors.New("closed"))
}

func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	w.stream.tick(w.now)
}

// publish publishes a batch, which may get lost or come twice.
func (w *world) publish() {
	seq, payload := w.engine.publish(w.t)
	w.note("publish %d of life %d", seq, w.engine.life)
	if !w.stream.up || w.fails() {
		return
	}
	// Without replay, a batch of another life that happens to be the next number is
	// taken for the next: nothing tells.
	if !w.stream.replays && w.index.last != 0 && int(w.index.last)/1_000_000 != w.engine.life && seq == w.stream.last+1 {
		return
	}
	if w.failsBadly() {
		payload = []byte{0xc1}
	}
	w.waiting = append(w.waiting, wire{seq, payload})
	if w.fails() {
		w.waiting = append(w.waiting, w.waiting[w.r.IntN(len(w.waiting))])
	}
}

func (w *world) drain() {
	for rounds := 0; w.stream.up; rounds++ {
		require.Less(w.t, rounds, 5000, "it must come to an end")
		for len(w.waiting) > 0 && w.stream.live(w.now, w.waiting[0].seq, w.waiting[0].payload) {
			w.waiting = w.waiting[1:]
			w.check()
		}
		if !w.stream.repair.on {
			return
		}
		if w.now.Before(w.stream.repair.notBefore) {
			w.now = w.stream.repair.notBefore
		}
		w.replay()
	}
}

// replay answers a request, well or not.
func (w *world) replay() {
	from := w.stream.request()
	w.note("replay from %d", from)
	oldest := uint64(max(0, len(w.engine.batches)-w.keep))
	for seq := max(from, oldest); seq < uint64(len(w.engine.batches)); seq++ {
		if w.failsBadly() {
			w.now = w.now.Add(replayPatience)
			w.stream.ended(w.now, zmtp.ErrSilent)
			return
		}
		if w.fails() && seq > max(from, oldest) {
			continue // its socket drops what is too much
		}
		if err := w.stream.reply(seq, w.engine.batches[seq]); err != nil {
			w.stream.ended(w.now, err)
			return
		}
		w.check()
	}
	w.stream.ended(w.now, nil)
}

// check says that the index holds nothing that the engine did not hold after the batch
// that was applied last, and all of it if the stream says so.
func (w *world) check() {
	w.t.Helper()
	held := w.engine.history[w.index.last]
	for h, n := range w.index.held {
		require.LessOrEqual(w.t, n, held[h], "block %d is held after %.0f, %v", h, w.index.last, w.log)
	}
	if w.stream.status.State == Synced && w.stream.known {
		require.Equal(w.t, held, w.index.held, "after %.0f, %v", w.index.last, w.log)
	}
}

func TestIndexNeverHoldsWhatTheEngineDoesNot(t *testing.T) {
	for seed := range uint64(tries(100, 10_000)) {
		w := newWorld(t, seed)
		for range 100 {
			w.step()
		}
	}
}

func TestIndexIsWholeOnceAllWorks(t *testing.T) {
	for seed := range uint64(tries(60, 5_000)) {
		w := newWorld(t, seed)
		w.stream.replays, w.keep = true, 1<<30
		for range 60 {
			w.step()
		}
		w.bad = 0
		w.up()
		w.publish()
		w.drain()
		require.Equal(t, uint64(len(w.engine.batches)-1), w.stream.last, "%v", w.log)
		w.pass(retryMax)
		w.drain()
		w.publish()
		w.drain()
		if w.stream.gap == Undecodable { // it was not sent again
			continue
		}
		require.Equal(t, Synced, w.stream.status.State, "seed %d: %v %v", seed, w.stream.status, w.log)
		require.Equal(t, w.engine.held, w.index.held)
	}
}
