package inference

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-inference/caddy-inference/fleet"
	"github.com/caddy-inference/caddy-inference/selection"
)

// CacheAware is a selection policy for fleets of LLM engines. It sends a request
// where it will wait least for its first token: to an engine that still holds the
// beginning of its prompt in the KV cache, unless the work queued there would
// take longer than computing that beginning again.
//
// It remembers which prompts it sent where, as fingerprints and not as text, and
// needs nothing from the engines. What an engine is believed to hold ends where
// the engine's own cache ends, if its metrics page tells the size.
//
// Requests that it can make nothing of go to the least loaded upstream. Every
// choice is accounted for in tokens: in the access log under `inference`, in
// metrics `caddy_inference_*`, and in these placeholders:
//
// Placeholder | Description
// ------------|-------------
// `{http.inference.policy}` | The policy that chose
// `{http.inference.upstream}` | The chosen upstream
// `{http.inference.model}` | The model, or `other` if no engine has answered for its name yet
// `{http.inference.api}` | The API the request speaks, such as `chat` or `responses`, or `unknown`
// `{http.inference.reason}` | Why: `hit`, `load` (another holds more, but its queue is longer), `spread` (another holds more, and a copy was due), `too_little` (another holds more, but not enough for `threshold` scoring), `holder_unavailable`, `cold` (nobody holds any of it), `affinity` (the owner of the request's session), `bound` (that owner is overloaded), `owner_unavailable`, `fallback` or `none` (no upstream can be chosen)
// `{http.inference.cause}` | Why a fallback was needed
// `{http.inference.prompt_tokens}` | Tokens of the prompt: estimated, and as counted by the engine once it has answered
// `{http.inference.best_held_tokens}` | Of these, the most that any upstream was believed to hold
// `{http.inference.held_tokens}` | Of these, what the chosen upstream was believed to hold
// `{http.inference.cached_tokens}` | Of these, what the engine reported to have found in its cache; empty if it did not say
// `{http.inference.queued_tokens}` | Uncached tokens that were queued on the chosen upstream
// `{http.inference.holder}` | The upstream that holds more, if another was chosen
// `{http.inference.holder_queued_tokens}` | Uncached tokens that were queued there
// `{http.inference.cut}` | The limit beyond which the body was not read, `max_body` or `max_buffered`; empty if it was
// `{http.inference.broken}` | Whether the answer did not come to its end
// `{http.inference.attempts}` | How many upstreams were tried
// `{http.inference.first_token}` | How long the first token of a streamed answer took
type CacheAware struct {
	// How much memory the tree of prefixes may use, in bytes. It is one tree for
	// the process; if policies differ, the largest value holds. Default: 256 MiB.
	MaxTreeSize int64 `json:"max_tree_size,omitempty"`

	// How often the tree is gone over at the latest; it is also kept within its
	// limit whenever it nears it. Default: 120s.
	EvictionInterval caddy.Duration `json:"eviction_interval,omitempty"`

	// How a worker is chosen. `cost`: where the request will wait least for its first
	// token. `threshold`: by the rule of the SMG and SGLang routers, which takes the
	// upstream that holds the most if that is enough, unless loads differ too much; for
	// those who come from there. Default: `cost`.
	Scoring string `json:"scoring,omitempty"`

	// With `threshold` scoring, the share of the prompt that an upstream has to hold more
	// than to be taken for it. From 0 to 1. Default: 0.3.
	CacheThreshold *float64 `json:"cache_threshold,omitempty"`

	// With `threshold` scoring, the fewest requests decide alone while the most requests
	// in flight on an upstream exceed the fewest by more than this number, and by more
	// than `balance_rel_threshold`. Default: 64.
	BalanceAbsThreshold *int `json:"balance_abs_threshold,omitempty"`

	// With `threshold` scoring, the fewest requests decide alone while the most requests
	// in flight on an upstream exceed the fewest by more than this factor, and by more
	// than `balance_abs_threshold`. Default: 1.5.
	BalanceRelThreshold *float64 `json:"balance_rel_threshold,omitempty"`

	Policy

	thresholds selection.Thresholds
}

const (
	defaultMaxTreeSize      = 256 << 20
	defaultEvictionInterval = 120 * time.Second

	byCost      = "cost"
	byThreshold = "threshold"

	// The least values keep a slip of the pen, such as a size without its unit,
	// from making a router that remembers nothing or is busy with itself.
	minTreeSize         = 64 << 10
	minEvictionInterval = time.Second
)

