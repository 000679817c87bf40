package fleet

import (
	"sync/atomic"
	"time"
)

// Worker is one engine replica. All its methods may be called concurrently.
type Worker struct {
	fleet   *Fleet
	address string
	hash    uint64       // of the address
	users   atomic.Int64 // changed under fleet.mu only

	load     atomic.Uint64 // a Load; one word, so that a choice and its charge can be one step
	assigned atomic.Uint64
	decoding atomic.Int64
	queue    queue
	recent   recent // tokens placed of late
	requests recent // requests placed of late
	prefill  prefill
	capacity atomic.Int64 // tokens of KV cache; 0 is unknown
}

// Address returns the address by which the worker is known.
func (w *Worker) Address() string { return w.address }

// Hash returns a hash of the address. It is the same in every process and on every
// machine, so that routers which know nothing of each other rank workers alike.
func (w *Worker) Hash() uint64 { return w.hash }

// Load is a worker's ledger at one moment.
type Load uint64

const (
	inFlightBits = 24
	maxInFlight  = 1<<inFlightBits - 1
	maxQueued    = 1<<(64-inFlightBits) - 1
	maxCharge    = 1 << 30 // tokens one request can be charged with
)

// InFlight returns the requests placed on the worker and not ended.
func (l Load) InFlight() int { return int(l & maxInFlight) }

// Queued returns the uncached prompt tokens that were placed on the worker and
// whose first output token has not been seen.
func (l Load) Queued() int { return int(l >> inFlightBits) }

// Fits reports whether one more request of this many uncached tokens can be
// written down. It is false only far beyond what an engine can queue.
func (l Load) Fits(tokens int) bool {
	return l.InFlight() < maxInFlight && l.Queued() <= maxQueued-clamp(tokens)
}

func entry(tokens int) uint64 { return uint64(tokens)<<inFlightBits | 1 } //nolint:gosec // clamped

func clamp(tokens int) int { return min(max(tokens, 0), maxCharge) }

// Load returns the worker's ledger now.
func (w *Worker) Load() Load { return Load(w.load.Load()) }

// Assigned returns the number of requests ever placed on the worker.
func (w *Worker) Assigned() uint64 { return w.assigned.Load() }

// Decoding returns the requests whose first output token has been seen and
// which have not ended.
func (w *Worker) Decoding() int { return int(w.decoding.Load()) }

// Recent returns the uncached prompt tokens placed on the worker of late: each
// counts half after RecentHalfLife.
func (w *Worker) Recent(now time.Time) float64 { return w.recent.value(now) }

// RecentRequests returns the requests placed on the worker of late: each counts
// half after RecentHalfLife.
func (w *Worker) RecentRequests(now time.Time) float64 { return w.requests.value(now) }

// Capacity returns the tokens the worker's KV cache holds, 0 if unknown.
func (w *Worker) Capacity() int { return int(w.capacity.Load()) }

// SetCapacity sets the tokens the worker's KV cache holds, 0 if unknown.
func (w *Worker) SetCapacity(tokens int) { w.capacity.Store(int64(max(tokens, 0))) }

// Charge places a request of this many uncached prompt tokens on the worker if
// its ledger is still what the caller's choice was made on, and reports whether
// it did. When it did not, somebody else placed or ended a request in between
// and the choice must be made again.
func (w *Worker) Charge(seen Load, tokens int, now time.Time) (*Reservation, bool) {
	tokens = clamp(tokens)
	if !seen.Fits(tokens) || !w.load.CompareAndSwap(uint64(seen), uint64(seen)+entry(tokens)) {
		return nil, false
	}
	w.assigned.Add(1)
	w.recent.add(float64(min(tokens, maxRecent)), now)
	w.requests.add(1, now)
	r := &Reservation{worker: w, tokens: tokens, charged: now}
	w.queue.join(r, now)
	return r, true
}

// Place places a request on the worker whatever is on it, for choices that are
// not made on the ledger. It returns nil only if the ledger cannot hold it.
func (w *Worker) Place(tokens int, now time.Time) *Reservation {
	for {
		seen := w.Load()
		if !seen.Fits(tokens) {
			return nil
		}
		if r, ok := w.Charge(seen, tokens, now); ok {
			return r
		}
	}
}
