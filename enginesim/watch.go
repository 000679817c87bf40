package enginesim

import "time"

// Prefill is what became of one prompt, told when its first token is there.
type Prefill struct {
	Arrived time.Time // at the engine, in real time
	Prompt  int       // tokens of the prompt
	Cached  int       // of these, found in the cache

	// Wait is the time from arrival to the first token, queue included. It is
	// simulated time, as if Speed were 1, and what the engine's schedule says: a
	// timer that fires late changes nothing in it, so it is as exact on a busy
	// machine as on an idle one.
	Wait time.Duration
}

// Watch has watcher told of every sequence's first token from now on, for
// measurements: also after a restart, and instead of an earlier watcher. nil ends
// it. Watcher is called by the goroutines that serve the requests, several at a
// time, before the token is sent; an earlier one may be in a call still.
func (s *Server) Watch(watcher func(Prefill)) {
	if watcher == nil {
		s.watch.Store(nil)
		return
	}
	s.watch.Store(&watcher)
}

// tell tells the watcher, if there is one.
func (s *Server) tell(p Prefill) {
	if watcher := s.watch.Load(); watcher != nil {
		(*watcher)(p)
	}
}
