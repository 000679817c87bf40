package inference

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hangUp ends the connection without an answer.
func hangUp(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		conn.Close()
	}
}

func refuse(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
}

// TestARetryFindsTheBodyWhole fails the first engines in every way Caddy retries
// after, and requires that the next gets the client's bytes.
func TestARetryFindsTheBodyWhole(t *testing.T) {
	overPolicies(t, aRetryFindsTheBodyWhole)
}

func aRetryFindsTheBodyWhole(t *testing.T, policy string) {
	tests := []struct {
		name    string
		block   string
		respond http.HandlerFunc // nil: nobody listens
	}{
		{"nobody listens", "lb_retries 3", nil},
		{"nobody listens, and nothing is configured", "", nil},
		{"the connection breaks after the body was read", "lb_retries 3\nlb_retry_match {\nmethod POST\n}", hangUp},
		{"the answer is to be retried", "lb_retries 3\nlb_retry_match {\nexpression `{rp.status_code} == 503`\n}", refuse(http.StatusServiceUnavailable)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			good := newEngine(t)
			list := []string{good.address()}
			var bad []*mockEngine
			for range 3 {
				if test.respond == nil {
					list = append(list, freeAddress(t))
					continue
				}
				e := newEngine(t)
				e.respondWith(test.respond)
				bad = append(bad, e)
				list = append(list, e.address())
			}
			s := startSite(t, "lb_policy "+policy+"\n"+test.block, list...)
			random := rand.New(rand.NewPCG(6, 6))
			for i := range 8 {
				body := chatOf(message("user", letters(random, 5000)))
				s.chat(body)
				got := good.received()
				require.Len(t, got, i+1)
				require.Equal(t, body, string(got[i].body))
			}
			for _, e := range bad {
				for _, got := range e.received() {
					require.Greater(t, len(got.body), 5000)
				}
			}
			requireIdle(t)
		})
	}
}

func TestRetryNeverReturnsToTheSameWorker(t *testing.T) {
	overPolicies(t, retryNeverReturnsToTheSameWorker)
}

func retryNeverReturnsToTheSameWorker(t *testing.T, policy string) {
	engines := newEngines(t, 3)
	for _, e := range engines {
		e.respondWith(refuse(http.StatusServiceUnavailable))
	}
	s := startSite(t, "lb_policy "+policy+"\nlb_retries 10\nlb_retry_match {\nexpression `{rp.status_code} == 503`\n}", addresses(engines)...)
	random := rand.New(rand.NewPCG(7, 7))
	for i := range 10 {
		status, _ := s.post("/v1/chat/completions", chatOf(message("user", letters(random, 500))))
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Equal(t, []int{i + 1, i + 1, i + 1}, asked(engines))
		require.Equal(t, 3.0, s.lastDecision(i + 1)["attempts"])
	}
	requireIdle(t)
}

// TestWaitingForTheOnlyWorkerToComeBack lets Caddy keep trying while an engine
// restarts. Nothing can be running on a worker that could not be connected to, so
// it may be tried again when there is no other.
func TestWaitingForTheOnlyWorkerToComeBack(t *testing.T) {
	address := freeAddress(t)
	s := startSite(t, "lb_policy cache_aware\nlb_try_duration 20s\nlb_try_interval 20ms", address)
	done := make(chan int)
	go func() {
		status, _ := s.post("/v1/chat/completions", chatOf(message("user", "hello")))
		done <- status
	}()
	w := theState(t).members()[0]
	require.Eventually(t, func() bool { return w.Assigned() >= 2 }, patience, tick, "not tried again")
	listener, err := net.Listen("tcp", address)
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(answer)}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	require.Equal(t, http.StatusOK, <-done)
	requireIdle(t)
}

