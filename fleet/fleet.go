// Package fleet knows the workers of an inference fleet: which there are, what
// each has been given to do and not yet finished, and how fast it has shown
// itself to be.
//
// A Worker is one engine replica, known by its address. Its ledger is charged
// the moment a request is placed and released when the request leaves, whichever
// way it leaves; it counts work in prompt tokens that the engine has to prefill,
// which is what makes a request wait. Ledgers are kept per process and not per
// site or per configuration: two sites in front of the same engine see the same
// load, and a reload changes nothing.
//
// The package does not choose between workers (package selection does) and does
// not know what they hold in their caches.
package fleet

import (
	"slices"
	"strings"
	"sync"

	"github.com/zeebo/xxh3"
)

// Fleet is the set of workers in use. A worker stays in it while anything uses
// it or a request is in flight on it, so that an address which is removed and
// added again while streams are open keeps its ledger.
type Fleet struct {
	mu      sync.Mutex
	workers map[string]*Worker

	pace pace // has a lock of its own
}

// New returns an empty fleet.
func New() *Fleet {
	return &Fleet{workers: make(map[string]*Worker)}
}

// Join returns the worker at address, new or known, and counts one more user of
// it. Every Join must be paired with one Leave.
func (f *Fleet) Join(address string) *Worker {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, ok := f.workers[address]
	if !ok {
		w = &Worker{fleet: f, address: address, hash: xxh3.HashString(address)}
		f.workers[address] = w
	}
	w.users.Add(1)
	return w
}

// Leave counts one user of w less and reports whether that was the last one.
func (f *Fleet) Leave(w *Worker) (last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.users.Add(-1) > 0 {
		return false
	}
	f.forget(w)
	return true
}

// reap forgets a worker whose last request has ended after its last user left.
func (f *Fleet) reap(w *Worker) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget(w)
}

// forget drops w once it has neither users nor requests. f.mu is held.
func (f *Fleet) forget(w *Worker) {
	if w.users.Load() > 0 || w.Load().InFlight() > 0 {
		return
	}
	if f.workers[w.address] == w {
		delete(f.workers, w.address)
	}
}

// Workers returns the workers that have users, ordered by address.
func (f *Fleet) Workers() []*Worker {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*Worker
	for _, w := range f.workers {
		if w.users.Load() > 0 {
			list = append(list, w)
		}
	}
	slices.SortFunc(list, func(a, b *Worker) int { return strings.Compare(a.address, b.address) })
	return list
}

// Len returns how many workers the fleet keeps, those with only requests left
// included.
func (f *Fleet) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.workers)
}
