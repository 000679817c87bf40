package fleet

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// minLearned is the least uncached tokens of a request that says something
	// about a prefill rate; below it the time is the network's and the
	// scheduler's.
	minLearned = 256

	// learnedTokens is the number of prefilled tokens a rate is averaged over.
	learnedTokens = 100_000

	// minSamples is the number of requests that make a rate: the first ones after
	// a start may have waited for a compiler.
	minSamples = 4

	// rateLife is how long a rate is believed without another sample.
	rateLife = time.Minute
)

// prefill learns how many tokens a second a worker prefills.
//
// An engine serves prefills one after another, or several in one step, so the
// time one of them took is not its time to first token but the time since the
// one before it was done, if that is later than its own arrival. Summed over
// many requests the tokens over these times are the rate, queue or no queue.
type prefill struct {
	last atomic.Int64  // UnixNano of the latest first token
	rate atomic.Uint64 // float64 bits, tokens a second; 0 until learned
	at   atomic.Int64  // UnixNano of the latest sample

	mu      sync.Mutex // guards what follows, and who writes rate
	samples int
	tokens  float64
	seconds float64
}

// finished notes a first token and returns how long its prefill took.
func (p *prefill) finished(charged, now time.Time) time.Duration {
	at := now.UnixNano()
	before := p.last.Swap(at)
	return time.Duration(max(at-max(before, charged.UnixNano()), 1))
}

// learn takes in a request whose prefill of this many uncached tokens took so long.
func (p *prefill) learn(tokens int, took time.Duration) {
	if tokens < minLearned {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.last.Load(); now-p.at.Swap(now) > int64(rateLife) {
		p.forget()
	}
	keep := max(0, 1-float64(tokens)/learnedTokens)
	p.tokens = p.tokens*keep + float64(tokens)
	p.seconds = p.seconds*keep + took.Seconds()
	p.samples++
	if p.seconds > 0 && p.samples >= minSamples {
		p.rate.Store(math.Float64bits(p.tokens / p.seconds))
	}
}

// forget begins anew. p.mu is held.
func (p *prefill) forget() {
	p.samples, p.tokens, p.seconds = 0, 0, 0
	p.rate.Store(0)
}

// PrefillRate returns the tokens a second the worker has been seen to prefill, 0
// until it is learned and when nothing has confirmed it for a while: a worker that
// was slow once is given another chance.
func (w *Worker) PrefillRate(now time.Time) float64 {
	p := &w.prefill
	if now.UnixNano()-p.at.Load() > int64(rateLife) {
		return 0
	}
	return math.Float64frombits(p.rate.Load())
}

// ForgetRate drops what was learned about the worker's prefill rate, for an
// engine that was restarted and may be another one now.
func (w *Worker) ForgetRate() {
	p := &w.prefill
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget()
}
