package selection

import (
	"math"
	"time"
)

const (
	// shortWait is how many seconds of wait are not too long for a worker, however little
	// waits on the others. 0.1: with 0.5 it is the same within 1 %, but with nothing a session
	// that begins would leave its owner for any other request there.
	shortWait = 0.1

	// fewRequests is how many requests are not too many for a worker, however few the others
	// have. 4: with 3 agents wait 8 to 19 % longer; with 6 they wait 11 % less on large caches
	// and 7 % longer on small ones, and conversations that all begin alike up to 3 % longer.
	fewRequests = 4
)

// Hash is the rule by which a key has an owner. For each key the workers stand in an order
// that nothing but the key and their addresses decides (rendezvous hashing): any router
// comes to the same one, and a worker that leaves or joins changes nobody else's place. The
// first is the key's owner. One that cannot be chosen is passed over for the next.
//
// So is one whose load is over the bound: LoadFactor times the mean of those that can be
// chosen. Load is both the predicted wait for the prefills that are queued there and the
// number of requests in flight, since requests alone say nothing of their prompts, which
// differ a thousandfold. Three things are never over the bound: a wait no longer than it
// would take to compute what the worker holds of this prompt, as that is what going
// elsewhere costs; a wait of a moment; and a handful of requests. A worker that is overdue may be
// stuck: it is over the bound, and none of the mean, unless all are. If all are over it, [Cost]
// chooses.
type Hash struct {
	// Key is what the owner is of.
	Key uint64
	// Next is the key by whose order an owner is passed over whose load is over the bound. It
	// may be the same. Where many requests have one key, one that tells them apart spreads
	// them over the fleet, and brings those that have more in common together again.
	Next uint64
	// LoadFactor is at least 1. The nearer, the more even loads are, and the fewer requests
	// reach their owner.
	LoadFactor float64
	// Reason is given if the owner was chosen.
	Reason Reason
}

// Decide returns the owner, or the first candidate in the order behind it that can be
// chosen and is not over the bound.
func (h Hash) Decide(tokens int, candidates []Candidate, now time.Time) Choice {
	choice := Cost{}.Decide(tokens, candidates, now)
	if choice.Index < 0 {
		return choice
	}
	h.findOver(candidates)
	owner, next := inOrder(h.Key, candidates)
	crowded := candidates[owner].Standing == Available && candidates[owner].Terms.Over
	if crowded {
		_, next = inOrder(h.Next, candidates)
	}
	if next >= 0 {
		choice.Index = next
	}
	choice.Held = candidates[choice.Index].Held
	if choice.Held == choice.BestHeld && choice.Held > 0 {
		choice.Best = choice.Index
	}
	switch {
	case choice.Index == owner:
		choice.Reason = h.Reason
	case crowded:
		choice.Reason = OverBound
	default:
		choice.Reason = OwnerUnavailable
	}
	return choice
}

// inOrder puts the candidates in a key's order. It returns the first of all, and the first
// one that can be chosen and is not over the bound, -1 if there is none.
func inOrder(key uint64, candidates []Candidate) (first, next int) {
	next = -1
	for i := range candidates {
		c := &candidates[i]
		c.Terms.Rank = rank(key, c.Worker.Hash())
		if c.Terms.Rank > candidates[first].Terms.Rank {
			first = i
		}
		if c.Standing == Available && !c.Terms.Over && (next < 0 || c.Terms.Rank > candidates[next].Terms.Rank) {
			next = i
		}
	}
	return first, next
}

// findOver finds out whose load is over the bound.
func (h Hash) findOver(candidates []Candidate) {
	overdue := mostOverdue(candidates)
	wait, requests := h.bound(candidates, overdue)
	for i := range candidates {
		c := &candidates[i]
		t := &c.Terms
		t.Over = t.Overdue > overdue || t.Wait > max(wait, shortWait, float64(c.Held)/t.Rate)+tie ||
			float64(t.Load.InFlight()+1) > max(requests, fewRequests)
	}
}

// mostOverdue returns how many seconds a worker may be overdue: none, unless all that can be
// chosen are overdue.
func mostOverdue(candidates []Candidate) float64 {
	for i := range candidates {
		if c := &candidates[i]; c.Standing == Available && c.Terms.Overdue == 0 {
			return 0
		}
	}
	return math.Inf(1)
}

// bound returns how long the wait on a worker may be, and how many requests it may have
// with this one, by what the available ones have on average that are no more overdue.
func (h Hash) bound(candidates []Candidate, overdue float64) (wait, requests float64) {
	n := 0.0
	for i := range candidates {
		if c := &candidates[i]; c.Standing == Available && c.Terms.Overdue <= overdue {
			n++
			wait += c.Terms.Wait
			requests += float64(c.Terms.Load.InFlight())
		}
	}
	return h.LoadFactor * wait / n, h.LoadFactor * (requests + 1) / n
}

// rank mixes a key and the hash of an address into the place in the key's order. It is the
// finalizer of MurmurHash3: every bit of the result depends on every bit of both.
func rank(key, address uint64) uint64 {
	x := key ^ address
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
