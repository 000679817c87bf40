package fleet

import (
	"sync"
	"sync/atomic"
	"time"
)

// queue is a worker's prefills that are not done, in order of arrival, which is the
// order in which engines take them. It is kept for its first: how far an engine has
// come with that one is most of what is known about the wait for a next one, and
// prompts differ a thousandfold in size.
type queue struct {
	tokens atomic.Int64 // of the first; 0 if there is none, or if its prompt was all there
	began  atomic.Int64 // UnixNano at which the engine turned to it

	streams, wholes silence      // of those who wait for an answer in these forms
	heard           atomic.Int64 // instant at which something was last heard that tells them; 0 if nothing was

	mu          sync.Mutex // guards what follows, and who writes the above
	first, last *Reservation

	hung  time.Time // the engine has, until then
	hangs bool      // and what was placed since was overdue as well, or is yet to come
}

// join puts a reservation at the end.
func (q *queue) join(r *Reservation, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r.before = q.last
	q.last = r
	if r.before != nil {
		r.before.behind = r
		return
	}
	q.turnTo(r, now)
}

// leave takes out a reservation whose request has ended without one.
func (q *queue) leave(r *Reservation, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(r, now)
}

// remove takes a reservation out, wherever it stands. q.mu is held.
func (q *queue) remove(r *Reservation, now time.Time) {
	q.excuse(r, now)
	if r.behind != nil {
		r.behind.before = r.before
	} else {
		q.last = r.before
	}
	if r.before != nil {
		r.before.behind = r.behind
	} else {
		q.turnTo(r.behind, now)
	}
	r.before, r.behind = nil, nil
}

// turnTo makes r the first; nil is none. q.mu is held.
func (q *queue) turnTo(r *Reservation, now time.Time) {
	q.first = r
	if r == nil {
		q.tokens.Store(0)
		return
	}
	q.began.Store(now.UnixNano())
	q.tokens.Store(int64(r.tokens))
}

// Prefilling returns the uncached tokens of the oldest prefill that is not done, 0 if
// there is none, and for how long the engine has been at it: since the one before it
// was done, or since it came.
func (w *Worker) Prefilling(now time.Time) (tokens int, since time.Duration) {
	tokens = int(w.queue.tokens.Load())
	return tokens, max(time.Duration(now.UnixNano()-w.queue.began.Load()), 0)
}
