package trace

import "slices"

// Burst makes 20 minutes of clients that ask the same 16 times at once and use all
// the answers, as reinforcement learning and best-of-n do.
//
//   - A burst comes every second on average (Poisson): 16 requests of one prompt in
//     the same millisecond.
//   - Three in four prompts are new: log-normal, median 8,000, sigma 1, at most 64,000
//     tokens. The fourth continues one of the 64 bursts before it with 512 to 2,048
//     tokens more.
//   - To compute what is new in a prompt once for each burst takes 15 % of what the
//     fleet can prefill. On each of 8 engines, it is more than all of it.
//   - Answers are log-normal, median 180, sigma 0.9, from 8 to 4,000 tokens.
func Burst(seed uint64) []Request {
	const (
		minutes = 20
		rate    = 1.0
		samples = 16
	)
	g := newGenerator(seed)
	var prompts []prompt
	for at := range g.poisson(rate, minutes*60) {
		p := g.sampled(prompts)
		prompts = append(prompts, p)
		blocks := g.closed(p.blocks)
		for range samples {
			g.add(at, p.length, g.output(), blocks)
		}
	}
	return g.finish()
}

// prompt is what a burst asks.
type prompt struct {
	length int      // tokens
	blocks []uint64 // that it fills
}

// sampled returns the prompt of the next burst.
func (g *generator) sampled(earlier []prompt) prompt {
	const reach = 64
	if g.random.IntN(4) > 0 || len(earlier) == 0 {
		length := g.document(8000, 64_000)
		return prompt{length, g.extend(nil, length)}
	}
	from := earlier[len(earlier)-1-g.random.IntN(min(len(earlier), reach))]
	length := min(from.length+g.between(512, 2048), longest)
	return prompt{length, g.extend(slices.Clip(from.blocks), length)}
}