// TestARequestThatWasNotServedIsNotBelievedHeld sends a prompt that every engine
// refuses: it must not draw the next one like it.
func TestARequestThatWasNotServedIsNotBelievedHeld(t *testing.T) {
	for _, status := range []int{http.StatusBadRequest, http.StatusTooManyRequests, http.StatusInternalServerError} {
		engines := newEngines(t, 4)
		s := startSite(t, "lb_policy cache_aware", addresses(engines)...)
		body := chatOf(message("user", letters(rand.New(rand.NewPCG(8, 8)), 4000)))
		for _, e := range engines {
			e.respondWith(refuse(status))
		}
		got, _ := s.post("/v1/chat/completions", body)
		require.Equal(t, status, got, "passed on as it is")
		for _, e := range engines {
			e.respondWith(nil)
		}
		s.chat(body)
		require.Equal(t, "cold", s.lastDecision(2)["reason"])
		s.chat(body)
		require.Equal(t, "hit", s.lastDecision(3)["reason"])
		requireIdle(t)
	}
}

// TestTooLargeABodyIsRefusedByCaddy has request_body cut the body off while it is
// read: the client must get Caddy's own answer, and no engine a shorter body.
func TestTooLargeABodyIsRefusedByCaddy(t *testing.T) {
	engine := newEngine(t)
	s := newSite(t)
	config := s.caddyfile("lb_policy cache_aware", engine.address())
	config = config[:len(config)-2] + "\nrequest_body {\nmax_size 1KB\n}\n}"
	s.load(config)

	big := []byte(chatOf(message("user", letters(rand.New(rand.NewPCG(9, 9)), 5000))))
	for name, body := range map[string]*http.Request{
		"declared": newRequest(t, s.url+"/v1/chat/completions", bytes.NewReader(big)),
		"chunked":  newRequest(t, s.url+"/v1/chat/completions", bufio.NewReader(bytes.NewReader(big))),
	} {
		response, err := s.client.Do(body)
		require.NoError(t, err, name)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusRequestEntityTooLarge, response.StatusCode, name)
	}
	for _, got := range engine.received() {
		require.NotEqual(t, len(got.body), len(big))
	}
	s.chat(chatOf(message("user", "short")))
	requireIdle(t)
}

// TestTheOnlyUpstreamIsTriedAsCaddyIsTold has one upstream, and retries that the
// user asked for.
func TestTheOnlyUpstreamIsTriedAsCaddyIsTold(t *testing.T) {
	engine := newEngine(t)
	busy := 2
	engine.respondWith(func(w http.ResponseWriter, r *http.Request) {
		if busy--; busy >= 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		answer(w, r)
	})
	s := startSite(t, "lb_policy cache_aware\nlb_retries 3\nlb_retry_match {\nexpression `{rp.status_code} == 503`\n}", engine.address())
	s.chat(chatOf(message("user", "hello")))
	require.Equal(t, 3.0, s.lastDecision(1)["attempts"])
	requireIdle(t)
}

// ending is an engine that goes away while it has a chat, as a process does that is
// killed: in one order or the other.
type ending struct {
	net.Listener
	end   func(e *ending, conn net.Conn) // with a chat read from conn
	chats atomic.Int32

	last atomic.Bool // the next connection that is taken is dropped, and is the last one
}

func startEnding(t *testing.T, network, address string, end func(*ending, net.Conn)) *ending {
	t.Helper()
	listener, err := net.Listen(network, address)
	require.NoError(t, err)
	e := &ending{Listener: listener, end: end}
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if e.last.Load() {
				listener.Close()
				conn.Close()
				return
			}
			connections.Go(func() { e.serve(conn) })
		}
	})
	t.Cleanup(func() { listener.Close(); connections.Wait() })
	return e
}

// serve answers what is no chat until a chat comes.
func (e *ending) serve(conn net.Conn) {
	defer conn.Close()
	for in := bufio.NewReader(conn); ; {
		request, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, request.Body)
		if request.Method == http.MethodPost {
			e.chats.Add(1)
			e.end(e, conn)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
	}
}

