package inference

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"

	"github.com/caddy-inference/caddy-inference/fleet"
	"github.com/caddy-inference/caddy-inference/radix"
	"github.com/caddy-inference/caddy-inference/selection"
)

// worker is a member of the fleet as the rim knows it. It lives as long as a
// config names its address; its ledger may live longer, until its last request
// has ended.
type worker struct {
	*fleet.Worker
	trust

	// prefix is its handle in the tree. It is replaced when the engine has lost
	// its cache, which forgets all at once.
	prefix atomic.Pointer[radix.Worker]

	// transport is how the engine is reached: as the newest of the routers that use
	// the worker does. The state's lock guards the list of all of them.
	transport  atomic.Pointer[reverseproxy.HTTPTransport]
	transports []*reverseproxy.HTTPTransport

	engine engine
	sick   atomic.Bool   // by Caddy's health checks, when last looked at
	left   chan struct{} // closed when the last config left

	// series guards the worker's metrics: none is written once they are deleted.
	series sync.RWMutex
	gone   bool // its metrics are deleted
}

// join returns the worker at address and counts one more user of it. transport
// is how to reach its engine, nil if that is not by HTTP.
func (s *state) join(address string, transport *reverseproxy.HTTPTransport) *worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	member := s.fleet.Join(address)
	w, known := s.workers[member]
	if !known {
		w = &worker{Worker: member, left: make(chan struct{})}
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
// them may be one that is being restarted, though no request finds out.
func (s *state) seen(w *worker, standing selection.Standing) {
	sick := standing == selection.Unhealthy
	if sick != w.sick.Load() && w.sick.CompareAndSwap(!sick, sick) && sick {
		s.check(w)
	}
}
