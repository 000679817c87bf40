package fleet

import (
	"sync/atomic"
	"time"
)

// Reservation is one request's entry in one worker's ledger. A request that is
// retried elsewhere has one for each attempt. Its methods may be called
// concurrently and in any order; each part is released once.
type Reservation struct {
	worker  *Worker
	tokens  int
	charged time.Time
	stage   atomic.Int32
	void    atomic.Bool
	took    atomic.Int64 // prefill time in nanoseconds, 0 until the first token and if that says nothing

	before, behind *Reservation // in the worker's queue, under its lock; so is all that follows

	answer   Answer
	answered bool          // it has begun, and is no stream
	silence  *silence      // that the request is waiting in; nil if it does not
	expected time.Time     // since when it does
	allowed  time.Duration // that its prefill may take
	whole    time.Duration // that an answer in one piece took; 0 before, and once it was learned
}

const (
	waiting int32 = iota
	decoding
	ended
)

// Tokens returns the uncached prompt tokens charged.
func (r *Reservation) Tokens() int { return r.tokens }

// Charged returns when the request was placed.
func (r *Reservation) Charged() time.Time { return r.charged }

// FirstToken says that the first output token was seen: the prefill is done and
// no longer queued. Calls after the first, or after Release, do nothing.
func (r *Reservation) FirstToken(now time.Time) {
	w := r.worker
	w.decoding.Add(1) // before the stage changes, so that the sum never falls below zero
	if !r.stage.CompareAndSwap(waiting, decoding) {
		w.decoding.Add(-1)
		return
	}
	telling := w.prefilled(r, now)
	w.load.Add(-(entry(r.tokens) - 1))
	took := w.prefill.finished(r.charged, now)
	if telling {
		r.took.Store(int64(took))
	}
}

// Release ends the request. If its prefill was not seen to be done, the engine is
// taken to turn to the next one now. Calls after the first do nothing.
func (r *Reservation) Release(now time.Time) {
	w := r.worker
	var left Load
	switch r.stage.Swap(ended) {
	case waiting:
		w.queue.leave(r, now)
		left = Load(w.load.Add(-entry(r.tokens)))
	case decoding:
		w.decoding.Add(-1)
		left = Load(w.load.Add(-entry(0)))
	case ended:
		return
	}
	if left.InFlight() == 0 && w.users.Load() <= 0 {
		w.fleet.reap(w)
	}
}

// Void says that the request came to nothing: the engine refused it or could not
// be reached, so it was no work for the worker and its tokens leave Recent. It does
// not release it, and it stays one of RecentRequests. Calls after the first do
// nothing.
func (r *Reservation) Void(now time.Time) {
	if r.void.CompareAndSwap(false, true) {
		r.worker.recent.take(float64(min(r.tokens, maxRecent)), r.charged, now)
	}
}

// Learn tells the worker how many prompt tokens its engine really computed
// before the first token of this request. Of an answer in one piece, only how long it
// took is learned.
func (r *Reservation) Learn(uncached int) {
	r.worker.queue.learnWhole(r)
	if took := r.took.Load(); took > 0 {
		r.worker.prefill.learn(&r.worker.fleet.pace, uncached, time.Duration(took))
	}
}