// TestAnEngineThatEndsCostsNoRequest has the engine that a chat is sent to go away in
// the middle of it.
func TestAnEngineThatEndsCostsNoRequest(t *testing.T) {
	listenerFirst := func(e *ending, conn net.Conn) { e.Close(); conn.Close() }
	reset := func(conn net.Conn) {
		_ = conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
	for name, test := range map[string]struct {
		network string
		end     func(*ending, net.Conn)
	}{
		"it closes its listener first": {"tcp", listenerFirst},
		"on a Unix socket":             {"unix", listenerFirst},
		"it resets the connection": {"tcp", func(e *ending, conn net.Conn) {
			e.Close()
			reset(conn)
		}},
		"it takes one more connection": {"tcp", func(e *ending, conn net.Conn) { e.last.Store(true); conn.Close() }},
		"it takes one more connection and resets it": {"tcp", func(e *ending, conn net.Conn) {
			e.last.Store(true)
			reset(conn)
		}},
		"it was about to answer": {"tcp", func(e *ending, conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: ")
			listenerFirst(e, conn)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			engine := newEngine(t)
			address := "127.0.0.1:0"
			if test.network == "unix" {
				address = filepath.Join(t.TempDir(), "engine")
			}
			ending := startEnding(t, test.network, address, test.end)
			upstream := ending.Addr().String()
			if test.network == "unix" {
				upstream = "unix/" + upstream
			}
			s := startSite(t, "lb_policy cache_aware", upstream, engine.address())
			random := rand.New(rand.NewPCG(10, 10))
			for i := range 4 { // both are idle, so both are asked
				body := chatOf(message("user", letters(random, 5000)))
				s.chat(body)
				got := engine.received()
				require.Len(t, got, i+1)
				require.Equal(t, body, string(got[i].body))
			}
			require.Positive(t, ending.chats.Load())
			requireIdle(t)
		})
	}
}

// TestAnEngineThatEndsCostsNoRequestInAnyProtocol ends whole servers.
func TestAnEngineThatEndsCostsNoRequestInAnyProtocol(t *testing.T) {
	for name, test := range map[string]struct {
		block, scheme string
		start         func(*httptest.Server)
	}{
		"TLS": {"transport http {\ntls_insecure_skip_verify\n}", "https://", (*httptest.Server).StartTLS},
		"HTTP/2 over TLS": {"transport http {\ntls_insecure_skip_verify\n}", "https://", func(s *httptest.Server) {
			s.EnableHTTP2 = true
			s.StartTLS()
		}},
		"HTTP/2 without TLS": {"", "h2c://", func(s *httptest.Server) {
			s.Config.Protocols = new(http.Protocols)
			s.Config.Protocols.SetUnencryptedHTTP2(true)
			s.Start()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			engines := make([]*mockEngine, 3)
			upstreams := make([]string, len(engines))
			for i := range engines {
				e := &mockEngine{t: t}
				e.metrics.Store("")
				e.Server = httptest.NewUnstartedServer(e)
				test.start(e.Server)
				t.Cleanup(e.Close)
				engines[i], upstreams[i] = e, test.scheme+e.address()
			}
			s := startSite(t, "lb_policy cache_aware\n"+test.block, upstreams...)
			for _, e := range engines[:2] {
				e.respondWith(func(_ http.ResponseWriter, r *http.Request) {
					assert.NoError(t, e.Config.Close())
					<-r.Context().Done()
				})
			}
			random := rand.New(rand.NewPCG(11, 11))
			for range 4 {
				s.chat(chatOf(message("user", letters(random, 3000))))
			}
			require.Equal(t, []int{1, 1, 4}, asked(engines))
			requireIdle(t)
		})
	}
}

// TestWhatMayBeRunningIsNotSentAgain has every engine fail in a way after which a
// generation may have begun, or give an answer that is for the client to act on.
func TestWhatMayBeRunningIsNotSentAgain(t *testing.T) {
	status := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(status)
		}
	}
	say := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, text)
				conn.Close()
			}
		}
	}
	tests := []struct {
		name       string
		respond    http.HandlerFunc
		status     int
		retryAfter string
		cut        bool
	}{
		{"the connection breaks, and the engine still listens", hangUp, http.StatusBadGateway, "", false},
		{"the connection breaks in the head of the answer", say("HTTP/1.1 200 OK\r\nContent-Type: "), http.StatusBadGateway, "", false},
		{"the connection breaks in the answer", say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"), http.StatusOK, "", true},
		{"too many requests", status(http.StatusTooManyRequests), http.StatusTooManyRequests, "7", false},
		{"a bad request", status(http.StatusBadRequest), http.StatusBadRequest, "7", false},
		{"a failure", status(http.StatusInternalServerError), http.StatusInternalServerError, "7", false},
		{"overload", status(http.StatusServiceUnavailable), http.StatusServiceUnavailable, "7", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			engines := newEngines(t, 3)
			for _, e := range engines {
				e.respondWith(test.respond)
			}
			s := startSite(t, "lb_policy cache_aware", addresses(engines)...)
			response, err := s.client.Do(newRequest(t, s.url+"/v1/chat/completions", strings.NewReader(chatOf(message("user", "hello")))))
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, response.Body)
			require.Equal(t, test.cut, err != nil, "%v", err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, test.status, response.StatusCode)
			require.Equal(t, test.retryAfter, response.Header.Get("Retry-After"))
			n := asked(engines)
			require.Equal(t, 1, n[0]+n[1]+n[2])
			requireIdle(t)
		})
	}
}

