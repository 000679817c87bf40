package selection

import (
	"math"
	"time"

	"github.com/caddy-inference/caddy-inference/fleet"
)

// What other values of these do is in docs/constants.md, which `go run ./sweep -all`
// in bench has printed.
const (
	// defaultRate is the prefill rate, in tokens a second, of a worker in a fleet
	// of which nothing has been learned yet. It scales all costs alike.
	defaultRate = 8000

	// workWeight is what a token that this request has to compute weighs against one
	// that is queued before it. Both delay this request alike, but only the first
	// delays others too: waiting for what somebody else computes is better than
	// computing it once more. 1.1: at 1 bursts of one prompt take 59 to 90 % longer; 1.05
	// is up to 2 % better and nearer to that; above it bursts and what all share get slower.
	workWeight = 1.1

	// decodeTokens is what a request in flight costs the next one, in prefill tokens.
	// 64: less is up to 8 % faster where all is shared and up to 5 % slower in bursts, but
	// in the model that says so running answers do not slow down a prefill. 256 is up to 9 %
	// slower.
	decodeTokens = 64

	// spreadShare is how many tokens may be computed again elsewhere, to have them
	// there too, for each that has to be computed anyway. 32: without, agents wait 12 to
	// 13 % longer; from 16 on it is all the same.
	spreadShare = 32

	// rateNoise is the ratio within which two prefill rates are the same. 1.5: with 1, noise
	// alone has requests wait 34 to 141 % longer where all is shared; with 2, an engine at
	// half speed has them wait 132 % longer.
	rateNoise = 1.5

	// overdueWeight is what each second counts for which something should have been heard of
	// a worker. Of one that is stuck nothing can be known but that: the longer it has been
	// silent, the longer it will be, and a request that goes there is lost, while one that
	// goes elsewhere without need only computes its prompt once more.
	overdueWeight = 4

	// slowest is the least share of the fastest rate that is reckoned with. With 1/2, an
	// engine at a quarter of the speed has requests wait 54 % longer where all is shared;
	// less than 1/4 changes nothing.
	slowest = 1.0 / 4
)

// Cost is the rule by which the least predicted time to the first token wins.
type Cost struct{}

// Decide returns the cheapest of the available candidates.
//
// A candidate's cost is the time this request is predicted to wait for its first
// token there: what is left of the prefills queued before it and its own uncached
// tokens, at the worker's prefill rate, plus a little for every request in
// flight. Ties go to the fewest requests of late, then to the fewest ever.
//
// A worker of which nothing was heard for much longer than its work should take is
// predicted to need as long again, and longer: it may be stuck. It is not put out, as it
// may as well be slow, and with its next first token it is as good as ever.
//
// One more term keeps a beginning that many prompts share from gathering them
// all on its first holder while the fleet idles. Going elsewhere costs one more
// prefill of that beginning, and buys a second holder of it. As with renting or
// buying, it is bought when the rent paid so far has reached the price: the work
// a worker was given of late beyond the least busy one's counts as cost, unless
// what it holds is this conversation's own past, which nobody else can use. At
// most it makes the worker look as if it held nothing, so that nobody waits
// elsewhere for a copy; and a request that has next to nothing to compute there is
// not sent to compute all of it elsewhere. As queues fill, they say the same and
// say it better, so the term fades: the work of late is weighed by the fourth
// power of the share of workers without a queue.
func (Cost) Decide(tokens int, candidates []Candidate, now time.Time) Choice {
	choice := Choice{Index: -1, Best: -1, Tokens: tokens}
	around := survey(tokens, candidates, now)
	holder, most := -1, 0 // the available candidate that holds the most; the most of all
	for i := range candidates {
		c := &candidates[i]
		c.weigh(around)
		if c.sure() > most {
			most = c.sure()
			choice.Best, choice.BestHeld = i, c.Held
		}
		if c.Standing != Available {
			continue
		}
		if holder < 0 || c.sure() > candidates[holder].sure() {
			holder = i
		}
		if choice.Index < 0 || better(c, &candidates[choice.Index]) {
			choice.Index = i
		}
	}
	if choice.Index < 0 {
		return choice
	}
	chosen := &candidates[choice.Index]
	choice.Held = chosen.Held
	choice.Reason = reason(most, chosen, &candidates[holder])
	if chosen.sure() == most && most > 0 {
		choice.Best, choice.BestHeld = choice.Index, choice.Held
	}
	return choice
}

// surroundings is what a candidate is weighed against: the others.
type surroundings struct {
	recent float64 // work of late, in seconds, of the least busy available worker
	spread float64 // weight of the work of late beyond that
}

