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

	// quickRate is the one by which a client that gives up has waited for nothing: a usual
	// one's.
	quickRate = 8000

	// longestAllowed bounds the time that one request may take.
	longestAllowed = 5 * time.Minute

	// glance is how long a client may wait for nothing, and leave again, without that being
	// held against a worker which has next to nothing to compute.
	glance = 500 * time.Millisecond

	// markLife bounds for how long requests are kept away because a worker was silent, once
	// nobody waits for it any more: then one request is the test.
	markLife = time.Minute

	// memory is how long it is remembered that a worker was silent, once nobody waits for
	// it any more: the test counts on from there.
	memory = 10 * time.Minute

	// leastUsual is what an answer in one piece is always allowed to take usually: among
	// short ones there may be one of some hundred tokens.
	leastUsual = 5 * time.Second

	// usualKeep is what each answer in one piece leaves of how long ones before it took.
	usualKeep = 0.99
)

// began is what times are counted from. What it reads of the monotonic clock keeps
// them true when the machine's clock is set.
var began = time.Now()

// instant returns a time in nanoseconds since began.
func instant(now time.Time) int64 { return int64(now.Sub(began)) }

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
// its work should take. What was waited for nothing counts on when a client gives up and
// another one comes, until something is heard: no client need wait for as long itself.
type silence struct {
	due  atomic.Int64 // instant by which something should be heard; 0 if nothing is owed
	left atomic.Int64 // instant at which the last one gave up waiting; 0 if one waits

	waiting int           // requests; under the queue's lock, as is all that follows and all writing
	allowed time.Duration // what their prefills may take together
	excused time.Duration // for what given up requests may have taken, since something was heard
	usual   time.Duration // that an answer in one piece takes, the longest of late
	known   int           // answers that this was learned from
}

// patience is what is granted beyond the time for prefills.
func (s *silence) patience() int64 {
	if s.known == 0 {
		return int64(patience)
	}
	return int64(patience + stretch*max(s.usual, leastUsual))
}

// learn takes in how long an answer took.
func (s *silence) learn(took time.Duration) {
	s.known++
	s.usual = max(took, time.Duration(usualKeep*float64(s.usual)))
}

// join adds a request whose prefill may take so long.
func (s *silence) join(allowed time.Duration, now int64) {
	s.waiting++
	s.allowed += allowed
	due, left := s.due.Load(), s.left.Load()
	away := max(now-left, 0)
	switch {
	case due == 0 || left != 0 && away > int64(memory):
		s.excused = 0
		s.due.Store(now + s.patience() + int64(allowed))
	case left > due && left != 0: // it was silent until then: so it is still, until it is heard
		s.due.Store(now - min(left-due, int64(markLife)))
	case left != 0:
		s.due.Store(due + away + int64(allowed))
	case now < due:
		s.due.Store(due + int64(allowed))
	}
	s.left.Store(0)
}

// giveUp takes out a request that has waited so long for nothing.
func (s *silence) giveUp(r *Reservation, waited time.Duration, now int64) {
	s.waiting--
	s.allowed -= r.allowed
	if due := s.due.Load(); now <= due {
		due -= int64(r.allowed)
		s.due.Store(due + s.excuse(r, waited, now+s.patience()-due))
	}
	if s.waiting == 0 {
		s.left.Store(now)
	}
}

// excuse returns how much of some time the worker is granted for a request that was given
// up. If nobody else waits, what it should have taken at least was not waited in vain. And
// the engine may have been at it all the time that it was allowed, and turn to others only
// now; but not time and again without saying anything.
func (s *silence) excuse(r *Reservation, waited time.Duration, needed int64) int64 {
	granted := int64(0)
	if s.waiting == 0 {
		least := max(r.worker.takes(r.tokens, quickRate), glance)
		granted = max(min(needed, int64(min(waited, least))), 0)
	}
	more := max(min(needed-granted, int64(min(r.allowed, waited)-s.excused)), 0)
	s.excused += time.Duration(more)
	return granted + more
}

// heard says that something was heard of the worker.
func (s *silence) heard(now int64) {
	s.left.Store(0)
	s.excused = 0
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
	return time.Duration(min(left-due, int64(markLife)) - max(now-left, 0))
}