// TestABodyThatIsNotHeldIsNeverSentOnFromItsMiddle has an engine go away with a body that
// nothing, or only the beginning, is held of: no other may take what is left for all.
func TestABodyThatIsNotHeldIsNeverSentOnFromItsMiddle(t *testing.T) {
	overPolicies(t, aBodyThatIsNotHeldIsNeverSentOnFromItsMiddle)
}

func aBodyThatIsNotHeldIsNeverSentOnFromItsMiddle(t *testing.T, policy string) {
	const anyError = "lb_retries 1\nlb_retry_match {\nmethod POST\n}"
	random := rand.New(rand.NewPCG(13, 13))
	const size = 100_000
	length := int64(len(chatOf(message("user", letters(random, size)))))
	for name, test := range map[string]struct {
		path, block string
		header      [2]string
		length      int64
		lost        bool
	}{
		"an endpoint that is not known":                  {path: "/v1/foo", length: -1, lost: true},
		"an endpoint that is not known, with a length":   {path: "/v1/foo", length: length, lost: true},
		"a coding that is not known":                     {path: "/v1/chat/completions", header: [2]string{"Content-Encoding", "aes128gcm"}, length: -1, lost: true},
		"one that is to be sent as it comes":             {path: "/v1/chat/completions", header: [2]string{"Incremental", "?1"}, length: -1, lost: true},
		"one longer than max_body":                       {path: "/v1/chat/completions", length: -1, lost: true},
		"what the user has sent again whatever happened": {path: "/v1/foo", block: anyError, length: -1, lost: true},
		"the same, longer than max_body":                 {path: "/v1/chat/completions", block: anyError, length: -1, lost: true},
		"the same, and Caddy holds it":                   {path: "/v1/foo", block: anyError + "\nrequest_buffers 1MiB", length: -1},
	} {
		t.Run(name, func(t *testing.T) {
			engine := newEngine(t)
			ending := startEnding(t, "tcp", "127.0.0.1:0", func(e *ending, conn net.Conn) { e.Close(); conn.Close() })
			s := startSite(t, "lb_policy "+policy+" {\nmax_body 64KiB\n}\n"+test.block, ending.Addr().String(), engine.address())
			lost := 0
			for range 32 {
				if ending.chats.Load() > 0 {
					break
				}
				text := chatOf(message("user", letters(random, size)))
				request := newRequest(t, s.url+test.path, struct{ io.Reader }{strings.NewReader(text)})
				request.ContentLength = test.length
				if test.header[0] != "" {
					request.Header.Set(test.header[0], test.header[1])
				}
				response, err := s.client.Do(request)
				require.NoError(t, err)
				require.NoError(t, response.Body.Close())
				if response.StatusCode == http.StatusBadGateway {
					lost++
					continue
				}
				require.Equal(t, http.StatusOK, response.StatusCode)
				got := engine.received()
				require.Equal(t, hash([]byte(text)), hash(got[len(got)-1].body))
			}
			chats := int(ending.chats.Load())
			require.Positive(t, chats)
			if !test.lost {
				chats = 0
			}
			require.Equal(t, chats, lost)
			requireIdle(t)
		})
	}
}

