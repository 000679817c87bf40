// Package model replays traffic in virtual time through a rule that places
// requests, in front of modelled engines. An hour of traffic takes about a second,
// and the same input comes to the same outcome to the last digit, so that rules and
// the constants in them can be compared and routing quality can be a test.
//
// What is modelled is what a router's choice decides:
//
//   - An engine prefills one prompt after another, in the order in which they came,
//     at a constant rate, and only what its cache does not hold when it begins.
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
// [CacheAware] is this plugin's policy: its tree, its ledgers and its choice, not a
// copy of them. The other rules are what it is compared with.
package model

import (
	"errors"
	"fmt"
	"time"

	"github.com/caddy-inference/caddy-inference/radix"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// Options are the settings of a replay.
type Options struct {
	Engines  int     // how many, all alike
	Capacity int     // tokens that an engine's cache holds
	Rate     float64 // uncached tokens of prompts that an engine prefills a second

	// DecodeBase and DecodePerRunning are what a token of an answer takes: DecodeBase +
	// DecodePerRunning × requests that are running when it begins.
	DecodeBase       time.Duration
	DecodePerRunning time.Duration

	// Routers is how many routers the requests alternate between. They know nothing
	// of each other.
	Routers int

	// Belief is the capacity that a rule which reckons with caches takes an engine's
	// to have, as a share of what it has. 0 is no limit.
	Belief float64
}

// DefaultOptions returns the settings of 8 mid-sized engines behind one router:
// 524,288 tokens of cache, 8,000 tokens a second of prefill, 6 ms + 0.35 ms × running
// requests a token, and a belief that is right.
func DefaultOptions() Options {
	return Options{
		Engines:          8,
		Capacity:         524_288,
		Rate:             8000,
		DecodeBase:       6 * time.Millisecond,
		DecodePerRunning: 350 * time.Microsecond,
		Routers:          1,
		Belief:           1,
	}
}

// Validate reports the first setting that cannot be replayed with.
func (o Options) Validate() error {
	if o.Engines < 1 || o.Engines > radix.MaxWorkers {
		return fmt.Errorf("%d engines: there must be between 1 and %d", o.Engines, radix.MaxWorkers)
	}
	if o.Capacity < trace.BlockTokens {
		return fmt.Errorf("a capacity of %d tokens: it must be at least a block of %d", o.Capacity, trace.BlockTokens)
	}
	if !(o.Rate >= 1 && o.Rate <= 1e9) {
		return fmt.Errorf("a prefill rate of %v: it must be between 1 and 1e9 tokens a second", o.Rate)
	}
	if o.DecodeBase < 0 || o.DecodePerRunning < 0 {
		return errors.New("the time that a token takes must not be negative")
	}
	if o.Routers < 1 || o.Routers > o.mostRouters() {
		return fmt.Errorf("%d routers: there must be between 1 and %d", o.Routers, o.mostRouters())
	}
	if !(o.Belief >= 0 && o.Belief <= 1e6) {
		return fmt.Errorf("a belief of %v times the capacity: it must be between 0, for no limit, and 1e6", o.Belief)
	}
	return nil
}

func (Options) mostRouters() int { return 64 }

// believed returns the tokens that an engine's cache is taken to hold; 0 is no limit.
func (o Options) believed() int { return int(o.Belief * float64(o.Capacity)) }

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
	for range o.Engines {
		p.engines = append(p.engines, &engine{replay: p, cache: newBlocks(o.Capacity)})
	}
	routers := make([]Placement, o.Routers)
	for i := range routers {
		routers[i] = rule(o)
	}
	for i := range requests {
		r, router := &requests[i], routers[i%o.Routers]
		p.agenda.at(r.At, func(now time.Duration) {
			d := router(r, instant(now))
			p.engines[d.Engine].arrive(&job{Request: r, decision: d}, now)
		})
	}
	p.agenda.run()
	return p.outcome()
}

// instant returns the time of day, on some day, at a time from the start.
func instant(now time.Duration) time.Time { return time.Unix(1_700_000_000, 0).Add(now) }
