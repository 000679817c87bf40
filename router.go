package inference

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/prometheus/client_golang/prometheus"
)

// absentGrace is how long a worker stays known that a changing list of upstreams
// no longer names. Such lists flap, and what the worker holds is worth keeping.
const absentGrace = 2 * time.Minute

// router is what our policies have in common: the pool of one reverse_proxy as
// members of the fleet, and the eyes on its transport.
type router struct {
	state   *state
	policy  string
	queue   prometheus.Observer         // of the chosen worker
	handler *reverseproxy.Handler       // nil if the policy is not in a reverse_proxy
	made    *reverseproxy.HTTPTransport // that Caddy does not know of, and will not clean up
	follow  *eventOptions               // nil if the policy does not go by what engines say they hold

	current atomic.Pointer[membership]

	mu     sync.Mutex         // guards what follows
	joined map[string]*joined // by address
	sweep  *time.Timer
	closed bool
}

// membership is a list of upstreams, the workers they are, and what counts the
// choices of each. An upstream is several workers where its ranks are chosen among.
type membership struct {
	dials     []string
	splits    uint64 // of the state, when it was made
	workers   []*worker
	upstreams []int // of each worker, its place in dials
	choices   []choiceCounters
}

// joined is a worker that the router uses.
type joined struct {
	*worker
	reach  *reverseproxy.HTTPTransport // as it was joined with
	absent time.Time                   // since when no list named it; zero if the current one does
}

// newRouter sets up what a policy needs of the reverse_proxy it is in.
func newRouter(ctx caddy.Context, app *App, policy *Policy) (*router, error) {
	rt := &router{
		state:  app.state,
		policy: policy.name,
		queue:  app.state.metrics.queue.WithLabelValues(policy.name),
		follow: policy.follow,
		joined: make(map[string]*joined),
	}
	rt.current.Store(new(membership))
	rt.handler = parent(ctx)
	if rt.handler == nil {
		return rt, nil
	}
	if err := app.claim(rt.handler); err != nil {
		return nil, err
	}
	made, err := watch(ctx, rt.handler)
	if err != nil {
		return nil, err
	}
	rt.made = made
	if policy.Tune == "on" {
		rt.tuned(ctx.Logger(), tune(rt.handler))
	}
	rt.members(rt.handler.Upstreams)
	return rt, nil
}

// parent returns the reverse_proxy that the module being provisioned is in.
func parent(ctx caddy.Context) *reverseproxy.Handler {
	for _, m := range slices.Backward(ctx.Modules()) {
		if h, ok := m.(*reverseproxy.Handler); ok {
			return h
		}
	}
	return nil
}

// close ends the router's use of its workers. Requests of an old config may
// still call the rest.
func (rt *router) close() error {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.closed = true
	if rt.sweep != nil {
		rt.sweep.Stop()
	}
	for address, j := range rt.joined {
		delete(rt.joined, address)
		rt.leave(j)
	}
	if rt.made != nil {
		return rt.made.Cleanup()
	}
	return nil
}

// members returns what the upstreams of pool are, in its order.
func (rt *router) members(pool reverseproxy.UpstreamPool) *membership {
	splits := rt.state.splits.Load()
	if m := rt.current.Load(); m.splits == splits && m.is(pool) {
		return m
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	m := &membership{splits: splits}
	for i, u := range pool {
		m.dials = append(m.dials, u.Dial)
		for _, w := range rt.parts(rt.member(u.Dial)) {
			m.workers = append(m.workers, w)
			m.upstreams = append(m.upstreams, i)
			m.choices = append(m.choices, rt.state.metrics.choices(rt.policy, w))
		}
	}
	rt.current.Store(m)
	rt.markAbsent(m, rt.state.clock.now())
	return m
}

// parts returns what the router chooses among at an upstream: its ranks if it goes by what
// each of them holds.
func (rt *router) parts(w *worker) []*worker {
	if rt.follow == nil {
		return []*worker{w}
	}
	return w.parts()
}

// is reports whether m is about the upstreams of pool, in its order.
func (m *membership) is(pool reverseproxy.UpstreamPool) bool {
	if len(m.dials) != len(pool) {
		return false
	}
	for i, u := range pool {
		if m.dials[i] != u.Dial {
			return false
		}
	}
	return true
}

// member returns the worker at address, joined if need be. rt.mu is held.
func (rt *router) member(address string) *worker {
	if j, ok := rt.joined[address]; ok {
		return j.worker
	}
	var reach *reverseproxy.HTTPTransport
	if rt.handler != nil && isHostPort(address) {
		reach = watched(rt.handler)
	}
	j := &joined{worker: rt.state.join(address, reach), reach: reach}
	if rt.closed { // an old request: it may use the worker, but not keep it
		rt.state.leave(j.worker, j.reach)
		return j.worker
	}
	rt.joined[address] = j
	if rt.follows(address) {
		rt.state.follow(j.worker, rt.follow)
	}
	return j.worker
}

// follows reports whether the router goes by what the engine at address says that it holds.
func (rt *router) follows(address string) bool {
	return rt.follow != nil && rt.handler != nil && !strings.Contains(address, "{")
}

// leave ends the use of a worker. rt.mu is held.
func (rt *router) leave(j *joined) {
	if rt.follows(j.Address()) {
		rt.state.unfollow(j.worker, rt.follow)
	}
	rt.state.leave(j.worker, j.reach)
}

// isHostPort reports whether an engine at address can be asked over TCP.
func isHostPort(address string) bool {
	a, err := caddy.ParseNetworkAddress(address)
	return err == nil && a.Network == "tcp" && a.PortRangeSize() == 1 && a.StartPort != 0
}

// markAbsent notes who is no longer named, and makes sure they are let go in
// time. rt.mu is held.
func (rt *router) markAbsent(m *membership, now time.Time) {
	absent := false
	for address, j := range rt.joined {
		switch {
		case slices.Contains(m.dials, address):
			j.absent = time.Time{}
		case j.absent.IsZero():
			j.absent = now
			absent = true
		default:
			absent = true
		}
	}
	if !absent || rt.closed || rt.sweep != nil {
		return
	}
	rt.sweep = time.AfterFunc(rt.state.clock.real(absentGrace), rt.letAbsentGo)
}

// letAbsentGo ends the use of workers that have not been named for the grace.
func (rt *router) letAbsentGo() {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.sweep = nil
	if rt.closed {
		return
	}
	now, again := rt.state.clock.now(), false
	for address, j := range rt.joined {
		if j.absent.IsZero() {
			continue
		}
		if now.Sub(j.absent) < absentGrace {
			again = true
			continue
		}
		delete(rt.joined, address)
		rt.leave(j)
	}
	if again {
		rt.sweep = time.AfterFunc(rt.state.clock.real(absentGrace), rt.letAbsentGo)
	}
}