// TestAHandshakeThatFailsCostsNoRequest has one of two engines be behind something that
// takes connections and does not get beyond the handshake of TLS.
func TestAHandshakeThatFailsCostsNoRequest(t *testing.T) {
	for name, end := range map[string]func(net.Conn){
		"it hangs up": func(net.Conn) {},
		"it resets":   func(conn net.Conn) { _ = conn.(*net.TCPConn).SetLinger(0) },
		"it speaks no TLS": func(conn net.Conn) {
			_, _ = conn.Read(make([]byte, 1))
			_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			var taken atomic.Int32
			var taking sync.WaitGroup
			taking.Go(func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					taken.Add(1)
					end(conn)
					conn.Close()
				}
			})
			defer taking.Wait()
			defer listener.Close()
			engine := &mockEngine{t: t}
			engine.metrics.Store("")
			engine.Server = httptest.NewUnstartedServer(engine)
			engine.StartTLS()
			defer engine.Close()
			s := startSite(t, "lb_policy cache_aware\ntransport http {\ntls_insecure_skip_verify\n}",
				"https://"+listener.Addr().String(), "https://"+engine.address())
			random := rand.New(rand.NewPCG(14, 14))
			attempts := 0.0
			for i := range 4 {
				s.chat(chatOf(message("user", letters(random, 3000))))
				attempts += s.lastDecision(i + 1)["attempts"].(float64)
			}
			require.Positive(t, taken.Load())
			require.Greater(t, attempts, 4.0)
			requireIdle(t)
		})
	}
}

// TestWhatIsSentAgainAfterAHandshakeThatFailed also has what failed otherwise before there
// was a connection, which no other worker would do better with.
func TestWhatIsSentAgainAfterAHandshakeThatFailed(t *testing.T) {
	left, leave := context.WithCancel(t.Context())
	leave()
	for name, test := range map[string]struct {
		ctx       context.Context
		tlsFailed bool
		conn      net.Conn
		body      *body
		want      bool
	}{
		"no body":                     {t.Context(), true, nil, nil, true},
		"a body that was sent before": {t.Context(), true, nil, &body{err: errBodySent}, false},
		"the client has left":         {left, true, nil, nil, false},
		"no handshake was tried":      {t.Context(), false, nil, nil, false},
		"another connection than the one it was sent on": {t.Context(), true, &net.TCPConn{}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(test.ctx, http.MethodPost, "https://engine:8000/", nil)
			require.NoError(t, err)
			by := &ticket{conn: test.conn, body: test.body}
			by.tlsFailed.Store(test.tlsFailed)
			failure := errors.New("it failed")
			err = new(transport).unanswered(request, by, failure)
			require.ErrorContains(t, err, failure.Error())
			var dial reverseproxy.DialError
			require.Equal(t, test.want, errors.As(err, &dial))
		})
	}
}

// TestWhatSaysThatAConnectionBroke has the errors that net/http may return for it.
func TestWhatSaysThatAConnectionBroke(t *testing.T) {
	for text, err := range map[string]error{
		"the head could not be written": &net.OpError{Op: "write", Net: "tcp", Err: net.ErrClosed},
		"the body cannot be had again":  errors.New("net/http: cannot rewind body after connection loss"),
		"HTTP/2, writing had failed":    errors.New("http2: client connection force closed via ClientConn.Close"),
		"HTTP/2, as it was made":        errors.New("http2: client conn could not be established"),
		"a reset":                       fmt.Errorf("reading: %w", syscall.ECONNRESET),
	} {
		require.True(t, broke(err), text)
	}
	for _, err := range []error{context.Canceled, os.ErrDeadlineExceeded, errBodySent, errBodyLetGo, errors.New("net/http: timeout awaiting response headers")} {
		require.False(t, broke(err), "%v", err)
	}
}