// Expect says in what form the request will be answered, now that nothing but the worker
// delays that: when it was placed or, if its client is still sending it, when it was sent.
// Calls after the first do nothing, nor do those after something came. Without it nothing
// is expected. Neither is an answer in one piece until it is known how long those of the
// worker take.
func (r *Reservation) Expect(answer Answer, now time.Time) {
	q := &r.worker.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.stage.Load() != waiting || r.answered || r.answer != Unforeseen {
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
	r.expected = now
	r.silence.join(r.allowed, instant(now))
}

// Answered says that the worker has begun to answer with what is no stream.
func (r *Reservation) Answered(now time.Time) {
	q := &r.worker.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	r.answered = true
	q.excuse(r, now)
	if telling := r.worker.served(r, now); telling && r.answer == Whole && r.whole == 0 {
		r.whole = max(now.Sub(r.charged), 1)
	}
}

// Heard says that the worker has shown, in another way than by beginning an answer, that
// it is not stuck. It costs next to nothing while nobody waits for the worker.
func (w *Worker) Heard(now time.Time) {
	q := &w.queue
	if q.streams.due.Load() == 0 && q.wholes.due.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	w.heard(now)
}

// Overdue returns for how long something should have been heard of the worker, 0 if
// there is nothing to complain of: much longer than its own record says, no first token
// was seen of the streams that wait for it, or nothing at all while an answer in one
// piece does. Once all have given up, it counts down, so that the worker is tried again.
func (w *Worker) Overdue(now time.Time) time.Duration { return w.queue.overdue(now) }

// HeardSince reports whether anything that shows that it is not stuck was heard of the worker
// at that time or later. That it is no longer overdue does not say so: all who waited may
// have given up long ago.
func (w *Worker) HeardSince(at time.Time) bool {
	heard := w.queue.heard.Load()
	return heard != 0 && heard >= instant(at)
}

func (q *queue) overdue(now time.Time) time.Duration {
	if q.streams.due.Load() == 0 && q.wholes.due.Load() == 0 { // as of most workers, for each request
		return 0
	}
	at := instant(now)
	return max(q.streams.late(at), q.wholes.late(at), 0)
}

// allowed is what a prefill of so many tokens may take. A rate that is not confirmed of
// late counts too: a worker that is stuck confirms none.
func (w *Worker) allowed(tokens int) time.Duration {
	return min(stretch*w.takes(tokens, unlearnedRate), longestAllowed)
}

// takes predicts how long a prefill takes, at a rate to go by if none was learned.
func (w *Worker) takes(tokens int, unlearned float64) time.Duration {
	rate := cmp.Or(math.Float64frombits(w.prefill.rate.Load()), unlearned)
	return time.Duration(min(float64(tokens)/rate, longestAllowed.Seconds()) * float64(time.Second))
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

// heard says that something was heard of the worker, and returns whether that was overdue.
// Then the worker has hung, unless what came last was overdue as well: then it is slow.
// w.queue.mu is held.
func (w *Worker) heard(now time.Time) (late bool) {
	q := &w.queue
	late = q.overdue(now) > 0
	if late && !q.hangs {
		q.hangs, q.hung = true, now
		w.ForgetRate() // nothing is known that would keep requests away
	}
	at := instant(now)
	q.heard.Store(at)
	q.streams.heard(at)
	q.wholes.heard(at)
	return late
}

// prefilled takes out a reservation whose first token was seen, and reports whether the
// time that it took tells of the engine's speed.
func (w *Worker) prefilled(r *Reservation, now time.Time) (telling bool) {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	w.queue.remove(r, now)
	return w.served(r, now)
}

// served says that something came which a request was waiting for, and reports whether the
// time that it took tells of the engine's speed. It does not if it waited while the engine
// hung: what did may come all at once. w.queue.mu is held.
func (w *Worker) served(r *Reservation, now time.Time) (telling bool) {
	late := w.heard(now)
	telling = r.charged.After(w.queue.hung)
	if telling && !late {
		w.queue.hangs = false
	}
	return telling
}

// excuse takes a request out of those who wait for the worker to say something. q.mu is
// held.
func (q *queue) excuse(r *Reservation, now time.Time) {
	if r.silence != nil {
		r.silence.giveUp(r, now.Sub(r.expected), instant(now))
		r.silence = nil
	}
}
