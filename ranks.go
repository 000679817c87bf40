package inference

import (
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/caddy-inference/caddy-inference/fleet"
	"github.com/caddy-inference/caddy-inference/selection"
)

// rankHeader tells an engine with several data parallel ranks which one a request is for.
const rankHeader = "X-Data-Parallel-Rank"

// parts returns the workers that a request to w can be placed on: its ranks, or w itself.
func (w *worker) parts() []*worker {
	if ranks := w.ranks.Load(); ranks != nil {
		return *ranks
	}
	return []*worker{w}
}

// split has w be as many workers as its engine has ranks, one for each of the sources if
// there are several. What was known of the ranks before is forgotten; what is on them stays
// in their ledgers until it ends. s.mu is held.
func (s *state) split(w *worker, sources []source) {
	if old := w.ranks.Load(); old != nil {
		w.ranks.Store(nil)
		for _, r := range *old {
			s.part(r)
		}
		s.splits.Add(1)
	}
	if len(sources) < 2 {
		return
	}
	ranks := make([]*worker, len(sources))
	for i, from := range sources {
		r := newWorker(s.fleet.Join(w.Address() + "@" + strconv.Itoa(from.rank)))
		r.trust, r.base, r.rank, r.transport, r.left = w.trust, w, from.rank, w.transport, w.left
		r.prefix.Store(s.newHandle())
		s.workers[r.Worker] = r
		ranks[i] = r
	}
	w.ranks.Store(&ranks)
	s.splits.Add(1)
	s.share(w)
}

// part takes leave of a rank. s.mu is held.
func (s *state) part(r *worker) {
	s.fleet.Leave(r.Worker)
	delete(s.workers, r.Worker)
	s.tree.Remove(*r.prefix.Load())
	s.metrics.forget(r)
}

// share has each rank of w have its share of the cache that the engine tells of.
func (s *state) share(w *worker) {
	parts := w.parts()
	for _, r := range parts {
		if r != w {
			r.SetCapacity(w.Capacity() / len(parts))
			s.fit(r)
		}
	}
}

// aim returns r as it is sent to the worker: with the number of the rank, if it is one and
// the client has not chosen itself. r is not changed.
func (w *worker) aim(r *http.Request) *http.Request {
	if w.rank < 0 || r.Header.Get(rankHeader) != "" {
		return r
	}
	aimed := *r
	aimed.Header = r.Header.Clone()
	aimed.Header.Set(rankHeader, strconv.Itoa(w.rank))
	return &aimed
}

// hasRank reports whether n is the number of one of w's ranks.
func (w *worker) hasRank(n int) bool {
	ranks := w.ranks.Load()
	return ranks != nil && slices.ContainsFunc(*ranks, func(r *worker) bool { return r.rank == n })
}

// wantedRank returns the rank that the client wants the request to go to, -1 if it does not
// say.
func wantedRank(r *http.Request) int {
	if n, err := strconv.Atoi(r.Header.Get(rankHeader)); err == nil && n >= 0 {
		return n
	}
	return -1
}

// exactModels is, for each model that requests came for, why the last choice of a worker was
// not made on exact knowledge; empty if it was.
type exactModels struct {
	causes sync.Map // *fleet.Model to string
}

// saw takes note of a choice.
func (e *exactModels) saw(m *fleet.Model, why string) {
	if before, ok := e.causes.Load(m); !ok || before != why {
		e.causes.Store(m, why)
	}
}

// idlest returns the place of the available worker with the least queued among those of an
// upstream, -1 if there is none.
func (m *membership) idlest(upstream int, candidates []selection.Candidate) int {
	best := -1
	for i, of := range m.upstreams {
		if of != upstream || candidates[i].Standing != selection.Available {
			continue
		}
		if best < 0 || candidates[i].Worker.Load().Queued() < candidates[best].Worker.Load().Queued() {
			best = i
		}
	}
	return best
}
