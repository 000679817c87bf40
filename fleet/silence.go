package fleet

import (
	"cmp"
	"math"
	"sync/atomic"
	"time"
)

const (
	// patience is what a worker may take beyond what its work should: the time of networks
	// and schedulers, and of a machine that was busy with something else.
	patience = 2 * time.Second

	// stretch is how many times longer than predicted prefills may take, and than usual
	// answers in one piece. Predictions are off by half where prompts are computed together
	// or in another order, and by more where an engine holds less of them than is believed.
	stretch = 4

	// unlearnedRate is the prefill rate, in tokens a second, by which a worker is given
	// time of which none was learned: a slow one's.
	unlearnedRate = 1000

	// longestAllowed bounds the time that one request may take.
	longestAllowed = 5 * time.Minute

	// markLife bounds how long it is remembered that a worker was silent, once nobody waits
	// for it any more: then one request is the test.
	markLife = time.Minute

	// usualKeep is what each answer in one piece leaves of the mean of the ones before.
	usualKeep = 0.95
)

// Answer is the form in which a request will be answered, which says when something has
// to be heard of it.
type Answer uint8

const (
	// Unforeseen is an answer that may take as long as it likes.
	Unforeseen Answer = iota
	// Streamed is an answer whose first token comes as soon as the prompt is computed.
	Streamed
	// Whole is an answer that comes in one piece, after its last token.
	Whole
)

// silence watches whether a worker says something in time to those who wait for one
// form of answer.
//
// An engine that hangs accepts requests and never answers. In the ledger it is one that
// has a few requests, and none once their clients have given up, so it would be given one
// after the other. What gives it away is that nothing is heard of it for much longer than
// its work should take. As nobody waits for it at some time, it has to be remembered
// then: for as long as it was silent, and until something is heard no longer than with
// the next request.
type silence struct {
	due  atomic.Int64 // UnixNano by which something should be heard; 0 if nothing is owed
	left atomic.Int64 // UnixNano at which the last one gave up waiting, after that; 0 if one waits

	waiting int           // requests; under the queue's lock, as is all that follows and all writing
	allowed time.Duration // what their prefills may take together
	usual   time.Duration // that an answer in one piece takes, the mean of late
	known   int           // answers that this was learned from
}

// patience is what is granted beyond the time for prefills.
func (s *silence) patience() int64 { return int64(patience + stretch*s.usual) }

// learn takes in how long an answer took.
func (s *silence) learn(took time.Duration) {
	s.known++
	keep := min(usualKeep, 1-1/float64(s.known))
	s.usual = time.Duration(keep*float64(s.usual) + (1-keep)*float64(took))
}

// join adds a request whose prefill may take so long.
func (s *silence) join(allowed time.Duration, now int64) {
	s.waiting++
	s.allowed += allowed
	due, left := s.due.Load(), s.left.Load()
	switch {
	case due == 0:
		s.due.Store(now + s.patience() + int64(allowed))
	case left != 0: // it was silent until then: so it is still, until it is heard
		s.due.Store(now - min(left-due, int64(markLife)))
		s.left.Store(0)
	case now < due:
		s.due.Store(due + int64(allowed))
	}
}

// giveUp takes out a request that has waited for nothing.
func (s *silence) giveUp(allowed time.Duration, now int64) {
	s.waiting--
	s.allowed -= allowed
	due := s.due.Load()
	switch {
	case now > due:
		if s.waiting == 0 {
			s.left.Store(now)
		}
	case s.waiting == 0:
		s.due.Store(0)
	default: // the engine turns to the others now
		s.due.Store(min(due, max(due-int64(allowed), now+s.patience())))
	}
}

// heard says that something was heard of the worker.
func (s *silence) heard(now int64) {
	s.left.Store(0)
	if s.waiting == 0 {
		s.due.Store(0)
		return
	}
	s.due.Store(now + s.patience() + int64(s.allowed))
}

