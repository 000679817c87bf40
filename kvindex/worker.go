package kvindex

// MaxWorkers is how many workers an index can tell apart at a time.
const MaxWorkers = 1024

// maxGroups is how many cache groups of a worker are told apart.
const maxGroups = 64

// Worker is an index's handle of a worker. The zero Worker is none, and a
// worker that was removed is none either: whatever is done with it has no
// effect and finds nothing.
type Worker struct {
	slot       int
	generation uint32
}

// Tier is where a block is kept, from fast to slow.
type Tier uint8

const (
	Device Tier = iota // the accelerator's memory: a hit costs nothing
	Host               // the machine's memory
	Disk
	Remote // a store that several engines share

	tiers = iota
)

// unrooted is the level of a block that is not held, or not with all before
// it. Other levels are the slowest tier on the way to the block.
const unrooted = Tier(tiers)

// worker is what the index keeps for a slot.
type worker struct {
	slot       int
	generation uint32
	live       bool

	cache  uint64 // a number for the time until the next clear
	size   int    // tokens in a block; 0 is not known yet
	blind  string // why nothing is credited, if so
	groups []*group
	lanes  []lane     // all it has
	masks  []laneMask // the same as bits

	// full are the lanes that say, for each tier, that all groups of full
	// attention hold a block; slide says so of all groups with a window.
	full  [tiers]lane
	slide lane
	plain bool // of full there is the device's lane only

	dialect *dialect
	pending pending
	counts  Counts
}

type laneMask struct {
	word int
	bits uint64
}

// group is one of the caches that a worker keeps side by side, for layers
// that need different parts of a prompt.
type group struct {
	index   int
	sliding bool
	window  int // blocks that a match needs, if sliding
	lanes   [tiers]lane
}

var noLanes = [tiers]lane{noLane, noLane, noLane, noLane}

func (w *worker) reset() {
	w.full, w.slide, w.plain = noLanes, noLane, false
	for _, g := range w.groups {
		g.lanes = noLanes
	}
	w.dialect = nil
	w.pending = pending{}
}

// mask collects the lanes.
func (w *worker) mask() {
	w.masks = w.masks[:0]
next:
	for _, l := range w.lanes {
		for i := range w.masks {
			if w.masks[i].word == l.word() {
				w.masks[i].bits |= l.bit()
				continue next
			}
		}
		w.masks = append(w.masks, laneMask{l.word(), l.bit()})
	}
}

// Add makes room for a worker. It returns the zero Worker if there are
// MaxWorkers already.
func (x *Index) Add() Worker {
	x.mu.Lock()
	defer x.mu.Unlock()
	var slot int
	if n := len(x.free); n > 0 {
		slot = x.free[n-1]
		x.free = x.free[:n-1]
	} else if slot = len(x.workers); slot < MaxWorkers {
		x.workers = append(x.workers, &worker{slot: slot})
	} else {
		return Worker{}
	}
	generation := x.workers[slot].generation + 1
	w := &worker{slot: slot, generation: generation, live: true}
	w.reset()
	x.workers[slot] = w
	x.renew(w)
	x.publish()
	return Worker{slot: slot, generation: generation}
}

// Remove forgets a worker and, at once, what it holds. The memory comes back
// by and by.
func (x *Index) Remove(w Worker) {
	x.mu.Lock()
	defer x.mu.Unlock()
	wk := x.worker(w)
	if wk == nil {
		return
	}
	x.clear(wk)
	wk.live = false
	wk.generation++
	x.free = append(x.free, wk.slot)
	x.publish()
}

// Clear forgets at once what a worker holds, as its engine says that it did.
// What the cache is like stays known: if the engine was restarted, and perhaps
// with other settings, Remove the worker and Add one.
func (x *Index) Clear(w Worker) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if wk := x.worker(w); wk != nil {
		x.clear(wk)
		x.publish()
	}
}

func (x *Index) clear(w *worker) {
	for len(w.lanes) > 0 {
		x.retire(w.lanes[0])
	}
	x.dialects -= w.dialect.bytes()
	x.waiting -= len(w.pending.groups)
	w.reset()
	x.renew(w)
}

// restart clears a worker and forgets what it learned of its cache.
func (x *Index) restart(w *worker) {
	x.clear(w)
	w.groups, w.size = nil, 0
	w.counts.Restarts++
	x.counts.Restarts++
}

func (x *Index) renew(w *worker) {
	x.caches++
	w.cache = x.caches
}

// worker returns what is kept for w, or nil if it is not, or no longer, known.
func (x *Index) worker(w Worker) *worker {
	if w.slot >= len(x.workers) || w.generation == 0 {
		return nil
	}
	if wk := x.workers[w.slot]; wk.live && wk.generation == w.generation {
		return wk
	}
	return nil
}

// holds reports whether any lane of the worker holds a block.
func (x *Index) holds(w *worker, id uint32) bool {
	for _, m := range w.masks {
		if words := x.slab.words(id, m.word); words != nil && words.held&m.bits != 0 {
			return true
		}
	}
	return false
}