// TestThatNobodyListensIsSeenFromWhereTheConnectionWasMade has one from an address that
// none can be made from any more: what refuses another address may serve this one.
func TestThatNobodyListensIsSeenFromWhereTheConnectionWasMade(t *testing.T) {
	remote, err := net.ResolveTCPAddr("tcp", freeAddress(t))
	require.NoError(t, err)
	for address, want := range map[string]bool{"127.0.0.1": true, "192.0.2.1": false} {
		broken := between{local: &net.TCPAddr{IP: net.ParseIP(address), Port: 1}, remote: remote}
		require.Equal(t, want, nobodyListens(t.Context(), broken), address)
	}
}

// between is a connection that has ended.
type between struct {
	net.Conn
	local, remote net.Addr
}

func (b between) LocalAddr() net.Addr  { return b.local }
func (b between) RemoteAddr() net.Addr { return b.remote }

// TestAPromptThatWasTakenBackForAnotherIsBelievedHeld has an engine refuse a prompt while
// it has an equal one, which it then answers.
func TestAPromptThatWasTakenBackForAnotherIsBelievedHeld(t *testing.T) {
	engine := newEngine(t)
	var n atomic.Int32
	proceed := []chan struct{}{make(chan struct{}), make(chan struct{})}
	engine.respondWith(func(w http.ResponseWriter, r *http.Request) {
		i := int(n.Add(1)) - 1
		if i < len(proceed) {
			<-proceed[i]
		}
		if i == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		answer(w, r)
	})
	s := startSite(t, "lb_policy cache_aware", engine.address())
	body := chatOf(message("user", letters(rand.New(rand.NewPCG(15, 15)), 4000)))
	statuses := make([]chan int, len(proceed))
	for i := range statuses {
		statuses[i] = make(chan int, 1)
		go func() {
			status, _ := s.post("/v1/chat/completions", body)
			statuses[i] <- status
		}()
		require.Eventually(t, func() bool { return int(n.Load()) == i+1 }, patience, tick)
	}
	close(proceed[0])
	require.Equal(t, http.StatusServiceUnavailable, <-statuses[0])
	close(proceed[1])
	require.Equal(t, http.StatusOK, <-statuses[1])
	s.chat(body)
	require.Equal(t, "hit", s.lastDecision(3)["reason"])
	requireIdle(t)
}

// TestARequestIsSentToSixWorkersAtMost has a fleet of which nothing is left.
func TestARequestIsSentToSixWorkersAtMost(t *testing.T) {
	var nobody []string
	for range 9 {
		nobody = append(nobody, freeAddress(t))
	}
	s := startSite(t, "lb_policy cache_aware", nobody...)
	status, _ := s.post("/v1/chat/completions", chatOf(message("user", "hello")))
	require.Equal(t, http.StatusBadGateway, status)
	require.EqualValues(t, 1+mostRetries, s.lastDecision(1)["attempts"])
	requireIdle(t)
}

// TestAForwardProxyThatEndsSaysNothingOfTheEngine has what is between us and the
// engines go away: one of them may have the chat.
func TestAForwardProxyThatEndsSaysNothingOfTheEngine(t *testing.T) {
	proxy := startEnding(t, "tcp", "127.0.0.1:0", func(e *ending, conn net.Conn) { e.Close(); conn.Close() })
	s := startSite(t, "lb_policy cache_aware\ntransport http {\nnetwork_proxy url http://"+proxy.Addr().String()+"\n}", freeAddress(t), freeAddress(t))
	status, _ := s.post("/v1/chat/completions", chatOf(message("user", "hello")))
	require.Equal(t, http.StatusBadGateway, status)
	require.Equal(t, 1.0, s.lastDecision(1)["attempts"])
}