// survey reads every candidate's worker once.
func survey(tokens int, candidates []Candidate, now time.Time) surroundings {
	fastest := readWorkers(tokens, candidates, now)
	around := surroundings{recent: math.Inf(1)}
	available, idle := 0, 0
	for i := range candidates {
		c := &candidates[i]
		t := &c.Terms
		t.Rate = effectiveRate(t.Rate, fastest)
		t.Recent = c.Worker.Recent(now) / t.Rate
		t.Requests = c.Worker.RecentRequests(now)
		t.Wait = wait(c.Worker, t, now)
		t.Overdue = 0
		if overdue := c.Worker.Overdue(now); overdue > 0 {
			t.Overdue = overdue.Seconds()
			t.Wait += overdueWeight * t.Overdue
		}
		if c.Standing != Available {
			continue
		}
		available++
		if t.Overdue == 0 { // else it is given little whatever it did
			around.recent = min(around.recent, t.Recent)
		}
		if t.Load.Queued() == 0 {
			idle++
		}
	}
	if available > 0 {
		around.spread = fade(float64(idle) / float64(available))
	}
	return around
}

// readWorkers reads ledgers and rates, and returns the rate of the fastest worker
// of which one was learned.
func readWorkers(tokens int, candidates []Candidate, now time.Time) (fastest float64) {
	for i := range candidates {
		c := &candidates[i]
		t := &c.Terms
		t.Load = c.Worker.Load()
		t.Uncached = max(tokens-c.sure(), 0)
		t.Rate = c.Worker.PrefillRate(now)
		fastest = max(fastest, t.Rate)
		if c.Standing == Available && !t.Load.Fits(charged(t.Uncached)) {
			c.Standing = Full
		}
	}
	if fastest == 0 {
		return defaultRate
	}
	return fastest
}

// effectiveRate is the prefill rate to reckon with for a worker: that of the
// fastest, unless its own is surely another. Rates that are nearly equal are
// noise, and would have one worker win every tie; only what is beyond rateNoise
// counts. Of one that is not known the best is thought, or it would never be.
func effectiveRate(learned, fastest float64) float64 {
	if learned == 0 || learned > fastest/rateNoise {
		return fastest
	}
	return max(learned*rateNoise, fastest*slowest)
}

// wait predicts how long what is queued will take. The engine is already some way
// into the oldest prefill.
func wait(w *fleet.Worker, t *Terms, now time.Time) float64 {
	queued := float64(t.Load.Queued())
	if queued == 0 {
		return 0
	}
	oldest, since := w.Prefilling(now)
	done := min(since.Seconds()*t.Rate, float64(oldest), queued)
	return (queued - done) / t.Rate
}

// fade is the share to the fourth power: the square is up to 3 % better where all is
// shared, and up to 2 % worse with agents on small caches (docs/constants.md).
func fade(share float64) float64 {
	share *= share
	return share * share
}

// weigh works out the cost of a candidate.
func (c *Candidate) weigh(around surroundings) {
	t := &c.Terms
	each := 1 / t.Rate // a token's time; divisions are what takes time here
	t.Prefill = workWeight * float64(t.Uncached) * each
	t.Decode = float64(t.Load.InFlight()*decodeTokens) * each
	t.Spread = 0
	if !c.Private {
		most := min(c.Held, spreadShare*t.Uncached)
		t.Spread = min(around.spread*max(t.Recent-around.recent, 0), workWeight*float64(most)*each)
	}
	t.Cost = t.Wait + t.Prefill + t.Decode + t.Spread
}

// tie is the difference, in seconds, below which two costs are equal: what is left
// of sums of the same numbers in another order.
const tie = 1e-9

// better reports whether a is to be taken rather than b. That equals are taken by their
// requests of late is 5 to 9 % faster with agents than the first in the list, and 3 %
// with long conversations than fewest ever (docs/constants.md).
func better(a, b *Candidate) bool {
	if d := a.Terms.Cost - b.Terms.Cost; math.Abs(d) > tie {
		return d < 0
	}
	if a.Terms.Requests != b.Terms.Requests {
		return a.Terms.Requests < b.Terms.Requests
	}
	return a.Worker.Assigned() < b.Worker.Assigned()
}

// reason says why the chosen candidate was taken and not the available one that
// holds the most. most is what any candidate holds.
func reason(most int, chosen, holder *Candidate) Reason {
	switch {
	case most == 0:
		return NothingHeld
	case chosen.sure() < holder.sure():
		if holder.Terms.Cost-holder.Terms.Spread < chosen.Terms.Cost-chosen.Terms.Spread {
			return Spread
		}
		return LoadOutweighed
	case chosen.sure() < most:
		return HolderUnavailable
	}
	return Hit
}
