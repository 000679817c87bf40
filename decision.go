package inference

import (
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-inference/caddy-inference/fleet"
	"github.com/caddy-inference/caddy-inference/selection"
)

// tokenCounts are the four figures every request is accounted in, in tokens.
type tokenCounts struct {
	prompt int // of the prompt
	best   int // of these, held by the worker that held the most
	held   int // held by the chosen worker
	cached int // found in its cache by the engine; -1 if it did not say
}

// reason is why an upstream was chosen: one of selection's reasons, or fallback.
type reason selection.Reason

const (
	fallback = reason(selection.Reasons)
	reasons  = int(fallback) + 1
)

func (r reason) String() string {
	if r == fallback {
		return "fallback"
	}
	return selection.Reason(r).String()
}

// decision is what is told about one request: in the access log, in
// placeholders, in metrics. It holds nothing of the prompt.
type decision struct {
	policy   string
	upstream string
	model    *fleet.Model
	api      string
	reason   reason
	cause    string // of a fallback
	attempts int
	queued   int // tokens queued on the chosen worker before this request

	holder       string // the upstream that held the most, if another was chosen
	holderQueued int    // tokens queued there

	tokenCounts
	asked      bool   // the policy goes by exact knowledge
	inexact    string // why there was none of the chosen upstream; empty if there was
	cut        string // the limit beyond which the body was not read
	firstToken time.Duration
	broken     bool // the answer did not come to its end
}

// choose writes down a choice.
func (d *decision) choose(t *ticket, choice selection.Choice, why reason, queued int) {
	d.upstream = ""
	if t.worker != nil {
		d.upstream = t.worker.Address()
	}
	d.model = t.model
	d.api = t.api.String()
	d.reason = why
	d.cause = t.cause
	d.attempts = t.attempts
	d.queued = queued
	d.holder, d.holderQueued = "", 0
	d.asked, d.inexact = t.exact.asked, t.exact.inexact
	d.cut = t.cut
	d.broken, d.firstToken = false, 0
	d.tokenCounts = tokenCounts{prompt: t.tokens, best: choice.BestHeld, held: choice.Held, cached: -1}
}

// answered takes in what the engine counted, and puts what was believed on the
// same scale.
func (d *decision) answered(t *ticket, said usage) {
	if !said.seen {
		return
	}
	d.cached = said.cached
	if said.prompt <= 0 {
		return
	}
	if d.prompt > 0 {
		d.best, d.held = t.scale(d.best, said.prompt), t.scale(d.held, said.prompt)
	}
	d.prompt = said.prompt
}

// scale puts what was believed to be held of the prompt on the scale of what the engine
// counted in it. Of several prompts only the first is believed held, while the engine counts
// for each what they have in common, such as the query of a ranking: what is held of the
// first is no more for that.
func (t *ticket) scale(held, counted int) int {
	scaled := int(int64(held) * int64(counted) / int64(t.decision.prompt))
	if t.several {
		return min(scaled, held)
	}
	return scaled
}

func (d *decision) logField() zap.Field { return zap.Object("inference", d) }

// MarshalLogObject implements zapcore.ObjectMarshaler. The access log calls it
// when the request is over.
func (d *decision) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	enc.AddString("policy", d.policy)
	if d.model == nil {
		return nil // it was never asked to choose
	}
	if d.upstream != "" {
		enc.AddString("upstream", d.upstream)
	}
	enc.AddString("api", d.api)
	enc.AddString("model", d.model.Name())
	enc.AddString("reason", d.reason.String())
	if d.cause != "" {
		enc.AddString("cause", d.cause)
	}
	enc.AddInt("prompt_tokens", d.prompt)
	enc.AddInt("best_held_tokens", d.best)
	enc.AddInt("held_tokens", d.held)
	if d.cached >= 0 {
		enc.AddInt("cached_tokens", d.cached)
	}
	enc.AddInt("queued_tokens", d.queued)
	if d.holder != "" {
		enc.AddString("holder", d.holder)
		enc.AddInt("holder_queued_tokens", d.holderQueued)
	}
	if d.asked {
		enc.AddBool("exact", d.inexact == "")
	}
	if d.inexact != "" {
		enc.AddString("inexact", d.inexact)
	}
	if d.cut != "" {
		enc.AddString("cut", d.cut)
	}
	enc.AddInt("attempts", d.attempts)
	if d.firstToken > 0 {
		enc.AddDuration("first_token", d.firstToken)
	}
	if d.broken {
		enc.AddBool("broken", true)
	}
	return nil
}

// placeholderPrefix begins the names of all our placeholders.
const placeholderPrefix = "http.inference."

// placeholder resolves {http.inference.*}.
func (d *decision) placeholder(key string) (any, bool) {
	name, ours := strings.CutPrefix(key, placeholderPrefix)
	if !ours {
		return nil, false
	}
	switch name {
	case "policy":
		return d.policy, true
	case "upstream":
		return d.upstream, true
	case "model":
		if d.model == nil {
			return "", true
		}
		return d.model.Name(), true
	case "api":
		return d.api, true
	case "reason":
		return d.reason.String(), true
	case "cause":
		return d.cause, true
	case "prompt_tokens":
		return d.prompt, true
	case "best_held_tokens":
		return d.best, true
	case "held_tokens":
		return d.held, true
	case "cached_tokens":
		if d.cached < 0 {
			return "", true
		}
		return d.cached, true
	case "queued_tokens":
		return d.queued, true
	case "holder":
		return d.holder, true
	case "holder_queued_tokens":
		return d.holderQueued, true
	case "exact":
		return d.asked && d.inexact == "", true
	case "inexact":
		return d.inexact, true
	case "cut":
		return d.cut, true
	case "broken":
		return d.broken, true
	case "attempts":
		return d.attempts, true
	case "first_token":
		if d.firstToken == 0 {
			return "", true
		}
		return d.firstToken, true
	}
	return nil, false
}

var _ zapcore.ObjectMarshaler = (*decision)(nil)
