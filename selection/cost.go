package selection

import (
	"math"
	"time"

	"github.com/caddy-inference/caddy-inference/fleet"
)

const (
	// defaultRate is the prefill rate, in tokens a second, of a worker in a fleet
	// of which nothing has been learned yet. It scales all costs alike.
	defaultRate = 8000

	// decodeTokens is what a request in flight costs the next one, in prefill tokens.
	decodeTokens = 64

	// placeAttempts bounds how often a decision is made again because the chosen
	// worker's ledger moved.
	placeAttempts = 64
)

// Decide fills in the terms of every candidate and returns the cheapest of the
// available ones. It changes nothing but the terms.
//
// A candidate's cost is the time this request is predicted to wait for its first
// token there: (queued uncached tokens + its own) over the worker's prefill
// rate, plus a little for every request in flight. Ties go to the fewest
// requests assigned so far.
//
// One more term keeps a beginning that many prompts share from gathering them
// all on its first holder while the fleet idles. Going elsewhere costs one more
// prefill of that beginning, and buys a second holder of it. As with renting or
// buying, it is bought when the rent paid so far has reached the price: the work
// a worker was given of late beyond the least busy one's counts as cost, unless
// what it holds is this conversation's own past, which nobody else can use.
func Decide(tokens int, candidates []Candidate, now time.Time) Choice {
	choice := Choice{Index: -1, Tokens: tokens}
	leastRecent := survey(tokens, candidates, now)
	availableHeld := 0
	for i := range candidates {
		c := &candidates[i]
		c.weigh(leastRecent)
		choice.BestHeld = max(choice.BestHeld, c.Held)
		if c.Standing != Available {
			continue
		}
		availableHeld = max(availableHeld, c.Held)
		if choice.Index < 0 || better(c, &candidates[choice.Index]) {
			choice.Index = i
		}
	}
	if choice.Index >= 0 {
		choice.Held = candidates[choice.Index].Held
		choice.Reason = reason(choice, availableHeld)
	}
	return choice
}

// Place decides and charges the chosen worker in one step. The reservation is
// nil if no candidate is available.
func Place(tokens int, candidates []Candidate, now time.Time) (Choice, *fleet.Reservation) {
	for range placeAttempts {
		choice := Decide(tokens, candidates, now)
		if choice.Index < 0 {
			return choice, nil
		}
		c := &candidates[choice.Index]
		if r, ok := c.Worker.Charge(c.Terms.Load, charged(c.Terms.Uncached), now); ok {
			return choice, r
		}
	}
	// Others were faster every time; their choices are as good as this one.
	choice := Decide(tokens, candidates, now)
	if choice.Index < 0 {
		return choice, nil
	}
	return choice, Force(tokens, candidates[choice.Index], now)
}

// Force charges a candidate that something else than Decide has chosen.
func Force(tokens int, c Candidate, now time.Time) *fleet.Reservation {
	return c.Worker.Place(charged(tokens-c.Held), now)
}

// charged is what a request with this many uncached tokens is charged: at least
// one, so that requests without a prompt are spread too.
func charged(uncached int) int { return max(uncached, 1) }

// survey reads every candidate's worker once and works out what the candidates
// have to be measured against: the rate of a worker that none was learned of, and
// the recent work of the least busy one.
func survey(tokens int, candidates []Candidate, now time.Time) (leastRecent float64) {
	sum, learned := 0.0, 0
	for i := range candidates {
		c := &candidates[i]
		c.Terms = Terms{
			Load:     c.Worker.Load(),
			Uncached: max(tokens-c.Held, 0),
			Rate:     c.Worker.PrefillRate(),
		}
		if c.Terms.Rate > 0 {
			sum += c.Terms.Rate
			learned++
		}
		if c.Standing == Available && !c.Terms.Load.Fits(charged(c.Terms.Uncached)) {
			c.Standing = Full
		}
	}
	rate := float64(defaultRate)
	if learned > 0 {
		rate = sum / float64(learned)
	}
	leastRecent = math.Inf(1)
	for i := range candidates {
		c := &candidates[i]
		if c.Terms.Rate == 0 {
			c.Terms.Rate = rate
		}
		c.Terms.Recent = c.Worker.Recent(now) / c.Terms.Rate
		if c.Standing == Available {
			leastRecent = min(leastRecent, c.Terms.Recent)
		}
	}
	return leastRecent
}

// weigh works out the cost of a candidate.
func (c *Candidate) weigh(leastRecent float64) {
	t := &c.Terms
	t.Wait = float64(t.Load.Queued()) / t.Rate
	t.Prefill = float64(t.Uncached) / t.Rate
	t.Decode = float64(t.Load.InFlight()*decodeTokens) / t.Rate
	if !c.Private {
		t.Spread = max(t.Recent-leastRecent, 0)
	}
	t.Cost = t.Wait + t.Prefill + t.Decode + t.Spread
}

func better(a, b *Candidate) bool {
	if a.Terms.Cost != b.Terms.Cost {
		return a.Terms.Cost < b.Terms.Cost
	}
	return a.Worker.Assigned() < b.Worker.Assigned()
}

func reason(choice Choice, availableHeld int) Reason {
	switch {
	case choice.BestHeld == 0:
		return NothingHeld
	case choice.Held < availableHeld:
		return LoadOutweighed
	case choice.Held < choice.BestHeld:
		return HolderUnavailable
	}
	return Hit
}
