// Package model replays traffic in virtual time through a rule that places
// requests, in front of modelled engines. An hour of traffic takes about a second,
// and the same input comes to the same outcome to the last digit, so that rules and
// the constants in them can be compared and routing quality can be a test.
//
// What is modelled is what a router's choice decides:
//
//   - An engine prefills one prompt after another, in the order in which they came,
//     and only what its cache does not hold when it begins. Its rate is constant; the
//     engines may differ, and a prefill may take more or less than it should.
//   - Its cache keeps whole blocks of 512 tokens, the least recently used out first.
//     A prompt's blocks are in it when its prefill is done; answers are not kept.
//   - An answer takes a constant time for each of its tokens, which is longer the
//     more requests are running when it begins.
//   - Some routers in front of the same engines can each know only what they placed.
//
// What is not: the time a router and the network take, prefills in pieces or
// together, memory that running requests take from the cache, failures, clients that
// leave, and text: what is counted in tokens is exact. All that is in package
// enginesim, in time that passes.
//
// [CacheAware] and [PrefixHash] are this plugin's policies: its tree, its ledgers and its
// choices, not a copy of them. The other rules are what they are compared with.
package model

import (
	"time"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// replay is one run of a trace.
type replay struct {
	Options
	agenda  agenda
	engines []*engine
	tally   tally
}

// Replay plays a trace to its end. The options must be valid.
func Replay(requests []trace.Request, o Options, rule Rule) Outcome {
	p := &replay{Options: o}
	for i := range o.Engines {
		p.engines = append(p.engines, &engine{replay: p, rate: o.rate(i), cache: newBlocks(o.Capacity)})
	}
	routers := make([]Placement, o.Routers)
	for i := range routers {
		routers[i] = rule(o)
	}
	lucks := o.lucks()
	for i := range requests {
		r, router, luck := &requests[i], routers[i%o.Routers], lucks.Rand()
		p.agenda.at(r.At, func(now time.Duration) {
			d := router(r, instant(now))
			p.engines[d.Engine].arrive(&job{Request: r, luck: luck, decision: d}, now)
		})
	}
	p.agenda.run()
	return p.outcome()
}

// instant returns the time of day, on some day, at a time from the start.
func instant(now time.Duration) time.Time { return time.Unix(1_700_000_000, 0).Add(now) }
