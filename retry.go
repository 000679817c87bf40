package inference

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
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
	case t.hasTried(w, forgive):
		return selection.Tried
	case !u.Healthy():
		return selection.Unhealthy
	case u.Full():
		return selection.Full
	case w.suspected():
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

// unanswered returns err, of an attempt that got no answer, as a failure to connect if
// the worker is gone: its connection broke, and nobody listens there any more. Then
// nothing that it began can still be running, and Caddy may try another worker
// whatever the method. A worker that still listens may have begun: its error stays
// what it is.
func (t *transport) unanswered(r *http.Request, by *ticket, err error) error {
	if by.conn == nil || !broke(err) || r.Context().Err() != nil || t.isProxied(r) {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), goneWithin)
	defer cancel()
	if !gone(ctx, by.conn) {
		return err
	}
	return reverseproxy.NewDialError(fmt.Errorf("%w, and nobody listens there any more", err))
}

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
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

const (
	// goneWithin bounds how long it takes to see that a worker is gone.
	goneWithin = 500 * time.Millisecond

	// listensFor is how long a connection has to last to count. A process that is killed
	// closes in no certain order: when 500 connections were broken, half of those made
	// anew at once were still taken, and dropped up to 23 ms later.
	listensFor = 50 * time.Millisecond
)

// gone reports whether nobody listens where a broken connection led. It connects once
// more, to the very same address, and again while connections are taken and dropped
// as by a process that is ending.
func gone(ctx context.Context, broken net.Conn) bool {
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
