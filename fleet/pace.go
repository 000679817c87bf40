package fleet

import "sync"

const (
	// paceKeep is what each sample leaves of the ones before: about fifty count.
	paceKeep = 0.98

	// paceSpread is how much the sizes of the samples have to differ, as a share of
	// their square, to tell what a token takes from what a request takes.
	paceSpread = 0.05
)

// pace is how long prefills take in the fleet: so much for a request, and so much
// for each of its tokens, by least squares. It is what a worker's own times are
// compared with, so that nobody looks fast for having been given the large prompts.
type pace struct {
	mu sync.Mutex
	n  float64 // samples
	x  float64 // tokens
	y  float64 // seconds
	xx float64
	xy float64
}

// add takes in a prefill.
func (p *pace) add(tokens, seconds float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n = p.n*paceKeep + 1
	p.x = p.x*paceKeep + tokens
	p.y = p.y*paceKeep + seconds
	p.xx = p.xx*paceKeep + tokens*tokens
	p.xy = p.xy*paceKeep + tokens*seconds
}

// rate returns the tokens a second that the fleet's workers prefill, and how many
// seconds n requests of together so many tokens take one of them.
func (p *pace) rate(n, tokens float64) (rate, seconds float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.y == 0 {
		return 0, 0
	}
	rate = p.x / p.y
	spread := p.n*p.xx - p.x*p.x
	if spread < paceSpread*p.n*p.xx {
		return rate, tokens / rate
	}
	each := max((p.n*p.xy-p.x*p.y)/spread, 0)
	request := (p.y - each*p.x) / p.n
	if request < 0 {
		return rate, tokens * p.xy / p.xx
	}
	return rate, n*request + tokens*each
}
