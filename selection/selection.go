// Package selection chooses a worker for a request.
//
// A choice has two halves. A [Rule] is pure: from what each candidate holds of the
// prompt and what is queued on it, it works out every candidate's terms, writes them
// beside the candidate and names the one to take. It changes nothing, so it also serves
// to explain a choice or to follow one in the shadow of another. [Place] decides by a
// rule and charges the chosen worker's ledger in one step: if the ledger moved since
// the decision, it decides again.
//
// [Cost] takes the worker with the least predicted time to the first token,
// [Thresholds] the one that holds enough of the prompt unless loads differ too much,
// [Hash] the one that owns the beginning of the prompt unless its load is over a bound.
//
// The package does not know how a candidate's holdings were found, nor what an
// upstream, a request or a response is.
package selection

import "github.com/caddy-inference/caddy-inference/fleet"

// Standing says whether a candidate can be chosen, and if not, why.
type Standing uint8

const (
	// Available candidates can be chosen.
	Available Standing = iota
	// Unhealthy candidates failed Caddy's health checks.
	Unhealthy
	// Full candidates have as many requests as they may have.
	Full
	// Tried candidates have failed this request already.
	Tried
	// Suspected candidates failed a request, and have not been seen to serve since.
	Suspected
	// Unwanted candidates are those that the request itself rules out.
	Unwanted
)

// Candidate is one worker in the light of one request.
type Candidate struct {
	// Worker is never nil.
	Worker *fleet.Worker
	// Standing is Available for those that can be chosen.
	Standing Standing
	// Held is the number of prompt tokens the worker is believed to hold.
	Held int
	// Doubt is the part of Held that is taken as not held, as it is not certain or has to
	// be loaded first: between two that hold as much, the one with less of it is taken.
	Doubt int
	// Private says that what it holds is the earlier part of this very
	// conversation, not a beginning that many prompts share.
	Private bool

	// Terms is filled in by the rule.
	Terms Terms
}

// sure is the tokens held that count.
func (c *Candidate) sure() int { return c.Held - c.Doubt }

// Terms is what made a candidate's cost. Times are predicted seconds.
type Terms struct {
	Load     fleet.Load // the ledger the decision was made on
	Uncached int        // prompt tokens the worker would have to compute
	Rate     float64    // prefill rate reckoned with, in tokens a second
	Recent   float64    // work placed on the worker of late, in seconds
	Requests float64    // requests placed on it of late

	Overdue float64 // for how long something should have been heard of the worker
	Wait    float64 // for the prefills queued before this one, and for a worker that is overdue
	Prefill float64 // for this request's own uncached tokens
	Decode  float64 // for the requests in flight that share the engine's steps
	Spread  float64 // for work done of late beyond the least busy worker's; see Decide
	Cost    float64 // the sum; least wins

	Rank uint64 // place in the order of the key that decided, if one did; the highest comes first
	Over bool   // the load is over the bound for a key; see Hash
}

// Reason says in a word why a worker was chosen.
type Reason uint8

const (
	// None is the reason of no choice.
	None Reason = iota
	// Hit: the chosen worker holds the most of the prompt.
	Hit
	// LoadOutweighed: another available worker holds more, but its queue would
	// cost more than computing the difference.
	LoadOutweighed
	// Spread: another available worker holds more and would be as fast, but has done
	// so much of late that what it holds is copied to this one. See Decide.
	Spread
	// HolderUnavailable: a worker that cannot be chosen holds more than any that can.
	HolderUnavailable
	// NothingHeld: no worker holds any of the prompt.
	NothingHeld
	// TooLittle: another worker holds more, but not enough of the prompt to count. See
	// Thresholds.
	TooLittle
	// Owner: the chosen worker is the owner of the prompt's beginning. See Hash.
	Owner
	// Affinity: the chosen worker is the owner of the session. See Hash.
	Affinity
	// OverBound: the owner is available, but its load is over the bound. See Hash.
	OverBound
	// OwnerUnavailable: the owner cannot be chosen. See Hash.
	OwnerUnavailable

	// Reasons is how many there are.
	Reasons
)

// String returns the reason as it stands in logs and metrics.
func (r Reason) String() string {
	return [...]string{"none", "hit", "load", "spread", "holder_unavailable", "cold", "too_little", "owner", "affinity", "bound", "owner_unavailable"}[r]
}

// Choice is the outcome of a decision.
type Choice struct {
	// Index of the chosen candidate, -1 if none is available.
	Index int
	// Reason of the choice.
	Reason Reason
	// Tokens of the prompt.
	Tokens int
	// Held is the tokens the chosen worker holds.
	Held int
	// Best is the index of the candidate that holds the most, available or not; of
	// several, the chosen one or the first. -1 if none holds any.
	Best int
	// BestHeld is the tokens it holds.
	BestHeld int
}
