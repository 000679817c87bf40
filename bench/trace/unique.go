package trace

// Unique makes 20 minutes of prompts that have nothing in common, as documents to
// summarize have: no cache is of any use.
//
//   - 6.1 requests a second come at random (Poisson), which takes 60 % of what the
//     fleet can prefill.
//   - Prompts are log-normal, median 4,000, sigma 1, at most 32,000 tokens: 6,270 on
//     average. Answers are log-normal, median 180, sigma 0.9, from 8 to 4,000 tokens.
func Unique(seed uint64) []Request {
	const (
		minutes = 20
		mean    = 6270
		rate    = 0.60 * fleetRate / mean
	)
	g := newGenerator(seed)
	for at := range g.poisson(rate, minutes*60) {
		length := g.document(4000, 32_000)
		g.add(at, length, g.output(), g.closed(g.extend(nil, length)))
	}
	return g.finish()
}

// document returns the length of a text in tokens: log-normal with a sigma of 1.
func (g *generator) document(median float64, most int) int {
	return min(max(int(g.logNormal(median, 1)), 1), most)
}
