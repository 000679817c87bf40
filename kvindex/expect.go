package kvindex

import (
	"math/bits"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// ExpectFor is how long a prompt that was sent to a worker is expected
	// there. Its events should tell by then.
	ExpectFor = 2 * time.Second

	// maxExpectations bounds what is expected; the oldest is forgotten.
	maxExpectations = 1 << 16

	expectationBytes = 96
)

// expectation is the beginning of a prompt that a worker will hold soon.
type expectation struct {
	key   uint64 // of its last block
	cache uint64 // of the worker
}

// expectations have the beginnings of prompts that were sent to workers a
// moment ago, at some of their blocks: the longer, the fewer, so that a
// beginning is known to a sixteenth.
type expectations struct {
	mu    sync.RWMutex
	until map[expectation]int64 // when it expires, as Unix time in ns
	order []expiry              // oldest first, from
	from  int
	count atomic.Int64 // the length of until
}

type expiry struct {
	expectation
	at int64
}

// places are the numbers of blocks at which a prompt is noted.
var places = func() (places []int) {
	for n := 1; n < 1<<24; n += max(1, 1<<bits.Len(uint(n))/32) {
		places = append(places, n)
	}
	return places
}()

// placesIn returns the places in a prompt of so many blocks.
func placesIn(blocks int) []int {
	return places[:sort.SearchInts(places, blocks+1)]
}

// Expect says that the prompt of the last Lookup is on its way to a worker.
// Until the worker's events tell, or [ExpectFor] has passed, lookups report
// that they expect it there.
func (x *Index) Expect(w Worker, m *Matches, now time.Time) {
	if m.of(w) == nil {
		return
	}
	c := m.chain(w)
	if c == nil {
		return
	}
	x.expected.add(c.keys, m.view.caches[w.slot], now)
}

// chain returns the prompt in blocks of the worker's size, or nil.
func (m *Matches) chain(w Worker) *chain {
	for i := range m.view.sizes {
		for j := range m.view.sizes[i].workers {
			if m.view.sizes[i].workers[j].slot == w.slot {
				return &m.chains[i]
			}
		}
	}
	return nil
}

func (e *expectations) add(keys []uint64, cache uint64, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := now.Add(ExpectFor).UnixNano()
	e.expire(now.UnixNano())
	for _, n := range placesIn(len(keys)) {
		k := expectation{keys[n-1], cache}
		e.until[k] = max(at, e.until[k])
		e.order = append(e.order, expiry{k, at})
		if len(e.order)-e.from > maxExpectations {
			e.forget()
		}
	}
	e.count.Store(int64(len(e.until)))
}

// expire forgets what has expired.
func (e *expectations) expire(now int64) {
	for e.from < len(e.order) && e.order[e.from].at <= now {
		e.forget()
	}
	if e.from > len(e.order)/2 {
		e.order = append(e.order[:0], e.order[e.from:]...)
		e.from = 0
	}
}

// forget forgets the oldest, unless it was expected anew since.
func (e *expectations) forget() {
	oldest := e.order[e.from]
	e.from++
	if e.until[oldest.expectation] <= oldest.at {
		delete(e.until, oldest.expectation)
	}
}

// match finds how much of the prompt each worker is expected to hold.
func (e *expectations) match(m *Matches, now time.Time) {
	if e.count.Load() == 0 {
		return
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	at := now.UnixNano()
	for i := range m.view.sizes {
		c := &m.chains[i]
		for j := range m.view.sizes[i].workers {
			slot := m.view.sizes[i].workers[j].slot
			blocks := min(e.longest(c.keys, m.view.caches[slot], at), c.usable)
			m.found[slot].expected = int32(blocks * c.size) //nolint:gosec // a prompt is shorter
		}
	}
}

// longest returns how many blocks from the first a worker is expected to hold.
// What is expected to one place is expected to all before it.
func (e *expectations) longest(keys []uint64, cache uint64, now int64) int {
	in := placesIn(len(keys))
	n := sort.Search(len(in), func(i int) bool { return e.until[expectation{keys[in[i]-1], cache}] <= now })
	if n == 0 {
		return 0
	}
	return in[n-1]
}

func (e *expectations) size() int { return int(e.count.Load()) }

func (e *expectations) bytes() int64 { return e.count.Load() * expectationBytes }
