package trace

import (
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// The fleet that generated traffic is made for: 8 engines that prefill 8,000
// tokens a second each.
const fleetRate = 8 * 8000.0

// longest is the tokens at which a session ends: an engine's context with room for
// an answer.
const longest = 120_000

// generator is what the generators draw from, and what they make.
type generator struct {
	random   *rand.Rand
	block    uint64 // id of the latest block
	requests []Request
}

// newGenerator returns one that makes the same of the same seed.
func newGenerator(seed uint64) *generator {
	return &generator{
		random: rand.New(rand.NewPCG(seed, 0)), //nolint:gosec // it has to repeat
		block:  1 << 20,                        // smaller ids are those of shared beginnings
	}
}

// finish returns what was made, in order of time.
func (g *generator) finish() []Request {
	slices.SortStableFunc(g.requests, byTime)
	return g.requests
}

// add makes a request, in seconds from the start. Times are whole milliseconds, as
// in files.
func (g *generator) add(at float64, input, output int, blocks []uint64) {
	whole := time.Duration(math.Round(at*1000)) * time.Millisecond
	g.requests = append(g.requests, Request{At: whole, Input: input, Output: output, Blocks: blocks})
}

// poisson yields times, in seconds, that come at random, so many a second, until
// end.
func (g *generator) poisson(rate, end float64) iter.Seq[float64] {
	return func(yield func(float64) bool) {
		for at := g.random.ExpFloat64() / rate; at < end; at += g.random.ExpFloat64() / rate {
			if !yield(at) {
				return
			}
		}
	}
}

func (g *generator) logNormal(median, sigma float64) float64 {
	return median * math.Exp(sigma*g.random.NormFloat64())
}

// between returns a number of tokens from least to most.
func (g *generator) between(least, most int) int { return least + g.random.IntN(most-least+1) }

// output returns the length of an answer in tokens: log-normal with a median of 180
// and a sigma of 0.9, from 8 to 4,000.
func (g *generator) output() int { return int(min(max(g.logNormal(180, 0.9), 8), 4000)) }

// pause returns the seconds that a client takes for its next turn: one time in
// eight a person's question, exponential with a mean of 60 s, else a tool's answer,
// log-normal with a median of 1.5 s and a sigma of 1.1.
func (g *generator) pause() float64 {
	pause := g.logNormal(1.5, 1.1)
	if g.random.IntN(8) == 0 {
		return g.random.ExpFloat64() * 60
	}
	return pause
}

// next returns the id of a block that no other prompt has.
func (g *generator) next() uint64 {
	g.block++
	return g.block
}

// extend appends new blocks until there are as many as a prompt of this length
// fills.
func (g *generator) extend(blocks []uint64, tokens int) []uint64 {
	for len(blocks) < tokens/BlockTokens {
		blocks = append(blocks, g.next())
	}
	return blocks
}

// closed returns the blocks of a prompt that ends here: those it fills and a last
// one of its own, which in the next turn is another one.
func (g *generator) closed(blocks []uint64) []uint64 {
	return append(slices.Clone(blocks), g.next())
}

// beginning returns the blocks that prompts with the same beginning share, of which
// there are several, by number.
func beginning(number, tokens int) []uint64 {
	blocks := make([]uint64, tokens/BlockTokens)
	for i := range blocks {
		blocks[i] = uint64(number)<<16 + uint64(i) //nolint:gosec // neither is negative
	}
	return blocks
}
