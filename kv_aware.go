package inference

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-inference/caddy-inference/fleet"
	"github.com/caddy-inference/caddy-inference/kvindex"
	"github.com/caddy-inference/caddy-inference/selection"
)

// KVAware is a selection policy for fleets of LLM engines that say what they hold. It
// sends a request where it will wait least for its first token, as `cache_aware` does,
// but knows to the token how much of its prompt each engine has in its KV cache now:
// vLLM and SGLang publish that as events if they are started with `--kv-events-config`.
//
// So it also knows what an engine has evicted, what it has lost in a restart, and what
// other routers have sent it. Where engines have several data parallel ranks, it chooses
// among the ranks.
//
// It asks each engine where its events are, and needs to be told only where engines
// cannot be asked. A request is looked up by its token ids: those that it carries, or
// those that an engine makes of it. Requests of which no ids are known, and engines of
// which no events are seen, are placed by what was sent where, and the log and the
// metrics say so, and why.
//
// Every choice is accounted for as by `cache_aware`, under the same names in the access
// log, the metrics and the placeholders `{http.inference.*}`. In addition:
//
// Placeholder | Description
// ------------|-------------
// `{http.inference.exact}` | Whether what the chosen upstream held of the prompt was known exactly
// `{http.inference.inexact}` | Why it was not
type KVAware struct {
	// Which engine it is, and so how it is asked where its events are: `vllm`, `sglang` or
	// `auto`, which tries both. Default: `auto`.
	Engine string `json:"engine,omitempty"`

	// Where engines publish events, if they cannot be asked or what they say does not lead
	// there from here. Default: they are asked.
	Events []EventSource `json:"events,omitempty"`

	Tokenizing

	// How much memory the index of what engines hold may use, in bytes. It is one index
	// for the process; if policies differ, the largest value holds. Default: 1 GiB.
	MaxIndexSize int64 `json:"max_index_size,omitempty"`

	Policy

	nested chooser // the fallback, if it is a policy of this plugin
}

const (
	defaultMaxIndexSize = kvindex.DefaultMaxBytes

	// minIndexSize keeps a slip of the pen from making an index that knows nothing.
	minIndexSize = 1 << 20

	anyEngine = "auto"
	vllm      = "vllm"
	sglang    = "sglang"
)

// CaddyModule returns the Caddy module information.
func (*KVAware) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.selection_policies.kv_aware",
		New: func() caddy.Module { return new(KVAware) },
	}
}

// Provision sets up the policy.
func (k *KVAware) Provision(ctx caddy.Context) error {
	k.Engine = cmp.Or(k.Engine, anyEngine)
	k.MaxIndexSize = cmp.Or(k.MaxIndexSize, defaultMaxIndexSize)
	app, err := loadApp(ctx)
	if err != nil {
		return err
	}
	if isNested(ctx) {
		return errors.New("kv_aware: is the fallback of another kv_aware; take one away")
	}
	app.askForIndex(k.MaxIndexSize)
	k.follow = &eventOptions{engine: k.Engine, sources: k.Events}
	k.source = &k.Tokenizing
	if err := k.Policy.provision(ctx, app, "kv_aware", k); err != nil {
		return err
	}
	k.Tokenizing.provision(&k.Policy)
	k.adopt()
	return nil
}

// adopt makes a fallback that is a policy of this plugin choose by the knowledge of this
// one, for the same tickets.
func (k *KVAware) adopt() {
	switch nested := k.fallback.(type) {
	case *CacheAware:
		k.nested, k.fallback = nested, nested.fallback
	case *PrefixHash:
		k.nested, k.fallback = nested, nested.fallback
		k.prefix = nested.prefix
	}
	k.advised = k.nested != nil
}

// Validate checks the configuration.
func (k *KVAware) Validate() error {
	if k.Engine != anyEngine && k.Engine != vllm && k.Engine != sglang {
		return fmt.Errorf("kv_aware: engine '%s': must be %s, %s or %s", k.Engine, vllm, sglang, anyEngine)
	}
	if k.MaxIndexSize < minIndexSize {
		return fmt.Errorf("kv_aware: max_index_size of %d bytes: must be at least %d; a unit may be missing, as in 1GiB", k.MaxIndexSize, minIndexSize)
	}
	for i, e := range k.Events {
		if err := e.validate(k.Events[:i]); err != nil {
			return fmt.Errorf("kv_aware: events %d: %w", i+1, err)
		}
	}
	if err := k.Tokenizing.validate("kv_aware"); err != nil {
		return err
	}
	return k.Policy.validate("kv_aware")
}

// Select chooses an upstream.
func (k *KVAware) Select(pool reverseproxy.UpstreamPool, r *http.Request, w http.ResponseWriter) *reverseproxy.Upstream {
	return k.route(k, pool, r, w)
}

// choose implements chooser.
func (k *KVAware) choose(t *ticket, candidates []selection.Candidate) (selection.Choice, *fleet.Reservation) {
	if k.nested != nil && !t.exact.informed {
		return k.nested.choose(t, candidates)
	}
	return selection.Place(selection.Cost{}, t.tokens, candidates, t.state.clock.now())
}

var (
	_ caddy.Provisioner     = (*KVAware)(nil)
	_ caddy.Validator       = (*KVAware)(nil)
	_ caddy.CleanerUpper    = (*KVAware)(nil)
	_ reverseproxy.Selector = (*KVAware)(nil)
)
