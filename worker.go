package inference

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"

	"github.com/caddy-inference/caddy-inference/fleet"
	"github.com/caddy-inference/caddy-inference/radix"
	"github.com/caddy-inference/caddy-inference/selection"
)

// worker is a member of the fleet as the rim knows it. It lives as long as a
// config names its address; its ledger may live longer, until its last request
// has ended.
//
// One whose engine has several data parallel ranks, each with a queue and a cache of its
// own, has a worker for each of them beside it: see state.split.
type worker struct {
	*fleet.Worker
	*trust

	base  *worker                   // of which it is a rank; itself if it is none
	rank  int                       // its number; -1 if it is none
	ranks atomic.Pointer[[]*worker] // nil if the engine has but one

	// feed is what its engine, or rank, says that it holds; nil if it says nothing.
	feed      atomic.Pointer[feed]
	lacking   atomic.Pointer[string] // why there is none
	following following
	news      chan struct{} // something about it has changed
	exact     exactModels

	// prefix is its handle in the tree. It is replaced when the engine has lost
	// its cache, which forgets all at once.
	prefix atomic.Pointer[radix.Worker]

	// transport is how the engine is reached: as the newest of the routers that use
	// the worker does. The state's lock guards the list of all of them.
	transport  *atomic.Pointer[reverseproxy.HTTPTransport]
	transports []*reverseproxy.HTTPTransport

	engine engine
	sick   atomic.Bool               // by Caddy's health checks, when last looked at
	hangs  atomic.Pointer[time.Time] // since when that was logged; nil if it does not
	left   chan struct{}             // closed when the last config left

	tokenizing atomic.Int32 // calls for token ids that its engine has not answered

	// series guards the worker's metrics: none is written once they are deleted.
	series    sync.RWMutex
	uncounted bool // its metrics are deleted
}

// join returns the worker at address and counts one more user of it. transport
// is how to reach its engine, nil if that is not by HTTP.
func (s *state) join(address string, transport *reverseproxy.HTTPTransport) *worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	member := s.fleet.Join(address)
	w, known := s.workers[member]
	if !known {
		w = newWorker(member)
		w.prefix.Store(s.newHandle())
		s.workers[member] = w
	}
	w.transports = append(w.transports, transport)
	before := w.transport.Swap(transport)
	if !known || before == nil {
		s.ask(w)
	}
	return w
}

func newWorker(member *fleet.Worker) *worker {
	w := &worker{Worker: member, trust: new(trust), rank: -1, left: make(chan struct{}), news: make(chan struct{}, 1)}
	w.engine.back = make(chan struct{}, 1)
	w.base, w.transport = w, new(atomic.Pointer[reverseproxy.HTTPTransport])
	return w
}

// leave counts one user of w less, which had joined it with that transport; the
// last one takes with it all that is kept about the worker.
func (s *state) leave(w *worker, transport *reverseproxy.HTTPTransport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(w.transports, transport); i >= 0 {
		w.transports = slices.Delete(w.transports, i, i+1)
	}
	if !s.fleet.Leave(w.Worker) {
		w.transport.Store(w.transports[len(w.transports)-1])
		return
	}
	delete(s.workers, w.Worker)
	close(w.left)
	s.tree.Remove(*w.prefix.Load())
	s.metrics.forget(w)
}

// forgetPrefixes says that the worker's engine has lost its cache.
func (s *state) forgetPrefixes(w *worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.workers[w.Worker] != w {
		return
	}
	s.tree.Remove(*w.prefix.Swap(s.newHandle()))
}

// newHandle returns a handle in the tree for a worker. If there are too many it is none:
// then nothing will be known of what the worker holds. s.mu is held.
func (s *state) newHandle() *radix.Worker {
	handle := s.tree.Add()
	full := handle == radix.Worker{}
	if full && !s.full {
		s.warnFull()
	}
	s.full = full
	return &handle
}

// warnFull says that there are workers without a handle.
func (s *state) warnFull() {
	s.logger.Load().Warn("too many upstreams to remember what each was sent; those beyond the limit get requests by their load alone",
		zap.Int("limit", radix.MaxWorkers))
}

// seen takes note of what Caddy's health checks say of w: an engine that fails
// them may be one that is being restarted, though no request finds out, and one that
// passes them again has been.
func (s *state) seen(w *worker, standing selection.Standing) {
	if standing == selection.Tried || standing == selection.Unwanted {
		return // which says nothing of its health
	}
	w = w.base
	sick := standing == selection.Unhealthy
	switch {
	case sick == w.sick.Load() || !w.sick.CompareAndSwap(!sick, sick):
	case sick:
		s.check(w)
	default:
		s.askAnew(w)
	}
}