// defaultThresholds are those of SMG's command line.
var defaultThresholds = selection.Thresholds{Share: 0.3, Absolute: 64, Relative: 1.5}

// CaddyModule returns the Caddy module information.
func (*CacheAware) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.selection_policies.cache_aware",
		New: func() caddy.Module { return new(CacheAware) },
	}
}

// Provision sets up the policy.
func (c *CacheAware) Provision(ctx caddy.Context) error {
	if c.MaxTreeSize == 0 {
		c.MaxTreeSize = defaultMaxTreeSize
	}
	if c.EvictionInterval == 0 {
		c.EvictionInterval = caddy.Duration(defaultEvictionInterval)
	}
	c.Scoring = cmp.Or(c.Scoring, byCost)
	c.thresholds = selection.Thresholds{
		Share:    *cmp.Or(c.CacheThreshold, &defaultThresholds.Share),
		Absolute: *cmp.Or(c.BalanceAbsThreshold, &defaultThresholds.Absolute),
		Relative: *cmp.Or(c.BalanceRelThreshold, &defaultThresholds.Relative),
	}
	app, err := loadApp(ctx)
	if err != nil {
		return err
	}
	app.askForTree(c.MaxTreeSize, time.Duration(c.EvictionInterval))
	return c.provision(ctx, app, "cache_aware", c)
}

// Validate checks the configuration.
func (c *CacheAware) Validate() error {
	if c.MaxTreeSize < minTreeSize {
		return fmt.Errorf("cache_aware: max_tree_size of %d bytes: must be at least %d; a unit may be missing, as in 256MiB", c.MaxTreeSize, minTreeSize)
	}
	if c.EvictionInterval < caddy.Duration(minEvictionInterval) {
		return fmt.Errorf("cache_aware: eviction_interval %s: must be at least %s", time.Duration(c.EvictionInterval), minEvictionInterval)
	}
	if err := c.validateScoring(); err != nil {
		return err
	}
	return c.validate("cache_aware")
}

// validateScoring checks what is said of the scoring.
func (c *CacheAware) validateScoring() error {
	switch {
	case c.Scoring != byCost && c.Scoring != byThreshold:
		return fmt.Errorf("cache_aware: scoring '%s': must be %s or %s", c.Scoring, byCost, byThreshold)
	case c.Scoring == byCost && (c.CacheThreshold != nil || c.BalanceAbsThreshold != nil || c.BalanceRelThreshold != nil):
		return errors.New("cache_aware: cache_threshold, balance_abs_threshold and balance_rel_threshold mean nothing to scoring by cost; take them away or add 'scoring threshold'")
	case !(c.thresholds.Share >= 0 && c.thresholds.Share <= 1): // nor NaN
		return fmt.Errorf("cache_aware: cache_threshold of %v: must be from 0 to 1", c.thresholds.Share)
	case c.thresholds.Absolute < 0:
		return fmt.Errorf("cache_aware: balance_abs_threshold of %d: must be at least 0", c.thresholds.Absolute)
	case !(c.thresholds.Relative >= 1) || math.IsInf(c.thresholds.Relative, 1):
		return fmt.Errorf("cache_aware: balance_rel_threshold of %v: must be at least 1", c.thresholds.Relative)
	}
	return nil
}

// Select chooses an upstream.
func (c *CacheAware) Select(pool reverseproxy.UpstreamPool, r *http.Request, w http.ResponseWriter) *reverseproxy.Upstream {
	return c.route(c, pool, r, w)
}

// choose implements chooser.
func (c *CacheAware) choose(t *ticket, candidates []selection.Candidate) (selection.Choice, *fleet.Reservation) {
	if c.Scoring == byThreshold {
		return selection.Place(c.thresholds, t.tokens, candidates, t.state.clock.now())
	}
	return selection.Place(selection.Cost{}, t.tokens, candidates, t.state.clock.now())
}

var (
	_ caddy.Provisioner     = (*CacheAware)(nil)
	_ caddy.Validator       = (*CacheAware)(nil)
	_ caddy.CleanerUpper    = (*CacheAware)(nil)
	_ reverseproxy.Selector = (*CacheAware)(nil)
)
