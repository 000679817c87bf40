package inference

import (
	"crypto/tls"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-inference/caddy-inference/prompt"
)

// heardEvery is how often a body tells that more of it has come.
const heardEvery = 100 * time.Millisecond

// transport watches what becomes of the requests that a policy placed: when the
// first token came, what the engine counted, whether the worker failed. It wraps
// the transport of the reverse_proxy that the policy belongs to, and changes
// neither requests nor responses. Requests without a ticket, such as health
// checks, pass unseen.
type transport struct {
	*reverseproxy.HTTPTransport
}

// watch puts a transport around the one of h, if it is not there yet. It returns
// the transport to clean up, if it had to make one.
//
// It relies on Caddy provisioning a selection policy after the transport that
// was configured, and before the default one is made.
func watch(ctx caddy.Context, h *reverseproxy.Handler) (made *reverseproxy.HTTPTransport, err error) {
	switch t := h.Transport.(type) {
	case nil:
		made = new(reverseproxy.HTTPTransport)
		if err := made.Provision(ctx); err != nil {
			return nil, err
		}
		h.Transport = &transport{made}
	case *reverseproxy.HTTPTransport:
		h.Transport = &transport{t}
	}
	return made, nil
}

// watched returns the HTTP transport behind h's transport, nil if it is another kind.
func watched(h *reverseproxy.Handler) *reverseproxy.HTTPTransport {
	if t, ok := h.Transport.(*transport); ok {
		return t.HTTPTransport
	}
	return nil
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ticket := ticketOf(r.Context())
	if ticket == nil || ticket.worker == nil {
		return t.HTTPTransport.RoundTrip(r)
	}
	response, err := t.HTTPTransport.RoundTrip(traced(ticket.worker.aim(r), ticket))
	if err != nil {
		err = t.unanswered(r, ticket, err)
		ticket.failed(r, err)
		return nil, err
	}
	ticket.state.served(ticket.worker, ticket.reservation.Load().Charged())
	if response.StatusCode < http.StatusBadRequest {
		ticket.insertAgain()
		ticket.state.passed(ticket.worker, r, response)
	} else {
		ticket.retract()
	}
	if response.StatusCode == http.StatusSwitchingProtocols {
		ticket.begun()
		return response, nil
	}
	response.Body = watchBody(response, ticket)
	return response, nil
}

// traced returns r with a trace that tells the ticket which connection it is sent on,
// and when the body was written. Then its bytes are let go: net/http keeps the request,
// and so its body, as long as the response lasts. If writing failed before anything
// was read, net/http may yet try again with the same reader; if a pooled connection
// turns out to be closed and took nothing, with the body anew.
func traced(r *http.Request, t *ticket) *http.Request {
	t.conn = nil
	t.tlsFailed.Store(false)
	trace := &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { t.conn = info.Conn },
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) { // while the attempt before is still being connected, perhaps
			if err != nil {
				t.tlsFailed.Store(true)
			}
		},
	}
	sending := t.sending
	switch {
	case sending != nil:
		trace.WroteRequest = func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				sending.sent()
			}
		}
	case t.body.isArriving():
		trace.WroteRequest = t.expectAnswer()
	}
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), trace))
	if sending != nil && !claimsToBeIdempotent(r) {
		r.GetBody = sending.anew
	}
	return r
}

// expectAnswer returns what is to be called when all that the client sends was written: no
// engine answers before, however long that takes.
func (t *ticket) expectAnswer() func(httptrace.WroteRequestInfo) {
	reservation, answer, clock := t.reservation.Load(), t.answer(), t.state.clock
	return func(info httptrace.WroteRequestInfo) {
		if info.Err == nil {
			reservation.Expect(answer, clock.now())
		}
	}
}

// claimsToBeIdempotent reports whether net/http would take the client's word that a
// request may be sent twice, though the engine had it. An engine would compute it
// twice.
func claimsToBeIdempotent(r *http.Request) bool {
	return r.Header["Idempotency-Key"] != nil || r.Header["X-Idempotency-Key"] != nil
}

