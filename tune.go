package inference

import (
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"
)

// What a reverse_proxy in front of engines gets where its configuration says nothing.
// docs/tuning.md has them all, for those who want to set them.
const (
	// keepAlive is how long a connection to an engine stays open between two requests.
	// vLLM and SGLang close theirs after 5 s: a request that is written at that moment is
	// lost, and it cannot be sent again, as nobody knows whether it was begun. So our
	// side closes first, a second before, which leaves time for the network and for a
	// machine that is busy.
	keepAlive = 4 * time.Second

	// idleConnections is how many connections to one engine stay open between requests:
	// as many as vLLM serves requests at a time by default, so that a fleet that is busy
	// need not connect for each. Those above the need of the moment are closed after
	// keepAlive.
	idleConnections = 256

	// writeBuffer is the write buffer of connections to engines, in bytes. net/http has
	// 4 KiB, which cuts a usual chat's body in two writes: the engine wakes up for the
	// first and waits for the second. 20 KiB: room for head and body of 16 KiB, of which
	// each request then takes a tenth less of the processor (docs/benchmarks.md); every
	// connection has one, so no larger.
	writeBuffer = 20 << 10

	// mostRetries bounds how many more workers a request is sent to. With half of a large
	// fleet gone, one request in 64 finds only those in six tries, until it is known who
	// they are. Where machines do not even refuse, each try takes Caddy's dial_timeout of
	// 3 s, so that a client waits 18 s at most.
	mostRetries = 5
)

// What Caddy makes of keep-alive options that are not set. Once a transport is
// provisioned the two cannot be told apart.
const (
	caddysKeepAlive       = 2 * time.Minute
	caddysIdleConnections = 32
)

// tune fills in what is unset in h, and returns the options with their values, for the
// log. What is set stays, so a second time nothing is left to do.
//
// It relies on Caddy provisioning a selection policy after the transport, and on it
// reading retries where it balances load.
func tune(h *reverseproxy.Handler) []zap.Field {
	return append(tuneTransport(watched(h)), tuneRetries(h)...)
}

// tuneTransport fills in what is unset in t: not if it is nil, as then it is of another
// kind than HTTP, and not if it speaks QUIC, which has options of its own.
func tuneTransport(t *reverseproxy.HTTPTransport) (set []zap.Field) {
	if t == nil || slices.Contains(t.Versions, "3") {
		return nil
	}
	inner := t.Transport
	if inner.IdleConnTimeout == caddysKeepAlive && !inner.DisableKeepAlives {
		inner.IdleConnTimeout = keepAlive
		set = append(set, zap.Stringer("keepalive", keepAlive))
	}
	if inner.MaxIdleConnsPerHost == caddysIdleConnections && !inner.DisableKeepAlives {
		inner.MaxIdleConnsPerHost = idleConnections
		set = append(set, zap.Int("keepalive_idle_conns_per_host", idleConnections))
	}
	if inner.WriteBufferSize == 0 {
		inner.WriteBufferSize = writeBuffer
		set = append(set, zap.Int("write_buffer", writeBuffer))
	}
	return set
}

// tuneRetries has Caddy send a request to another worker if one could not be connected
// to. Whoever wrote when to try again is left to say how often, too.
func tuneRetries(h *reverseproxy.Handler) (set []zap.Field) {
	lb := h.LoadBalancing
	if lb == nil || lb.Retries != 0 || lb.TryDuration != 0 || len(lb.RetryMatchRaw) > 0 {
		return nil
	}
	others := min(len(h.Upstreams)-1, mostRetries)
	if h.DynamicUpstreamsRaw != nil || h.DynamicUpstreams != nil { // how many there are, only requests find out
		others = mostRetries
	}
	if others <= 0 {
		return nil
	}
	lb.Retries = others
	return []zap.Field{zap.Int("lb_retries", others)}
}

// tunedHint has to be true of what is written, too: see caddysKeepAlive.
const tunedHint = "set an option to another value than Caddy's default and it is left as it is; 'tune off' leaves all of them"

// tuned logs what was filled in in the reverse_proxy, if anything was.
func (rt *router) tuned(logger *zap.Logger, set []zap.Field) {
	if len(set) == 0 {
		return
	}
	upstreams := make([]string, len(rt.handler.Upstreams))
	for i, u := range rt.handler.Upstreams {
		upstreams[i] = u.Dial
	}
	logger.Info("reverse_proxy tuned", append(set,
		zap.Strings("upstreams", upstreams),
		zap.String("hint", tunedHint))...)
}
