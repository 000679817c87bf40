package model

import (
	"errors"
	"fmt"
	"time"

	"github.com/caddy-inference/caddy-inference/radix"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// mostRouters is how many routers there may be.
const mostRouters = 64

// Options are the settings of a replay.
type Options struct {
	Engines  int     // how many
	Capacity int     // tokens that an engine's cache holds
	Rate     float64 // uncached tokens of prompts that an engine prefills a second

	// Speeds are how fast engines prefill relative to Rate, by number. Those of which
	// none is given prefill at Rate. Answers take the same time on all.
	Speeds []float64

	// Noise is by how much the time of a prefill varies: the sigma of a log-normal
	// factor with a mean of 1. It is drawn from Seed for each request of a trace in
	// turn, so a request has the same luck wherever it is placed, and what two rules
	// come to differs by their choices alone.
	Noise float64
	Seed  uint64

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

	// PrefixLength is the bytes at the beginning of a prompt by which [PrefixHash] places it.
	PrefixLength int
}

// DefaultOptions returns the settings of 8 mid-sized engines, all alike,
// behind one router: 524,288 tokens of cache, 8,000 tokens a second of prefill without
// noise, 6 ms + 0.35 ms × running requests a token, a belief that is right, and prefixes
// of 1 KiB.
func DefaultOptions() Options {
	return Options{
		Engines:          8,
		Capacity:         524_288,
		Rate:             8000,
		DecodeBase:       6 * time.Millisecond,
		DecodePerRunning: 350 * time.Microsecond,
		Routers:          1,
		Belief:           1,
		PrefixLength:     1 << 10,
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
	if err := o.validateSpeeds(); err != nil {
		return err
	}
	if !(o.Noise >= 0 && o.Noise <= 1) {
		return fmt.Errorf("a noise of %v: it must be between 0 and 1", o.Noise)
	}
	if o.DecodeBase < 0 || o.DecodePerRunning < 0 {
		return errors.New("the time that a token takes must not be negative")
	}
	if o.Routers < 1 || o.Routers > mostRouters {
		return fmt.Errorf("%d routers: there must be between 1 and %d", o.Routers, mostRouters)
	}
	if !(o.Belief >= 0 && o.Belief <= 1e6) {
		return fmt.Errorf("a belief of %v times the capacity: it must be between 0, for no limit, and 1e6", o.Belief)
	}
	if o.PrefixLength < 1 {
		return fmt.Errorf("a prefix of %d bytes: it must be at least 1", o.PrefixLength)
	}
	return nil
}

func (o Options) validateSpeeds() error {
	if len(o.Speeds) > o.Engines {
		return fmt.Errorf("%d speeds: there are only %d engines", len(o.Speeds), o.Engines)
	}
	for i, speed := range o.Speeds {
		if !(speed >= 0.01 && speed <= 100) {
			return fmt.Errorf("a speed of %v, number %d: it must be between 0.01 and 100 times the rate", speed, i+1)
		}
	}
	return nil
}

// believed returns the tokens that an engine's cache is taken to hold; 0 is no limit.
func (o Options) believed() int {
	if o.Belief == 0 {
		return 0
	}
	return max(int(o.Belief*float64(o.Capacity)), 1)
}

// rate returns the uncached tokens of prompts that an engine prefills a second.
func (o Options) rate(engine int) float64 {
	if engine < len(o.Speeds) {
		return o.Rate * o.Speeds[engine]
	}
	return o.Rate
}