// failed says that the attempt got no response: because the client has left, or
// because the engine failed. Then it may have been restarted, most likely if it
// does not even listen.
func (t *ticket) failed(r *http.Request, err error) {
	if r.Context().Err() != nil {
		t.release() // the engine may have done its part, and keeps what it did
		return
	}
	t.withdraw()
	var dial reverseproxy.DialError
	t.notSent = errors.As(err, &dial)
	switch {
	case t.notSent && !t.shookInVain():
		t.unreachable(err)
	case t.notSent || broke(err):
		t.state.check(t.worker)
		t.state.brokeOff(t.worker, err)
	}
}

// unreachable says that the attempt's worker could not be connected to, at once or once more.
func (t *ticket) unreachable(err error) {
	t.state.checkFailed(t.worker)
	t.worker.Heard(t.state.clock.now()) // it does not hang
	why := notConnected
	if t.conn != nil {
		why = died
	}
	t.state.suspect(t.worker, why, err)
}

// watchBody returns the body of a response with the ticket listening.
func watchBody(response *http.Response, t *ticket) io.ReadCloser {
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	b := &responseBody{
		ReadCloser: response.Body,
		ticket:     t,
		stream:     kind == "text/event-stream",
		coded:      isCoded(response.Header),
	}
	if !b.stream {
		t.reservation.Load().Answered(t.state.clock.now())
	}
	if response.StatusCode == http.StatusOK {
		t.accepted()
		b.counts = b.stream || kind == "application/json"
		t.usage.meta = t.api == prompt.Generate
	}
	return b
}

// responseBody is the body of a response on its way to the client.
type responseBody struct {
	io.ReadCloser
	ticket *ticket
	stream bool // of server-sent events
	coded  bool // so that events cannot be told apart
	counts bool // ends with what the engine counted
	first  firstEvent
	taken  bool // for the client
	begun  bool // the first token, or anything of an answer that is no stream
	ended  bool // all came
	done   bool
	heard  time.Time // when the worker was last said to have sent something
}

// isCoded reports whether a body is not what it is of, but an encoding of that.
func isCoded(h http.Header) bool {
	coding := h.Get("Content-Encoding")
	return coding != "" && !strings.EqualFold(coding, "identity")
}

// Read implements io.Reader. The first call says that this response is the one
// the client gets: if Caddy wanted to try again, it would close it unread.
func (b *responseBody) Read(p []byte) (int, error) {
	if !b.taken {
		b.taken = true
		b.ticket.begun()
	}
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.saw(p[:n])
	}
	if err == io.EOF { // what only wraps it is a failure
		b.ended = true
		b.finish()
	}
	return n, err
}

// Close implements io.Closer.
func (b *responseBody) Close() error {
	b.finish()
	return b.ReadCloser.Close()
}

func (b *responseBody) saw(p []byte) {
	if b.begun || !b.counts || !b.stream {
		b.flows()
	}
	if !b.counts {
		return
	}
	if !b.begun && b.stream {
		b.begun = b.coded || b.first.in(p)
		if b.begun {
			b.ticket.firstToken(b.ticket.state.clock.now())
		}
	}
	b.begun = b.begun || !b.stream
	b.ticket.usage.write(p)
}

// flows says now and then that the worker goes on with an answer, so it does not hang. What
// comes before the first token does not say so: that may be from a server before the engine.
func (b *responseBody) flows() {
	clock := b.ticket.state.clock
	now := clock.now()
	if now.Sub(b.heard) >= heardEvery {
		b.heard = now
		b.ticket.worker.Heard(now)
	}
}

// finish says that no more will come, be it because all has.
func (b *responseBody) finish() {
	if b.done {
		return
	}
	b.done = true
	b.ticket.decision.broken = b.taken && !b.ended
	if b.ended {
		b.ticket.worker.Heard(b.ticket.state.clock.now())
	}
	if b.begun {
		b.ticket.answered(b.ticket.usage.last)
		return
	}
	b.ticket.release()
}

var (
	_ http.RoundTripper                                = (*transport)(nil)
	_ reverseproxy.TLSTransport                        = (*transport)(nil)
	_ reverseproxy.H2CTransport                        = (*transport)(nil)
	_ reverseproxy.HealthCheckSchemeOverriderTransport = (*transport)(nil)
	_ reverseproxy.ProxyProtocolTransport              = (*transport)(nil)
	_ reverseproxy.RequestHeaderOpsTransport           = (*transport)(nil)
	_ caddy.CleanerUpper                               = (*transport)(nil)
)
