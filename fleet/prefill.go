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

	// sampleKeep is what each sample leaves of the ones before: about twenty count. With
	// ten, requests with one engine at half speed wait up to 7 % longer where all is
	// shared; fifty are slow to see that a speed has changed (docs/constants.md).
	sampleKeep = 0.95

	// minSamples is the number of requests that make a rate: the first ones after
	// a start may have waited for a compiler. Two more or less change little
	// (docs/constants.md).
	minSamples = 4

	// rateLife is how long a rate is believed without another sample. With 15 s agents
	// wait up to 29 % longer when one engine is slow, with more it is all the same
	// (docs/constants.md).
	rateLife = time.Minute
)

// prefill learns how fast a worker prefills, compared with the fleet.
//
// An engine serves prefills one after another, or several in one step, so the
// time one of them took is not its time to first token but the time since the
// one before it was done, if that is later than its own arrival. Summed over
// some requests these times, over what they take in the fleet, are how slow the
// worker is, queue or no queue.
type prefill struct {
	last atomic.Int64  // UnixNano of the latest first token
	rate atomic.Uint64 // float64 bits, tokens a second; 0 until learned
	at   atomic.Int64  // UnixNano of the latest sample

	mu      sync.Mutex // guards what follows, and who writes rate
	samples int
	n       float64 // as samples, but those of long ago count less
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
func (p *prefill) learn(fleet *pace, tokens int, took time.Duration) {
	if tokens < minLearned {
		return
	}
	fleet.add(float64(tokens), took.Seconds())
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.last.Load(); now-p.at.Swap(now) > int64(rateLife) {
		p.forget()
	}
	p.samples++
	p.n = p.n*sampleKeep + 1
	p.tokens = p.tokens*sampleKeep + float64(tokens)
	p.seconds = p.seconds*sampleKeep + took.Seconds()
	if p.samples < minSamples || p.seconds <= 0 {
		return
	}
	rate, usual := fleet.rate(p.n, p.tokens)
	p.rate.Store(math.Float64bits(rate * usual / p.seconds))
}

// forget begins anew. p.mu is held.
func (p *prefill) forget() {
	p.samples, p.n, p.tokens, p.seconds = 0, 0, 0, 0
	p.rate.Store(0)
}

// PrefillRate returns the tokens a second the worker would prefill of what the fleet is
// given, by what it has been seen to do; 0 until that is learned and when nothing has
// confirmed it for a while: a worker that was slow once is given another chance.
func (w *Worker) PrefillRate(now time.Time) float64 {
	p := &w.prefill
	rate := p.rate.Load()
	if rate == 0 || now.UnixNano()-p.at.Load() > int64(rateLife) {
		return 0
	}
	return math.Float64frombits(rate)
}

// ForgetRate drops what was learned about the worker's prefill rate, for an
// engine that was restarted and may be another one now.
func (w *Worker) ForgetRate() {
	p := &w.prefill
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget()
}