// TestWhatAnEngineHasNotTakenIsSentOnAnotherConnection has an engine close a
// connection of HTTP/2 and say that it did not take the last request.
func TestWhatAnEngineHasNotTakenIsSentOnAnotherConnection(t *testing.T) {
	for header, want := range map[string]bool{"": true, "Idempotency-Key": false, "X-Idempotency-Key": false} {
		synctest.Test(t, func(t *testing.T) {
			p := newPipes(nil)
			protocols := new(http.Protocols)
			protocols.SetUnencryptedHTTP2(true)
			var got []byte
			engine := &http.Server{ReadHeaderTimeout: time.Minute, Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got, _ = io.ReadAll(r.Body)
				w.WriteHeader(http.StatusOK)
			})}
			go func() {
				goAway(p)
				_ = engine.Serve(p)
			}()
			defer engine.Close()
			ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
			defer cancel()
			h := reverseproxy.HTTPTransport{Versions: []string{"h2c", "2"}}
			require.NoError(t, h.Provision(ctx))
			h.Transport.DialContext = p.dial
			defer func() { assert.NoError(t, h.Cleanup()) }()

			text := strings.Repeat("a", 3000)
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://engine:8000/", strings.NewReader(text))
			require.NoError(t, err)
			r.GetBody = nil
			if header != "" {
				r.Header.Set(header, "1")
			}
			held := new(budget)
			held.limit.Store(1 << 20)
			ticket := &ticket{body: readBody(r, 1<<20, held)}
			ticket.restore(r)
			response, err := h.RoundTrip(traced(r, ticket))
			if !want {
				require.Error(t, err, "with %s net/http would also send what the engine took", header)
				return
			}
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, text, string(got))
		})
	}
}

// goAway takes a connection and the first request on it, and closes it saying that it
// was not looked at.
func goAway(l net.Listener) {
	conn, err := l.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	go func() { _, _ = conn.Write([]byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00")) }() // SETTINGS
	_, _ = io.CopyN(io.Discard, conn, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))
	for data := false; !data; {
		var head [9]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return
		}
		length := int64(head[0])<<16 | int64(head[1])<<8 | int64(head[2])
		data = head[3] == 0 && length > 0
		_, _ = io.CopyN(io.Discard, conn, length)
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	_, _ = conn.Write([]byte("\x00\x00\x08\x07\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00")) // GOAWAY: none was taken, no error
}

// TestAnUploadThatBreaksOffIsNotTheEnginesFault has clients leave in the middle of what
// they send, which fails as if the engine's connection had broken.
func TestAnUploadThatBreaksOffIsNotTheEnginesFault(t *testing.T) {
	for _, path := range []string{"/v1/chat/completions", "/upload"} {
		engine := newEngine(t)
		s := startSite(t, "lb_policy cache_aware", engine.address())
		s.chat(chatOf(message("user", "hello")))
		w := theState(t).members()[0]
		for range 3 {
			conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
			require.NoError(t, err)
			_, err = io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: "+strings.TrimPrefix(s.url, "http://")+"\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat("a", 50000))
			require.NoError(t, err)
			require.NoError(t, conn.(*net.TCPConn).CloseWrite())
			_, _ = io.Copy(io.Discard, conn)
			require.NoError(t, conn.Close())
		}
		require.Zero(t, w.breaks.Load(), path)
		require.False(t, w.suspected(), path)
		requireIdle(t)
	}
}

// TestAPooledConnectionThatClosesAsItIsTakenIsBroken has an engine close a connection
// between two requests just as the second is given it, which net/http tells by an error
// that only its text is known of.
func TestAPooledConnectionThatClosesAsItIsTakenIsBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes(nil)
		engine := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(answer)}
		go func() { _ = engine.Serve(p) }()
		transport := &http.Transport{DialContext: p.dial}
		require.NoError(t, post(transport, "http"))
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
			assert.True(t, info.Reused)
			require.NoError(t, engine.Close())
			synctest.Wait()
		}})
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://engine:8000/", strings.NewReader("a"))
		require.NoError(t, err)
		_, err = transport.RoundTrip(r) //nolint:bodyclose // there is none
		require.EqualError(t, err, closedIdle)
		require.True(t, broke(err))
	})
}