// late returns for how long something should have been heard. It is not positive if
// there is nothing to complain of.
func (s *silence) late(now int64) time.Duration {
	due, left := s.due.Load(), s.left.Load()
	switch {
	case due == 0:
		return 0
	case left == 0:
		return time.Duration(now - due)
	}
	return time.Duration(min(left-due, int64(markLife)) - (now - left))
}

// Expect says in what form the request will be answered. It is to be called once, right
// after the request was placed; without it nothing is expected. Neither is an answer in
// one piece until it is known how long those of the worker take.
func (r *Reservation) Expect(answer Answer) {
	q := &r.worker.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.stage.Load() != waiting {
		return
	}
	r.answer = answer
	switch {
	case answer == Streamed:
		r.silence = &q.streams
	case answer == Whole && q.wholes.known >= minSamples:
		r.silence = &q.wholes
	default:
		return
	}
	r.allowed = r.worker.allowed(r.tokens)
	r.silence.join(r.allowed, r.charged.UnixNano())
}

// Answered says that the worker has begun to answer with what is no stream.
func (r *Reservation) Answered(now time.Time) {
	q := &r.worker.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	tells := q.tells(r, now)
	q.excuse(r, now)
	q.heard(now)
	if tells && r.answer == Whole && r.whole == 0 {
		r.whole = max(now.Sub(r.charged), 1)
	}
}

// Heard says that the worker has shown, in another way than by an answer, that it is not
// stuck.
func (w *Worker) Heard(now time.Time) {
	q := &w.queue
	if q.streams.due.Load() == 0 && q.wholes.due.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.heard(now)
}

// Overdue returns for how long something should have been heard of the worker, 0 if
// there is nothing to complain of: much longer than its own record says, no first token
// was seen of the streams that wait for it, or nothing at all while an answer in one
// piece does. Once all have given up, it counts down, so that the worker is tried again.
func (w *Worker) Overdue(now time.Time) time.Duration { return w.queue.overdue(now) }

func (q *queue) overdue(now time.Time) time.Duration {
	at := now.UnixNano()
	return max(q.streams.late(at), q.wholes.late(at), 0)
}

// allowed is what a prefill of so many tokens may take. A rate that is not confirmed of
// late counts too: a worker that is stuck confirms none.
func (w *Worker) allowed(tokens int) time.Duration {
	rate := cmp.Or(math.Float64frombits(w.prefill.rate.Load()), unlearnedRate)
	seconds := stretch * float64(tokens) / rate
	return time.Duration(min(seconds, longestAllowed.Seconds()) * float64(time.Second))
}

// learnWhole takes in how long an answer in one piece took.
func (q *queue) learnWhole(r *Reservation) {
	if r.answer != Whole {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.whole > 0 {
		q.wholes.learn(r.whole)
		r.whole = 0
	}
}

// tells reports whether the time that something took which comes now tells of the engine's
// speed. If it was overdue the engine has hung: neither does this tell of it, nor what
// waited meanwhile, which may come all at once. But if something that was placed later is
// overdue again, the engine is slow. q.mu is held.
func (q *queue) tells(r *Reservation, now time.Time) bool {
	late, since := q.overdue(now) > 0, r.charged.After(q.hung)
	switch {
	case late && !q.hangs:
		q.hangs, q.hung = true, now
		return false
	case !late && since:
		q.hangs = false
	}
	return since
}

// heard says that something was heard of the worker. q.mu is held.
func (q *queue) heard(now time.Time) {
	q.streams.heard(now.UnixNano())
	q.wholes.heard(now.UnixNano())
}

// excuse takes a request out of those who wait for the worker to say something. q.mu is
// held.
func (q *queue) excuse(r *Reservation, now time.Time) {
	if r.silence != nil {
		r.silence.giveUp(r.allowed, now.UnixNano())
		r.silence = nil
	}
}
