package radix

import "context"

const (
	// tendWork bounds one step of Tend. The unit is a node let go or a worker
	// taken from a node, about 0.1 us.
	tendWork = 512

	// copyWork is how many fingerprints are copied or let go in a unit of work.
	copyWork = 64
)

// Run tends the tree whenever there is something to do, until the context
// ends.
func (t *Tree) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		}
		for ctx.Err() == nil {
			if !t.Tend() {
				break
			}
		}
	}
}

// Tend does one short step of what is to be done behind the requests' backs:
// it takes what removed workers held, brings workers back to their capacity,
// keeps a thirty-second of the memory limit free, and gives back what is free
// beyond that. It reports whether there is more to do.
func (t *Tree) Tend() (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.work = 0
	for t.work < tendWork {
		if !t.tend() {
			return false
		}
	}
	return true
}

// tend does the next thing, and reports whether there was one.
func (t *Tree) tend() bool {
	if len(t.queue) > 0 {
		t.settle(&t.workers[t.queue[0]])
		return true
	}
	switch {
	case t.bytes() > t.limit:
		return t.yield(0)
	case t.used() > t.limit-t.limit/32 && t.all.oldest != 0:
		t.evict()
		return true
	case t.edges.gatherable(t.edges.live() / 8): // more than an eighth is free
		t.gather()
		return true
	}
	return false
}

// settle sees to the first worker in the queue: one that holds more than its
// capacity, or was removed and still holds something.
func (t *Tree) settle(s *worker) {
	removed := !t.alive(s.list.slot)
	switch {
	case removed && s.list.oldest != 0:
		t.drop(s, s.list.oldest)
		return
	case !removed && s.over():
		t.trim(s)
		return
	}
	s.queued = false
	t.queue = append(t.queue[:0], t.queue[1:]...)
	if removed {
		t.free = append(t.free, s.list.slot)
	}
	t.work++
}

// crowded reports whether an insert would soon have to evict by itself.
func (t *Tree) crowded() bool {
	return t.used() > t.limit-t.limit/64
}

// signal wakes Run.
func (t *Tree) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}
