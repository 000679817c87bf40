package inference

import (
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-inference/caddy-inference/selection"
)

// standing says whether an upstream can be chosen, and if not, why. One that was
// tried is not tried again; with forgive, failures to connect do not count.
func standing(t *ticket, u *reverseproxy.Upstream, w *worker, forgive bool) selection.Standing {
	switch {
	case t.hasTried(w, forgive):
		return selection.Tried
	case !u.Healthy():
		return selection.Unhealthy
	case !u.Available():
		return selection.Full
	}
	return selection.Available
}

// forgives reports whether workers that could not be connected to may be tried
// again: where the user asks Caddy to keep trying for a while, such a worker may
// be waited for once there is no other, as nothing can be running on it.
func (rt *router) forgives(t *ticket, pool reverseproxy.UpstreamPool, m *membership) bool {
	return len(t.tried) > 0 && rt.waits() && t.exhausted(pool, m)
}

// waits reports whether the user asks for more than one round of tries.
func (rt *router) waits() bool {
	return rt.handler != nil && rt.handler.LoadBalancing != nil && rt.handler.LoadBalancing.TryDuration > 0
}

// exhausted reports whether every upstream that is available was tried.
func (t *ticket) exhausted(pool reverseproxy.UpstreamPool, m *membership) bool {
	for i, u := range pool {
		if u.Available() && !t.hasTried(m.workers[i], false) {
			return false
		}
	}
	return true
}

// hasTried reports whether w has failed this request. With forgive, failures to
// connect do not count.
func (t *ticket) hasTried(w *worker, forgive bool) bool {
	for _, a := range t.tried {
		if a.worker == w && !(forgive && a.notSent) {
			return true
		}
	}
	return false
}
