package inference

import (
	"bytes"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddy-inference/caddy-inference/kvevents"
	"github.com/caddy-inference/caddy-inference/kvindex"
	"github.com/caddy-inference/caddy-inference/selection"
)

// What knowledge that is not proven at this moment counts for. A part of the tokens is taken
// as if it were not held, so that of two workers the one of which more is certain is taken;
// all are far below what computing a prompt anew costs. They are chosen, not measured.
const (
	// expectedDoubt is the part of what a worker was sent a moment ago, and has not said yet
	// to hold.
	expectedDoubt = 1.0 / 16

	// believedDoubt is the part of what it was sent at some time, if it does not say what it
	// holds. It may have been evicted since.
	believedDoubt = 1.0 / 8

	// hostLoading and storeLoading are the parts that stand for the time to load what is held
	// in the host's memory, and on disks or by other machines.
	hostLoading  = 1.0 / 16
	storeLoading = 1.0 / 4
)

// tokenSource is what knows the token ids of prompts, for policies that go by them.
type tokenSource interface {
	// promptIDs returns the ids of the request's prompt, or why they are not known. It may
	// wait for them.
	promptIDs(t *ticket, r *http.Request) (ids []uint32, cause string)
}

// exactness is what a ticket has for looking up what workers hold, and for comparing that
// with what the chosen one says to have found. It belongs to the goroutine that serves the
// request, but for taken.
type exactness struct {
	asked    bool   // for the ids: the policy goes by them, and there is a prompt
	unknown  string // why they are not known; empty if they are
	informed bool   // they are, and of some candidate what it holds
	inexact  string // why the choice was not made on exact knowledge; empty if it was

	prompt    kvindex.Prompt
	source    *feed // of the chosen worker; nil if its answer is not compared
	predicted int   // tokens that it was proven to hold
	taken     atomic.Int64
}

// holds reports whether the choice was made on exact knowledge.
func (x *exactness) holds() bool { return x.asked && x.inexact == "" }

// identify finds out the token ids of the prompt, if the policy goes by them. That is done
// for each attempt: they may have come since the one before.
func (t *ticket) identify(r *http.Request) {
	if t.owner.source == nil || t.cause != "" {
		return
	}
	x := &t.exact
	x.asked, x.source = true, nil
	if t.scratch == nil {
		return // the answer has begun
	}
	x.prompt.Tokens, x.unknown = t.owner.source.promptIDs(t, r)
	if x.unknown != "" {
		return
	}
	x.prompt.Adapter, x.prompt.Salt = t.scratch.tokens.adapter, t.scratch.tokens.salt
	p := &t.scratch.prompt
	if !t.several && !p.Partial && p.Media == 0 && t.cut == "" {
		t.tokens = len(x.prompt.Tokens)
	}
	t.state.index.Lookup(&x.prompt, t.state.clock.now(), &t.scratch.blocks)
}

// hold fills in what a candidate holds of the prompt. believed is how many tokens of it
// its worker was sent; if it is shared, other prompts begin like that.
func (t *ticket) hold(c *selection.Candidate, w *worker, believed int, shared bool, now time.Time) {
	c.Held, c.Doubt, c.Private = believed, 0, !shared
	if !t.exact.asked || t.exact.unknown != "" {
		return
	}
	f := w.feed.Load()
	why := f.inexact(now)
	if why != "" && why != kvevents.Degraded.String() {
		c.Doubt = int(believedDoubt * float64(believed))
		return
	}
	t.exact.informed = true
	h, blocks := *f.handle.Load(), &t.scratch.blocks
	var sum certainty
	sum.add(blocks.Held(h), 0)
	sum.add(blocks.HeldIn(h, kvindex.Host), hostLoading)
	sum.add(blocks.HeldIn(h, kvindex.Remote), storeLoading)
	sum.add(blocks.Expected(h), expectedDoubt)
	if why != "" { // it holds what it says, and more
		sum.add(believed, believedDoubt)
	}
	c.Held, c.Doubt = sum.held, int(sum.doubt)
	// Of what was not sent from here nobody knows who shares it: the next time it is.
	c.Private = c.Private || c.Held > believed+believed/8+fewTokens
}

// fewTokens is by how much more than an eighth what was sent and what is held may differ, as
// the one is estimated and the other comes in blocks.
const fewTokens = 64

// certainty adds up what a worker holds, from what is certain to what is not.
type certainty struct {
	held  int
	doubt float64
}

// add counts tokens from the prompt's start, of which those beyond what was counted before
// are subject to a doubt.
func (c *certainty) add(tokens int, doubt float64) {
	if more := tokens - c.held; more > 0 {
		c.held = tokens
		c.doubt += doubt * float64(more)
	}
}

// settle notes on what knowledge w was chosen. What it is sent is expected there from now on.
func (t *ticket) settle(w *worker, now time.Time) {
	x := &t.exact
	if !x.asked {
		return
	}
	f := w.feed.Load()
	x.inexact = x.unknown
	if x.inexact == "" {
		x.inexact = w.inexact(now)
	}
	w.base.exact.saw(t.model, x.inexact)
	if x.unknown != "" || f == nil {
		return
	}
	h, blocks := *f.handle.Load(), &t.scratch.blocks
	x.predicted = blocks.HeldIn(h, kvindex.Remote)
	p := &t.scratch.prompt
	fair := p.N <= 1 && !t.several && p.Media == 0 && !(f.missing.Load() && t.mayRecompute())
	if fair && x.inexact == "" && blocks.Expected(h) <= x.predicted {
		x.source = f
	}
	t.state.index.Expect(h, blocks, now)
}

// mayRecompute reports whether the request may ask for something that has engines compute a
// prompt anew that they hold: prompt_logprobs, or logprobs with echo.
func (t *ticket) mayRecompute() bool {
	return t.body == nil || bytes.Contains(t.body.data, []byte(`logprobs"`))
}

// keepIDs keeps what it takes to correct the index when the answer tells what was found, if
// that may be needed and the budget has room. The scratch is given back next.
func (t *ticket) keepIDs() {
	x := &t.exact
	ids := x.prompt.Tokens[:min(x.predicted, len(x.prompt.Tokens))]
	x.prompt.Tokens = nil
	size := int64(len(ids)) * 4
	if x.source == nil || size == 0 || !x.source.wary.Load() || !t.state.buffered.take(size) {
		return
	}
	x.taken.Store(size)
	x.prompt.Tokens = slices.Clone(ids)
	if t.ended.Load() {
		t.forgetIDs()
	}
}

// compare takes in how many tokens of the prompt the engine found in its cache.
func (t *ticket) compare(said usage) {
	x := &t.exact
	if x.source != nil && said.seen && said.cached >= 0 {
		t.state.metrics.prediction(t.worker, x.predicted, said.cached)
		x.source.saw(x.predicted, said.cached, &x.prompt, t.state.clock.now())
	}
	x.source, x.prompt.Tokens = nil, nil
	t.forgetIDs()
}

// forgetIDs gives back what the ids took of the budget, once.
func (t *ticket) forgetIDs() { t.state.buffered.give(t.exact.taken.Swap(0)) }

// uninformed reports whether the policy has nothing of what it goes by: no prompt, or, if
// it goes by what engines say that they hold and has no advice, nothing that is known so.
func (t *ticket) uninformed() bool {
	return t.cause != "" || t.exact.asked && !t.exact.informed && !t.owner.advised
}
