package selection

import "time"

// Thresholds is the rule of the SMG and SGLang routers, for those who come from there:
// as long as the loads of the workers, in requests, differ little, a request goes to
// the worker that holds the most of its prompt if that is more than a share of it; all
// others go to the worker with the fewest requests. (SMG, model_gateway
// policies/cache_aware.rs.)
//
// It differs in what is a fault there. A worker that cannot be chosen does not count:
// the best of those that can be takes its place, where SMG sends everything to the
// first in its list. And every holder of a prefix is known, not only the first.
type Thresholds struct {
	// Share of the prompt that a worker has to hold more than, from 0 to 1.
	Share float64
	// Absolute and Relative are what the most requests in flight on a worker must exceed
	// the fewest by, as a difference and as a factor, for the fewest to decide alone.
	Absolute int
	Relative float64
}

// Decide returns the holder of the most, or the available candidate with the fewest
// requests in flight.
func (r Thresholds) Decide(tokens int, candidates []Candidate, now time.Time) Choice {
	choice := Choice{Index: -1, Best: -1, Tokens: tokens}
	readWorkers(tokens, candidates, now)
	holder, most := -1, 0
	for i := range candidates {
		c := &candidates[i]
		if c.Held > choice.BestHeld {
			choice.Best, choice.BestHeld = i, c.Held
		}
		if c.Standing != Available {
			continue
		}
		most = max(most, c.Terms.Load.InFlight())
		if choice.Index < 0 || fewer(c, &candidates[choice.Index]) {
			choice.Index = i
		}
		if holder < 0 || c.Held > candidates[holder].Held || c.Held == candidates[holder].Held && fewer(c, &candidates[holder]) {
			holder = i
		}
	}
	if choice.Index < 0 {
		return choice
	}
	balanced := !r.apart(candidates[choice.Index].Terms.Load.InFlight(), most)
	enough := float64(candidates[holder].Held) > r.Share*float64(tokens)
	if balanced && enough {
		choice.Index = holder
	}
	choice.Held = candidates[choice.Index].Held
	choice.Reason = r.reason(choice, candidates[holder].Held, balanced)
	if choice.Held == choice.BestHeld && choice.Held > 0 {
		choice.Best = choice.Index
	}
	return choice
}

// apart reports whether loads differ so much that the fewest requests decide.
func (r Thresholds) apart(fewest, most int) bool {
	return most-fewest > r.Absolute && float64(most) > r.Relative*float64(fewest)
}

// fewer reports whether a has fewer requests in flight than b, or ever had.
func fewer(a, b *Candidate) bool {
	if n, m := a.Terms.Load.InFlight(), b.Terms.Load.InFlight(); n != m {
		return n < m
	}
	return a.Worker.Assigned() < b.Worker.Assigned()
}

// reason says why the choice was made, where the available candidate that holds the
// most holds so much.
func (r Thresholds) reason(choice Choice, held int, balanced bool) Reason {
	switch {
	case choice.BestHeld == 0:
		return NothingHeld
	case choice.Held == choice.BestHeld:
		return Hit
	case choice.Held == held:
		return HolderUnavailable
	case balanced:
		return TooLittle
	}
	return LoadOutweighed
}
