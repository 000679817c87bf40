package inference

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/stretchr/testify/require"
)

// rounds is how often each way out of a request is taken.
const rounds = 200

func init() {
	caddy.RegisterModule(panicking{})
	httpcaddyfile.RegisterHandlerDirective("inference_test_panic", func(httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		return panicking{}, nil
	})
	httpcaddyfile.RegisterDirectiveOrder("inference_test_panic", httpcaddyfile.Before, "respond")
}

// panicking is a handler that panics.
type panicking struct{}

func (panicking) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.inference_test_panic", New: func() caddy.Module { return panicking{} }}
}

func (panicking) ServeHTTP(http.ResponseWriter, *http.Request, caddyhttp.Handler) error {
	panic(http.ErrAbortHandler)
}

// inParallel runs f n times, at most 25 at once.
func inParallel(n int, f func(i int)) {
	var wait sync.WaitGroup
	slots := make(chan struct{}, 25)
	for i := range n {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	wait.Wait()
}

// event writes one server-sent event.
func event(w http.ResponseWriter, data string) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "data: %s\n\n", data)
	w.(http.Flusher).Flush()
}

// forever waits until the client has gone.
func forever(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// silent sends one event and no more until the client has gone.
func silent(w http.ResponseWriter, r *http.Request) {
	event(w, `{"choices":[{"delta":{"content":"a"}}]}`)
	<-r.Context().Done()
}

// reset sends one event and half of the next, then breaks the connection.
func reset(w http.ResponseWriter, _ *http.Request) {
	event(w, `{"choices":[{"delta":{"content":"a"}}]}`)
	conn, buffer, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	_, _ = buffer.WriteString("1000\r\ndata: {")
	_ = buffer.Flush()
	_ = conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
}

// TestLoadComesBackWhicheverWayARequestEnds leaves requests in every way there
// is, many at once, and requires that nothing of them stays in the books.
func TestLoadComesBackWhicheverWayARequestEnds(t *testing.T) {
	overPolicies(t, loadComesBackWhicheverWayARequestEnds)
}

func loadComesBackWhicheverWayARequestEnds(t *testing.T, policy string) {
	engines := newEngines(t, 3)
	s := startSite(t, "lb_policy "+policy+`
		lb_retries 3
		@panic header X-Test-Panic 1
		handle_response @panic {
			inference_test_panic
		}`, append(addresses(engines), freeAddress(t))...)
	h2 := &http.Transport{Protocols: new(http.Protocols)}
	h2.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(h2.CloseIdleConnections)

	body := func(i int) string {
		return strings.Replace(chatOf(message("user", letters(rand.New(rand.NewPCG(10, uint64(i))), 400))), "{", `{"stream":true,`, 1)
	}
	// leave sends a request and leaves it at the first byte of the answer, or
	// after a while.
	leave := func(transport http.RoundTripper, after time.Duration) func(int) {
		return func(i int) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if after > 0 {
				time.AfterFunc(after, cancel)
			}
			request, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/chat/completions", strings.NewReader(body(i)))
			response, err := transport.RoundTrip(request)
			if err != nil {
				return
			}
			_, _ = response.Body.Read(make([]byte, 1))
			cancel()
			response.Body.Close()
		}
	}
	read := func(i int) {
		response, err := s.client.Post(s.url+"/v1/chat/completions", "application/json", strings.NewReader(body(i)))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
	raw := func(text func(i int) string, closeWrite bool) func(int) {
		return func(i int) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, text(i))
			if closeWrite {
				_ = conn.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, conn)
				return
			}
			_, _ = conn.Read(make([]byte, 64))
		}
	}

	const halfBody = "client sends half a body" // of which an engine may see nothing
	tests := []struct {
		name    string
		respond http.HandlerFunc
		request func(i int)
	}{
		{"answered", nil, read},
		{"client closes before the first byte", forever, leave(s.client.Transport, 20*time.Millisecond)},
		{"client closes after one event", silent, leave(s.client.Transport, 0)},
		{"client resets the HTTP/2 stream before the first byte", forever, leave(h2, 20*time.Millisecond)},
		{"client resets the HTTP/2 stream after one event", silent, leave(h2, 0)},
		{"engine resets inside the stream", reset, read},
		{"engine hangs up", hangUp, read},
		{"engine answers 500 with a slow body", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			for range 5 {
				_, _ = io.WriteString(w, "sorry")
				w.(http.Flusher).Flush()
				time.Sleep(2 * time.Millisecond)
			}
		}, read},
		{"client closes its half after sending", answer, raw(func(i int) string {
			b := body(i)
			return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(b), b)
		}, true)},
		{"client leaves an upgraded connection", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "websocket")
			w.WriteHeader(http.StatusSwitchingProtocols)
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = conn.Read(make([]byte, 1))
		}, raw(func(int) string {
			return "GET /v1/realtime HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
		}, false)},
		{halfBody, answer, raw(func(i int) string {
			return "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n" + body(i)
		}, true)},
		{"a later handler panics", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Test-Panic", "1")
			event(w, "{}")
		}, read},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, e := range engines {
				e.respondWith(test.respond)
			}
			before := asked(engines)
			inParallel(rounds, test.request)
			requireIdle(t)
			seen := 0
			for i, n := range asked(engines) {
				seen += n - before[i]
			}
			require.True(t, seen > 0 || test.name == halfBody, "no engine was asked")
			for _, e := range engines {
				require.Eventually(t, func() bool { return e.openRequests() == 0 }, patience, tick, "the engine still works for nobody")
			}
		})
	}

	t.Run("and load still spreads", func(t *testing.T) {
		for _, e := range engines {
			e.respondWith(func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(100 * time.Millisecond)
				answer(w, r)
			})
		}
		before := asked(engines)
		var wait sync.WaitGroup
		for i := range 60 {
			wait.Go(func() { read(1000 + i) })
		}
		wait.Wait()
		for i, n := range asked(engines) {
			require.InDelta(t, 20, n-before[i], 6)
		}
		requireIdle(t)
	})
}

// TestPrefillIsReleasedAtTheFirstEventOfAStream looks into the books while a
// stream is open.
func TestPrefillIsReleasedAtTheFirstEventOfAStream(t *testing.T) {
	overPolicies(t, prefillIsReleasedAtTheFirstEventOfAStream)
}

func prefillIsReleasedAtTheFirstEventOfAStream(t *testing.T, policy string) {
	engine := newEngine(t)
	first, rest := make(chan struct{}), make(chan struct{})
	engine.respondWith(func(w http.ResponseWriter, r *http.Request) {
		<-first
		event(w, `{"choices":[{"delta":{"content":"a"}}]}`)
		<-rest
	})
	s := startSite(t, "lb_policy "+policy, engine.address())
	var client sync.WaitGroup
	defer client.Wait()
	client.Go(func() { s.chat(chatOf(message("user", strings.Repeat("a", 4000)))) })

	w := theState(t).members()[0]
	require.Eventually(t, func() bool { return w.Load().InFlight() == 1 }, patience, tick)
	require.InDelta(t, 1000, w.Load().Queued(), 20)
	require.Zero(t, w.Decoding())
	close(first)
	require.Eventually(t, func() bool { return w.Decoding() == 1 }, patience, tick)
	require.Zero(t, w.Load().Queued())
	require.Equal(t, 1, w.Load().InFlight())
	close(rest)
	requireIdle(t)
}
