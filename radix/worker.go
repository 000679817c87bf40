package radix

// MaxWorkers is how many workers a tree can tell apart at a time.
const MaxWorkers = 4096

// Worker is a tree's handle of a worker. The zero Worker is none, and a
// worker that was removed is none either: whatever is done with it has no
// effect and finds nothing.
type Worker struct {
	slot       int
	generation uint32
}

// worker is what the tree keeps for a slot. A slot is free, taken, or
// drained: its worker was removed, and it waits for the nodes it holds to be
// let go before another can have it.
type worker struct {
	list     list  // what it holds
	held     int64 // bytes of prompt
	capacity int64 // bytes of prompt; 0 is unknown
	queued   bool  // waits for Tend
}

// workerBytes is the memory for a slot, its generation and its queue entry
// included.
const workerBytes = 64

// Add makes room for a worker. It returns the zero Worker if there are
// MaxWorkers already, those not counted out by Tend yet among them.
func (t *Tree) Add() Worker {
	t.mu.Lock()
	defer t.mu.Unlock()
	var slot int
	if n := len(t.free); n > 0 {
		slot = t.free[n-1]
		t.free = t.free[:n-1]
	} else if slot = len(t.workers); slot < MaxWorkers {
		t.workers = append(t.workers, worker{})
		t.generations = append(t.generations, 0)
	} else {
		return Worker{}
	}
	t.workers[slot] = worker{list: list{slot: slot}}
	t.generations[slot]++
	if slot/64 == len(t.live) {
		t.live = append(t.live, 0)
	}
	t.live[slot/64] |= 1 << (slot % 64)
	return Worker{slot: slot, generation: t.generations[slot]}
}

// Remove forgets a worker and, at once, what it holds. The memory comes back
// by and by, through Tend.
func (t *Tree) Remove(w Worker) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.worker(w)
	if s == nil {
		return
	}
	t.live[w.slot/64] &^= 1 << (w.slot % 64)
	t.generations[w.slot]++
	if s.list.oldest == 0 && !s.queued {
		t.free = append(t.free, w.slot)
		return
	}
	t.enqueue(s)
}

// SetCapacity says how many bytes of prompt the worker has room for: beyond
// that it is believed to have dropped what it was sent least recently. 0 is
// unknown: it is believed to drop nothing.
func (t *Tree) SetCapacity(w Worker, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.worker(w)
	if s == nil {
		return
	}
	s.capacity = max(bytes, 0)
	if s.over() {
		t.enqueue(s)
	}
}

// Held returns how many bytes of prompt the worker is believed to hold.
func (t *Tree) Held(w Worker) int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if s := t.worker(w); s != nil {
		return s.held
	}
	return 0
}

func (s *worker) over() bool {
	return s.capacity > 0 && s.held > s.capacity
}

// worker returns what is kept for w, or nil if it is not, or no longer, known.
func (t *Tree) worker(w Worker) *worker {
	if w.slot >= len(t.workers) || w.generation != t.generations[w.slot] {
		return nil
	}
	return &t.workers[w.slot]
}

func (t *Tree) alive(slot int) bool {
	return t.live[slot/64]>>(slot%64)&1 != 0
}

// enqueue has Tend see to a worker.
func (t *Tree) enqueue(s *worker) {
	if !s.queued {
		s.queued = true
		t.queue = append(t.queue, s.list.slot)
	}
	t.signal()
}
