package kvevents

import (
	"errors"
	"time"
)

const (
	// maxAttempts is how many requests in a row may bring nothing new.
	maxAttempts = 3

	// repairTotal is how long a repair may take with all its requests.
	repairTotal = 30 * time.Second

	// attemptPause is the wait after a request that failed, times its number.
	attemptPause = 200 * time.Millisecond

	// retryMin and retryMax are the first and the longest wait before all is asked for
	// again after a repair that failed. It doubles each time.
	retryMin = 30 * time.Second
	retryMax = 10 * time.Minute
)

// repair is the fetching of what is missing, by one or several requests for replay.
type repair struct {
	on        bool
	resync    bool      // all is asked for again, what is applied stays until it comes
	until     uint64    // number of the live batch that waits; 0 is none
	missing   bool      // batches are known to be missing; else it is to find out
	began     time.Time // for repairTotal
	notBefore time.Time // of the next request

	attempts int  // requests in a row that failed and brought nothing
	restarts int  // lives of the engine seen
	replied  bool // the request was answered by a batch
	progress bool // the request brought something new

	retryAt time.Time // when all is asked for again; zero is never
	wait    time.Duration
}

// What ends a request before its end.
var (
	errHole        = errors.New("batches are missing in the replay")
	errAnotherLife = errors.New("the replay is of another life of the engine")
	errNoGain      = errors.New("the replay has no more than is known")
)

// begin starts a repair. A live batch that waits for it is its end.
func (s *stream) begin(now time.Time, until uint64) {
	s.repair = repair{on: true, until: until, missing: until > 0, began: now, retryAt: s.repair.retryAt, wait: s.repair.wait}
}

// request returns the number to replay from.
func (s *stream) request() uint64 {
	s.count.replays.Add(1)
	s.repair.replied, s.repair.progress = false, false
	if s.known && !s.repair.resync {
		return s.last
	}
	return 0
}

// reply takes a batch of a replay. An error ends the request; ended takes it.
func (s *stream) reply(seq uint64, payload []byte) error {
	isFirst := !s.repair.replied
	s.repair.replied = true
	if s.repair.resync {
		if s.dirty && seq >= s.first {
			return errNoGain
		}
		s.repair.resync = false
		s.clear(Resynced)
		s.known = false
	}
	switch {
	case !s.known:
		s.whole, s.gap = seq == 0, ReplayShort
		if s.whole {
			s.gap = ReasonNone
		}
	case seq <= s.last:
		return s.overlap(seq, payload)
	case seq == s.last+1 && (s.proven || !isFirst):
	case isFirst: // the engine keeps no more, nothing tells of which life it is
		s.skipTo(seq)
		s.gap = ReplayShort
	default:
		return errHole
	}
	s.repair.progress = true
	s.apply(seq, payload)
	s.count.replayed.Add(1)
	return nil
}

// overlap takes a batch of a replay that was applied already, if it is the same.
func (s *stream) overlap(seq uint64, payload []byte) error {
	remembered, same := s.marks.find(seq, payload)
	if remembered && !same {
		return errAnotherLife
	}
	s.proven = s.proven || same
	return nil
}

// ended says that a request is over: at its end, or why before.
func (s *stream) ended(now time.Time, err error) {
	if err == nil && !s.repair.replied && s.known && !s.repair.resync {
		err = errAnotherLife // it does not have the batch that was last
	}
	if err == nil && s.known && s.last+1 < s.repair.until {
		err = errHole
	}
	switch {
	case err == nil, errors.Is(err, errNoGain):
		s.finish(err)
	case errors.Is(err, errAnotherLife) && s.repair.restarts < maxAttempts:
		s.repair.restarts++
		s.restart()
	default:
		s.again(now)
	}
	s.settle(now)
}

// finish ends a repair that went well.
func (s *stream) finish(err error) {
	if err == nil && !s.known && !s.repair.missing {
		s.whole, s.gap = true, ReasonNone // nothing was published yet
	}
	if err == nil {
		s.proven, s.unsure = true, false
	}
	s.accept = s.repair.until > 0
	s.caught = s.accept && err == nil
	s.repair = repair{retryAt: s.repair.retryAt, wait: s.repair.wait}
}

// again decides whether to ask once more after a request that failed.
func (s *stream) again(now time.Time) {
	r := &s.repair
	s.count.replayErrors.Add(1)
	if r.progress {
		r.attempts = 0
	}
	r.attempts++
	if r.attempts < maxAttempts && now.Sub(r.began) < repairTotal {
		r.notBefore = now.Add(time.Duration(r.attempts) * attemptPause)
		return
	}
	s.accept = true
	s.unsure = true
	if !s.whole {
		s.gap = ReplayFailed
	}
	s.later(now)
}

// later gives the repair up for now.
func (s *stream) later(now time.Time) {
	wait := min(max(2*s.repair.wait, retryMin), retryMax)
	s.repair = repair{retryAt: now.Add(wait), wait: wait}
}

// interrupt says that the link is gone, so that a repair makes no sense any more.
func (s *stream) interrupt() { s.repair.on = false }
