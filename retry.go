package inference

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-inference/caddy-inference/selection"
)

// standing says whether an upstream can be chosen, and if not, why. One that was
// tried is not tried again; with forgive, failures to connect do not count.
func standing(t *ticket, u *reverseproxy.Upstream, w *worker, forgive bool) selection.Standing {
	switch {
	case t.rank >= 0 && t.rank != w.rank && w.base.hasRank(t.rank):
		return selection.Unwanted
	case t.hasTried(w, forgive):
		return selection.Tried
	case !u.Healthy():
		return selection.Unhealthy
	case u.Full():
		return selection.Full
	case w.avoided():
		return selection.Suspected
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
	for i, w := range m.workers {
		if pool[m.upstreams[i]].Available() && !t.hasTried(w, false) {
			return false
		}
	}
	return true
}

// hasTried reports whether w has failed this request. With forgive, failures to
// connect do not count.
func (t *ticket) hasTried(w *worker, forgive bool) bool {
	for _, a := range t.tried {
		if a.base == w.base && !(forgive && a.notSent) {
			return true
		}
	}
	return false
}

// unanswered returns err, of an attempt that got no answer, as a failure to connect if
// nothing that the worker began can still be running, and the body can be sent whole: then
// Caddy may try another worker whatever the method. So it is if no connection got beyond
// the handshake of TLS, and if the connection broke and nobody listens there any more. A
// worker that still listens may have begun: its error stays what it is.
func (t *transport) unanswered(r *http.Request, by *ticket, err error) error {
	switch {
	case r.Context().Err() != nil || !by.body.isSendable():
		return err
	case by.shookInVain():
		return reverseproxy.NewDialError(fmt.Errorf("TLS handshake: %w", err))
	case by.conn == nil || !broke(err) || t.isProxied(r):
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), goneWithin)
	defer cancel()
	if !nobodyListens(ctx, by.conn) {
		return err
	}
	return reverseproxy.NewDialError(fmt.Errorf("%w, and nobody listens there any more", err))
}

// shookInVain reports whether the last attempt found somebody to connect to, but no
// connection got beyond the handshake of TLS, so that nothing was sent.
func (t *ticket) shookInVain() bool { return t.conn == nil && t.tlsFailed.Load() }

// isProxied reports whether r goes through a forward proxy: then the connection was the
// proxy's, which tells nothing of the worker. Caddy writes that down among the request's
// variables, where a dialer that lost the race may be reading, so it is asked without.
func (t *transport) isProxied(r *http.Request) bool {
	ctx := context.WithValue(context.Background(), caddy.ReplacerCtxKey, r.Context().Value(caddy.ReplacerCtxKey))
	proxy, err := t.Transport.Proxy(r.WithContext(ctx))
	return proxy != nil || err != nil
}

// broke reports whether the connection of an attempt ended before an answer.
func broke(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, net.ErrClosed) || // net/http closes what the other side has closed, maybe under a request
		slices.Contains(brokenTexts, err.Error())
}

// closedIdle says that a pooled connection was closed by the other side just as a request
// was to be sent on it.
const closedIdle = "http: server closed idle connection"

// brokenTexts are of errors that net/http does not export and that say so, too.
var brokenTexts = []string{
	closedIdle,
	"net/http: cannot rewind body after connection loss",
	"http2: client connection force closed via ClientConn.Close", // writing on it had failed
	"http2: client conn could not be established",
}

const (
	// goneWithin bounds how long it takes to see that a worker is gone.
	goneWithin = 500 * time.Millisecond

	// listensFor is how long a connection has to last to count. A process that is killed
	// closes in no certain order: when 500 connections were broken, half of those made
	// anew at once were still taken, and dropped up to 23 ms later.
	listensFor = 50 * time.Millisecond
)

// nobodyListens reports whether nobody does where a broken connection led. It connects once
// more, from and to the very same address, and again while connections are taken and dropped
// as by a process that is ending.
func nobodyListens(ctx context.Context, broken net.Conn) bool {
	var dialer net.Dialer
	if local, ok := broken.LocalAddr().(*net.TCPAddr); ok {
		dialer.LocalAddr = &net.TCPAddr{IP: local.IP, Zone: local.Zone}
	}
	remote := broken.RemoteAddr()
	for pause := time.Millisecond; ctx.Err() == nil; pause *= 2 {
		conn, err := dialer.DialContext(ctx, remote.Network(), remote.String())
		switch {
		case err == nil && lasts(conn):
			return false
		case errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist): // the latter of a Unix socket
			return true
		case err != nil && !broke(err):
			return false
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return false
}

// lasts reports whether a new connection is not closed at once, and closes it.
func lasts(conn net.Conn) bool {
	timer := time.AfterFunc(listensFor, func() { conn.Close() })
	defer timer.Stop()
	defer conn.Close()
	_, err := conn.Read(make([]byte, 1))
	return err == nil || errors.Is(err, net.ErrClosed)
}
