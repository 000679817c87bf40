package model

import (
	"cmp"
	"time"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// LeastUncached places a request where it and what is left of those before it will be
// computed first, of several engines on the one that was sent the fewest. An engine is
// believed to hold what it was sent, block by block, up to the believed capacity, and
// to compute at the rate that it has, which a router is not told. It is the simplest
// rule that weighs cache against load, and a yardstick for [CacheAware].
func LeastUncached(o Options) Placement {
	accounts := make([]account, o.Engines)
	for i := range accounts {
		accounts[i] = account{belief: newBlocks(o.believed()), rate: o.rate(i)}
	}
	return func(r *trace.Request, now time.Time) Decision {
		least, until := -1, time.Time{}
		for i := range accounts {
			done := accounts[i].done(r, now)
			if least < 0 || cmp.Or(done.Compare(until), accounts[i].sent-accounts[least].sent) < 0 {
				least, until = i, done
			}
		}
		a := &accounts[least]
		a.belief.store(r.Blocks)
		a.until = until
		a.sent++
		return Decision{Engine: least}
	}
}

// account is what a router has sent to an engine.
type account struct {
	belief *blocks
	rate   float64   // tokens that it computes a second
	until  time.Time // when all of it will be prefilled
	sent   int       // requests
}

// done returns when a request that comes now would be prefilled.
func (a *account) done(r *trace.Request, now time.Time) time.Time {
	begins := now
	if a.until.After(now) {
		begins = a.until
	}
	uncached := r.Input - r.Cached(a.belief.holds)
	return begins.Add(time.Duration(float64(uncached) / a.rate * float64(time.Second)))
}
