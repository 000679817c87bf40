package inference

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-inference/caddy-inference/selection"
)

const (
	// A suspected worker is connected to after probeFirst, then after twice as long each
	// time, up to probeLast: one that is back waits no longer for its first request.
	probeFirst = 250 * time.Millisecond
	probeLast  = time.Second

	// trialLast takes the place of probeLast where to find out costs a request.
	trialLast = 2 * time.Second

	// probeTimeout bounds one try.
	probeTimeout = time.Second

	// enoughBreaks is how many connections in a row a worker that listens has to break off to
	// be suspected. One may have been idle, and closed just as a request was sent.
	enoughBreaks = 2
)

// blame is what a worker is suspected for.
type blame string

const (
	notConnected blame = "not_connected" // it could not be connected to
	died         blame = "died"          // it broke off a connection before an answer, and listens no longer
	breaksOff    blame = "breaks_off"    // it listens, and breaks off connections before an answer
)

// hint says what to do about it.
func (why blame) hint() string {
	if why == breaksOff {
		return "something listens at this address, but no answer comes: see whether the engine behind it runs; one request is sent there every two seconds at most, and once one is answered, it is in use"
	}
	return "see whether the engine runs and listens at this address; once it does, it is in use within a second"
}

// longestWait is what passes at most between two attempts to find out more.
func (why blame) longestWait() time.Duration {
	if why == breaksOff {
		return trialLast
	}
	return probeLast
}

// suspicion is that a worker does not serve. Requests stay away from it, whichever site
// they come to, until it can be connected to or has answered one. So the first request
// that finds a worker gone is the last, and one that is back is in use at once, without
// health checks.
//
// Of one that breaks off connections it says nothing that it can be connected to. What
// tells is an answer, so now and then one request is let through as a trial.
//
// It lasts as long as somebody looks into it: a goroutine that ends with it, with the
// worker, and with the last app.
type suspicion struct {
	why   blame
	began time.Time
	end   context.CancelFunc
	trial atomic.Bool // the next request may be placed on the worker, to find out
}

// trust is what is thought of a worker.
type trust struct {
	suspicion atomic.Pointer[suspicion] // nil if there is none
	breaks    atomic.Int32              // connections that it has broken off since its last answer
}

// suspected reports whether requests stay away from the worker.
func (t *trust) suspected() bool { return t.suspicion.Load() != nil }

// avoided reports whether the next request stays away, too.
func (t *trust) avoided() bool {
	x := t.suspicion.Load()
	return x != nil && !x.trial.Load()
}

// placed takes note that a request was placed on the worker. If there is a trial, it is this
// one.
func (t *trust) placed() {
	if x := t.suspicion.Load(); x != nil {
		x.trial.Store(false)
	}
}

// suspicions returns how many there are: none or one.
func (t *trust) suspicions() int {
	if t.suspected() {
		return 1
	}
	return 0
}

// suspect has requests stay away from w until it serves again.
func (s *state) suspect(w *worker, why blame, failure error) {
	w = w.base
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil || s.workers[w.Worker] != w || w.suspected() || !w.isDirect() {
		return
	}
	ctx, end := context.WithCancel(s.ctx)
	x := &suspicion{why: why, began: s.clock.now(), end: end}
	w.suspicion.Store(x)
	s.metrics.suspicion(w, why)
	s.logger.Load().Warn("upstream does not serve; requests stay away from it",
		zap.String("upstream", w.Address()), zap.String("cause", string(why)), zap.Error(failure), zap.String("hint", why.hint()))
	s.tasks.Go(func() { s.lookInto(ctx, w, x) })
}

// brokeOff takes note that w, which listens, has broken off a connection.
func (s *state) brokeOff(w *worker, failure error) {
	if w.breaks.Add(1) >= enoughBreaks {
		s.suspect(w, breaksOff, failure)
	}
}

// served takes note that w has answered a request, which was placed at that time. That
// the worker goes on with what it had begun says nothing.
func (s *state) served(w *worker, placed time.Time) {
	w = w.base
	if w.breaks.Load() != 0 {
		w.breaks.Store(0)
	}
	if x := w.suspicion.Load(); x != nil && placed.After(x.began) {
		s.acquit(w, x)
	}
}

// acquit ends a suspicion, as w serves. It is most likely a new process, of which nothing
// is known that would keep requests away, and which is asked whether it is.
func (s *state) acquit(w *worker, x *suspicion) {
	if !w.suspicion.CompareAndSwap(x, nil) {
		return
	}
	x.end()
	for _, r := range w.parts() {
		r.ForgetRate()
	}
	s.askAnew(w)
	s.logger.Load().Info("upstream serves again", zap.String("upstream", w.Address()), zap.Duration("after", s.clock.now().Sub(x.began)))
}

// lookInto tries to connect to w until that succeeds or ctx ends. If w listened all the
// while, it has the next request be a trial instead, and goes on until one is answered.
func (s *state) lookInto(ctx context.Context, w *worker, x *suspicion) {
	defer x.end()
	defer w.suspicion.CompareAndSwap(x, nil)
	for wait := probeFirst; w.pause(ctx, wait); wait = min(2*wait, x.why.longestWait()) {
		if !w.isUp(ctx) {
			continue
		}
		if x.why != breaksOff {
			s.acquit(w, x)
			return
		}
		x.trial.Store(true)
	}
}

// isDirect reports whether to connect to w's address is what requests do. They do not
// through a forward proxy, and an address with placeholders stands for several.
func (w *worker) isDirect() bool {
	if strings.Contains(w.Address(), "{") {
		return false
	}
	transport := w.transport.Load()
	if transport == nil || transport.Transport.Proxy == nil {
		return true
	}
	to := &url.URL{Scheme: "http", Host: w.Address()}
	if transport.TLSEnabled() {
		to.Scheme = "https"
	}
	proxy, err := transport.Transport.Proxy(&http.Request{URL: to})
	return proxy == nil && err == nil
}

// isUp reports whether w can be connected to, as a request would be, and does not hang up.
func (w *worker) isUp(ctx context.Context) bool {
	address, err := caddy.ParseNetworkAddress(w.Address())
	if err != nil {
		return true // nothing can be found out
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := w.dial(ctx, address.Network, address.JoinHostPort(0))
	return err == nil && lasts(conn)
}

// dial connects to an address as w's transport does.
func (w *worker) dial(ctx context.Context, network, address string) (net.Conn, error) {
	t := w.transport.Load()
	if t == nil || t.Transport.DialContext == nil || t.ProxyProtocol != "" { // which needs a client's address
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	return t.Transport.DialContext(ctx, network, address)
}

// pardon makes suspected candidates available if no other is: a request that is tried
// there may be answered, one that is refused will not.
func pardon(candidates []selection.Candidate) {
	for i := range candidates {
		if candidates[i].Standing == selection.Available {
			return
		}
	}
	for i := range candidates {
		if candidates[i].Standing == selection.Suspected {
			candidates[i].Standing = selection.Available
		}
	}
}
