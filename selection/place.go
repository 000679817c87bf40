package selection

import (
	"time"

	"github.com/caddy-inference/caddy-inference/fleet"
)

// Rule is a way to choose among candidates.
type Rule interface {
	// Decide fills in the terms of every candidate and returns the choice for a prompt
	// of so many tokens. It changes nothing but the terms, and the standing of those that
	// turn out to be full.
	Decide(tokens int, candidates []Candidate, now time.Time) Choice
}

// placeAttempts bounds how often a decision is made again because the chosen worker's
// ledger moved.
const placeAttempts = 64

// Place decides by the rule and charges the chosen worker in one step. The reservation
// is nil if no candidate is available.
func Place[R Rule](rule R, tokens int, candidates []Candidate, now time.Time) (Choice, *fleet.Reservation) {
	for range placeAttempts {
		choice := rule.Decide(tokens, candidates, now)
		if choice.Index < 0 {
			return choice, nil
		}
		c := &candidates[choice.Index]
		if r, ok := c.Worker.Charge(c.Terms.Load, charged(c.Terms.Uncached), now); ok {
			return choice, r
		}
	}
	// Others were faster every time; their choices are as good as this one.
	choice := rule.Decide(tokens, candidates, now)
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
