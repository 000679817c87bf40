package trace

// products are what agents' sessions are sessions of, each with a system prompt and
// tools of its own.
var products = []struct {
	tokens int     // of system prompt and tools
	share  float64 // of the sessions
}{{30_000, .35}, {18_000, .25}, {11_000, .20}, {6_000, .15}, {2_000, .05}}

// Agents makes an hour of coding and tool agents, which is what most fleets serve
// now: much is shared, within a conversation and between them.
//
//   - Five products, with 30,000, 18,000, 11,000, 6,000 and 2,000 tokens of system
//     prompt and tools and 35, 25, 20, 15 and 5 % of the sessions. All sessions of a
//     product begin with the same.
//   - 0.22 sessions a second start at random (Poisson), of 1 + exponential (mean 11)
//     turns.
//   - A turn adds tokens: log-normal with a median of 1,500 in the first turn and 700
//     later, sigma 1, at most 20,000. Its answer is log-normal, median 180, sigma 0.9,
//     from 8 to 4,000 tokens, and part of the next prompt.
//   - The next turn comes 1 s and 12 ms for each token of the answer later, and after
//     a pause: one time in eight a person's, exponential with a mean of 60 s, else a
//     tool's, log-normal with a median of 1.5 s and a sigma of 1.1.
//   - A session ends before its prompt is longer than 120,000 tokens. The last block
//     of a prompt, which is a part, is no other prompt's.
func Agents(seed uint64) []Request {
	const hour = 3600
	g := newGenerator(seed)
	for at := range g.poisson(0.22, hour) {
		product := g.product()
		tokens := products[product].tokens
		s := &session{at: at, length: tokens, blocks: beginning(product, tokens)}
		median := 1500.0
		for range g.turns() {
			added := int(min(g.logNormal(median, 1), 20_000))
			if s.length+added > longest || s.at >= hour {
				break
			}
			g.turn(s, added)
			median = 700
		}
	}
	return g.finish()
}

// product draws one by their shares.
func (g *generator) product() int {
	pick := g.random.Float64()
	for i, p := range products {
		if pick -= p.share; pick <= 0 {
			return i
		}
	}
	return len(products) - 1
}
