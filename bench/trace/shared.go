package trace

import "slices"

// Shared makes 20 minutes of one application's users: all prompts begin with the
// same 8,192 tokens, and each has 256 to 1,024 of its own behind them.
//
//   - 60 requests a second come at random (Poisson). What is their own is 60 % of what
//     the fleet can prefill; computed from the start, it would be eight times that.
//   - Lengths of what is a request's own are uniform. Answers are log-normal, median
//     180, sigma 0.9, from 8 to 4,000 tokens.
func Shared(seed uint64) []Request {
	const (
		minutes     = 20
		system      = 8192
		least, most = 256, 1024
		rate        = 0.60 * fleetRate / ((least + most) / 2)
	)
	g := newGenerator(seed)
	prefix := slices.Clip(beginning(0, system))
	for at := range g.poisson(rate, minutes*60) {
		length := system + g.between(least, most)
		blocks := g.closed(g.extend(prefix, length))
		g.add(at, length, g.output(), blocks)
	}
	return g.finish()
}
