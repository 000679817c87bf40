package kvevents

import (
	"cmp"
	"math"
	"time"
)

const (
	// endOfReplay is the number that ends a replay. An engine that publishes it live
	// says that it begins anew.
	endOfReplay = math.MaxUint64

	// blindAfter is how long what was applied is thought true without a link.
	blindAfter = 10 * time.Second

	// badBatches is how many batches in a row may be undecodable before the stream is blind.
	badBatches = 8

	// maxOverflows is how many overflows in a row are answered by replay.
	maxOverflows = 3
)

// stream decides what becomes of each batch of one publisher. It has no sockets and no
// clock: it is told what comes and what the time is, and says what to ask for.
//
// One life of the engine is a run of batches numbered from 0. The last batches applied are
// remembered by their contents, so that a batch of the same number from another life is
// known for one. That is why a replay always begins with the last batch applied: it proves
// that the engine is still in the life in which that batch was published.
type stream struct {
	handler Handler
	count   *counters
	replays bool // the engine can be asked for a replay
	batch   Batch
	status  Status

	up        bool
	downSince time.Time

	known  bool   // batches of this life have been applied, the last is last
	last   uint64 // valid if known
	first  uint64 // of the batches in what is applied
	marks  marks
	dirty  bool   // something is applied
	whole  bool   // nothing is missing between the life's begin and last
	gap    Reason // why, if not whole
	unsure bool   // batches after last may be missing
	proven bool   // the engine is in this life still, as far as the link tells
	accept bool   // the next live batch is applied even if some are missing before it
	caught bool   // a replay for the sake of the next live batch has ended well
	linked bool   // a live batch has come on this link, the latest is newest
	newest uint64 // valid if linked

	bad       int // undecodable batches in a row
	overflows int // in a row
	repair    repair
}

func newStream(h Handler, c *counters, replays bool, now time.Time) *stream {
	return &stream{handler: h, count: c, replays: replays, downSince: now, status: Status{Since: now}}
}

// connected says that there is a link now.
func (s *stream) connected(now time.Time) {
	s.up = true
	s.proven = !s.known
	s.accept, s.caught, s.linked = false, false, false
	s.overflows = 0
	if !s.known {
		s.whole, s.gap = false, Began
	}
	if s.replays {
		s.begin(now, 0)
	}
	s.settle(now)
}

// disconnected says that the link is gone, or could not be made.
func (s *stream) disconnected(now time.Time, err error) {
	why := linkReason(err, s.up)
	s.count.link(why)
	if s.up {
		s.downSince = now
	}
	s.up = false
	s.repair.on = false
	if why == WrongPeer || s.status.State == Blind || now.Sub(s.downSince) >= blindAfter {
		s.set(now, Blind, why)
	} else {
		s.set(now, Connecting, why)
	}
}

// deadline is when tick has something to do; zero is never.
func (s *stream) deadline() time.Time {
	switch {
	case !s.up && s.status.State != Blind:
		return s.downSince.Add(blindAfter)
	case s.up && s.repair.on:
		return s.repair.notBefore
	case s.up:
		return s.repair.retryAt
	}
	return time.Time{}
}

// tick does what is due.
func (s *stream) tick(now time.Time) {
	switch due := s.deadline(); {
	case due.IsZero() || now.Before(due):
	case !s.up:
		s.set(now, Blind, cmp.Or(s.status.Reason, Unreachable))
	case !s.repair.on:
		s.repair.retryAt = time.Time{}
		s.begin(now, 0)
		s.repair.resync = s.known && s.proven && !s.whole
		s.settle(now)
	}
}

// live takes a batch that was published. It returns false if a replay has to come first;
// the batch and those after it wait until then.
func (s *stream) live(now time.Time, seq uint64, payload []byte) bool {
	if s.repair.on {
		return false
	}
	taken := s.take(now, seq, payload)
	if taken {
		s.linked, s.newest, s.caught = true, seq, false
	}
	s.settle(now)
	return taken
}

