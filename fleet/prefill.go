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

	mu      sync.Mutex
	tokens  float64
	seconds float64
}

// finished notes a first token and returns how long its prefill took.
func (p *prefill) finished(charged, now time.Time) time.Duration {
	at := now.UnixNano()
	before := p.last.Swap(at)
	return time.Duration(max(at-max(before, charged.UnixNano()), 1))
}

func (p *prefill) learn(tokens int, took time.Duration) {
	if tokens < minLearned {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	keep := max(0, 1-float64(tokens)/learnedTokens)
	p.tokens = p.tokens*keep + float64(tokens)
	p.seconds = p.seconds*keep + took.Seconds()
	if p.seconds > 0 {
		p.rate.Store(math.Float64bits(p.tokens / p.seconds))
	}
}

// PrefillRate returns the tokens a second the worker has been seen to prefill, 0
// until it is learned.
func (w *Worker) PrefillRate() float64 {
	return math.Float64frombits(w.prefill.rate.Load())
}

// ForgetRate drops what was learned about the worker's prefill rate, for an
// engine that was restarted and may be another one now.
func (w *Worker) ForgetRate() {
	p := &w.prefill
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens, p.seconds = 0, 0
	p.rate.Store(0)
}
