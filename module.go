// Package inference makes Caddy a router for fleets of LLM inference engines.
//
// A team runs several replicas of an engine such as vLLM or SGLang. A request
// whose prompt begins like one that a replica has served lately is answered many
// times faster there, because that beginning is still in the replica's KV cache;
// anywhere else it is computed again. The package adds to Caddy's reverse_proxy
// the selection policies that know this:
//
//   - cache_aware remembers what it sent where.
//   - kv_aware knows from the engines' own events what each holds.
//   - prefix_hash has each beginning of a prompt owned by a replica, which several
//     routers find without knowing of each other.
//
// It also adds the app `inference`, which owns what outlives requests and configs
// and need not be configured. Engines need no change and no sidecar, and the
// client's bytes reach them unchanged.
//
// This package is the rim: it alone knows Caddy. What a request asks an engine to
// prefill is found by package prompt, what was sent where is kept by package
// radix, what engines say that they hold comes by package kvevents and is kept by
// kvindex, who is how busy by package fleet, and the choice is made by package
// selection. A request can be followed in Policy.route.
package inference

import (
	"errors"
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"
)

func init() {
	caddy.RegisterModule(new(App))
	caddy.RegisterModule(new(CacheAware))
	caddy.RegisterModule(new(KVAware))
	caddy.RegisterModule(new(PrefixHash))
	httpcaddyfile.RegisterGlobalOption("inference", parseApp)
}

// App holds what the inference modules of a config have in common: what was
// learned about the fleet, which outlives configs, and the limits that hold for
// the whole process. It is there whenever a module needs it; configure it only to
// change a default.
type App struct {
	// How much all requests together may hold of request bodies, in bytes, so
	// that they can be routed on and sent again. Beyond it a request is routed on
	// its first 64 KiB, and cannot be sent again once its body was begun. Default:
	// 512 MiB.
	MaxBuffered int64 `json:"max_buffered,omitempty"`

	// How many times faster than in life time passes for what this plugin keeps by
	// the clock: work of late, prefill rates, the grace of absent upstreams, rounds
	// of eviction, when an engine is asked again. For benchmarks in front of
	// simulated engines with the same `speed`; seconds that are logged and exported
	// are simulated ones then too. From 0.01 to 1000. Default: 1.
	TimeScale float64 `json:"time_scale,omitempty"`

	state     *state
	logger    *zap.Logger
	treeSize  int64 // the largest that any policy asks for; 0 if none does
	indexSize int64 // the same of the index
	interval  time.Duration
	handlers  map[*reverseproxy.Handler]bool // that have a policy of ours
	started   bool
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "inference",
		New: func() caddy.Module { return new(App) },
	}
}

// loadApp returns the config's app, there or made.
func loadApp(ctx caddy.Context) (*App, error) {
	app, err := ctx.App("inference")
	if err != nil {
		return nil, fmt.Errorf("getting inference app: %w", err)
	}
	return app.(*App), nil
}

// Provision sets up the app.
func (a *App) Provision(ctx caddy.Context) error {
	if a.MaxBuffered == 0 {
		a.MaxBuffered = defaultMaxBuffered
	}
	if a.TimeScale == 0 {
		a.TimeScale = defaultTimeScale
	}
	s, err := loadState()
	if err != nil {
		return err
	}
	a.state = s
	a.logger = ctx.Logger()
	if err := ctx.GetMetricsRegistry().Register(s.metrics); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	return nil
}

// Validate checks the configuration.
func (a *App) Validate() error {
	if a.MaxBuffered < firstPart {
		return fmt.Errorf("inference: max_buffered of %d bytes: must be at least %d; a unit may be missing, as in 512MiB", a.MaxBuffered, firstPart)
	}
	if !(a.TimeScale >= minTimeScale && a.TimeScale <= maxTimeScale) { // nor NaN
		return fmt.Errorf("inference: time_scale of %v: must be from %v to %v", a.TimeScale, minTimeScale, maxTimeScale)
	}
	return nil
}

// askForTree says what one policy wants of the tree. The largest size and the
// shortest interval hold.
func (a *App) askForTree(size int64, interval time.Duration) {
	a.treeSize = max(a.treeSize, size)
	if a.interval == 0 || interval < a.interval {
		a.interval = interval
	}
}

// askForIndex says how much memory one policy wants for the index.
func (a *App) askForIndex(size int64) { a.indexSize = max(a.indexSize, size) }

// claim notes that a policy of ours is in a reverse_proxy. There can be one: two
// would each place every request.
func (a *App) claim(h *reverseproxy.Handler) error {
	if a.handlers[h] {
		return errors.New("there is another policy of this plugin in the same reverse_proxy; but for that of kv_aware, a fallback must be of another kind, such as least_conn")
	}
	if a.handlers == nil {
		a.handlers = make(map[*reverseproxy.Handler]bool)
	}
	a.handlers[h] = true
	return nil
}

// Start puts the app's limits into force and starts what works in the background.
func (a *App) Start() error {
	a.state.start(a)
	a.started = true
	return nil
}

// Stop ends what works in the background, unless another config needs it: then
// the limits are that one's.
func (a *App) Stop() error {
	if a.started {
		a.started = false
		a.state.stop(a)
	}
	return nil
}

// Cleanup gives back what the app shares with other configs.
func (a *App) Cleanup() error {
	if a.state == nil {
		return nil
	}
	return releaseState()
}

var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.Validator    = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