func (s *stream) take(now time.Time, seq uint64, payload []byte) bool {
	switch {
	case seq == endOfReplay:
		s.restart()
		if s.replays {
			s.begin(now, 0)
		}
		return true
	case s.known && seq <= s.last:
		if s.duplicate(seq, payload) {
			s.count.duplicates.Add(1)
			s.proven, s.accept = true, false
			return true
		}
		accept := s.accept
		s.restart()
		s.accept = accept // a replay of another life than the live one would never connect
	case s.known && seq == s.last+1:
		s.overflows, s.unsure = 0, false
		s.apply(seq, payload)
		return true
	case s.known && !s.accept:
		s.count.gaps.Add(1)
	}
	if s.known || seq != 0 {
		if s.replays && !s.accept {
			s.begin(now, seq)
			return false
		}
		s.skipTo(seq)
	} else {
		s.whole, s.gap = true, ReasonNone
	}
	s.apply(seq, payload)
	return true
}

// duplicate says whether a live batch was applied before. If that is too long ago to be
// remembered, a replay has overtaken it: either numbers go up on the link all the same, or
// the replay was for its sake.
func (s *stream) duplicate(seq uint64, payload []byte) bool {
	remembered, same := s.marks.find(seq, payload)
	if remembered {
		return same
	}
	return s.caught || s.proven && (!s.linked || seq > s.newest)
}

// skipTo gives up what is missing before a batch.
func (s *stream) skipTo(seq uint64) {
	switch {
	case s.known:
		s.count.lost.Add(seq - s.last - 1)
		s.gap = Lost
	case s.gap == ReasonNone || s.whole: // it replayed nothing
		s.gap = ReplayShort
	}
	s.clear(Lost)
	s.known, s.whole, s.unsure = false, false, false
}

// apply decodes a batch and hands it on. What one that cannot be read has removed is not
// known, so it voids all before it.
func (s *stream) apply(seq uint64, payload []byte) {
	if err := s.batch.Decode(payload); err != nil {
		s.count.decodeErrors.Add(1)
		s.bad++
		s.clear(Undecodable)
		s.whole, s.gap = false, Undecodable
	} else {
		s.bad = 0
		s.hand(seq)
	}
	s.known, s.last = true, seq
	s.proven, s.accept = true, false
	s.marks.add(seq, payload)
}

func (s *stream) hand(seq uint64) {
	if !s.dirty {
		s.dirty, s.first = true, seq
	}
	s.handler.Apply(&s.batch)
	s.count.batches.Add(1)
	s.count.skipped.Add(uint64(s.batch.Skipped)) //nolint:gosec // a count
	for i := range s.batch.Events {
		if s.batch.Events[i].Kind == Cleared { // what came before does not matter any more
			s.whole, s.gap = true, ReasonNone
		}
	}
}

// restart says that the engine has begun anew.
func (s *stream) restart() {
	s.count.restarts.Add(1)
	s.clear(Restarted)
	s.known, s.accept, s.unsure = false, false, false
	s.proven = true
	s.whole, s.gap = false, Began
	s.marks = marks{}
}

func (s *stream) clear(why Reason) {
	if s.dirty {
		s.dirty = false
		s.handler.Clear(why)
	}
}

// malformed says that a message came that is no batch. Its number will be missing.
func (s *stream) malformed() { s.count.malformed.Add(1) }

// overflowed says that live batches were let go because too many bytes waited.
func (s *stream) overflowed(now time.Time) bool {
	if s.repair.on {
		return false
	}
	s.count.overflows.Add(1)
	s.overflows++
	switch {
	case s.replays && s.overflows <= maxOverflows:
		s.begin(now, 0)
		s.repair.missing = true
	case s.replays:
		s.later(now)
		fallthrough
	default:
		s.accept, s.unsure = true, true
	}
	s.settle(now)
	return true
}

// settle finds the state that follows from the rest.
func (s *stream) settle(now time.Time) {
	if !s.up {
		return
	}
	if s.whole && s.proven && !s.unsure {
		s.repair.retryAt, s.repair.wait = time.Time{}, 0
	}
	switch {
	case s.repair.on:
		s.set(now, Replaying, s.gap)
	case s.bad >= badBatches:
		s.set(now, Blind, Undecodable)
	case !s.proven:
		s.set(now, Blind, Unproven)
	case s.whole && s.unsure:
		s.set(now, Degraded, ReplayFailed)
	case s.whole:
		s.set(now, Synced, ReasonNone)
	default:
		s.set(now, Degraded, s.gap)
	}
}

func (s *stream) set(now time.Time, state State, why Reason) {
	if s.status.State == state && s.status.Reason == why {
		return
	}
	s.status = Status{State: state, Reason: why, Since: now}
	s.handler.State(s.status)
}
