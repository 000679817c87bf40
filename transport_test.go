package inference

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-inference/caddy-inference/fleet"
)

// TestCaddyProvisionsThePolicyWhereWeNeedIt fails when Caddy changes the order in
// which it provisions a reverse_proxy: after the transport that was configured,
// before the default one is made. Everything we see of responses depends on it.
func TestCaddyProvisionsThePolicyWhereWeNeedIt(t *testing.T) {
	for name, block := range map[string]string{
		"default transport":    "",
		"configured transport": "transport http {\ndial_timeout 3s\n}",
		"dynamic upstreams":    "dynamic a 127.0.0.1 PORT",
	} {
		t.Run(name, func(t *testing.T) {
			engine := newEngine(t)
			_, port, err := net.SplitHostPort(engine.address())
			require.NoError(t, err)
			s := startSite(t, "lb_policy cache_aware\n"+strings.ReplaceAll(block, "PORT", port), engine.address())
			s.chat(`{"stream":true,` + chatOf(message("user", "hello"))[1:])
			require.NotNil(t, s.lastDecision(1)["cached_tokens"], "the answer was not watched")
		})
	}
}

// TestActiveHealthChecksPassTheTransport has Caddy check health through it.
func TestActiveHealthChecksPassTheTransport(t *testing.T) {
	engines := newEngines(t, 2)
	sick := engines[0]
	sick.respondWith(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		answer(w, r)
	})
	s := startSite(t, "lb_policy cache_aware\nhealth_uri /health\nhealth_interval 10ms", addresses(engines)...)
	require.Eventually(t, func() bool { return len(engines[0].received()) > 1 && len(engines[1].received()) > 1 }, patience, tick)
	for range 10 {
		s.chat(chatOf(message("user", strings.Repeat("hello", 100))))
	}
	for _, got := range sick.received() {
		require.Equal(t, "/health", got.path)
	}
	requireIdle(t)
}

func TestWatchingIsDoneOnceForEachHandler(t *testing.T) {
	ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
	defer cancel()
	h := new(reverseproxy.Handler)
	made, err := watch(ctx, h)
	require.NoError(t, err)
	require.NotNil(t, made)
	first := h.Transport
	again, err := watch(ctx, h)
	require.NoError(t, err)
	require.Nil(t, again)
	require.Same(t, first, h.Transport)
	require.NoError(t, made.Cleanup())

	foreign := roundTripper{}
	h.Transport = foreign
	made, err = watch(ctx, h)
	require.NoError(t, err)
	require.Nil(t, made)
	require.Equal(t, foreign, h.Transport, "another kind of transport is left alone")
	require.Nil(t, watched(h))
}

type roundTripper struct{}

func (roundTripper) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, http.ErrNotSupported
}

// TestTwoProxiesInOneRequestHaveEachTheirOwnTicket has the error of one proxy
// handled by another.
func TestTwoProxiesInOneRequestHaveEachTheirOwnTicket(t *testing.T) {
	engines := newEngines(t, 2)
	s := newSite(t)
	config := s.caddyfile("lb_policy cache_aware", freeAddress(t))
	config = config[:len(config)-2] + "\nhandle_errors {\nreverse_proxy " + strings.Join(addresses(engines), " ") + " {\nlb_policy cache_aware\nheader_down X-Last {http.inference.upstream}\n}\n}\n}"
	s.load(config)
	body := chatOf(message("user", strings.Repeat("hello ", 300)))
	for range 3 {
		response, err := s.client.Post(s.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Contains(t, addresses(engines), response.Header.Get("X-Last"), "placeholders tell of the last one")
	}
	got := append(engines[0].received(), engines[1].received()...)
	require.Len(t, got, 3)
	for _, r := range got {
		require.Equal(t, body, string(r.body), "the second proxy got the body that the first could not send")
	}
	requireIdle(t)
}

// TestACommentIsNoToken sends what keeps a connection open before the first token.
func TestACommentIsNoToken(t *testing.T) {
	engine := newEngine(t)
	proceed := make(chan struct{})
	engine.respondWith(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte(": ping\n\n"))
		w.(http.Flusher).Flush()
		<-proceed
		event(w, "{}")
		<-proceed
	})
	s := startSite(t, "lb_policy cache_aware", engine.address())
	response, err := s.client.Do(newRequest(t, s.url+"/v1/chat/completions", strings.NewReader(chatOf(message("user", "hello")))))
	require.NoError(t, err)
	defer response.Body.Close()
	_, err = response.Body.Read(make([]byte, 64))
	require.NoError(t, err)
	w := theState(t).members()[0]
	require.Positive(t, w.Load().Queued())
	require.Zero(t, w.Decoding())
	proceed <- struct{}{}
	require.Eventually(t, func() bool { return w.Decoding() == 1 }, patience, tick)
	close(proceed)
}

// TestOneReverseProxyHasOnePolicyOfOurs nests the policy in a fallback of itself.
func TestOneReverseProxyHasOnePolicyOfOurs(t *testing.T) {
	for _, fallback := range []string{"cache_aware", "header X-User {\nfallback cache_aware\n}"} {
		s := newSite(t)
		err := loadCaddyfile(s.caddyfile("lb_policy cache_aware {\nfallback "+fallback+"\n}", freeAddress(t)))
		require.ErrorContains(t, err, "another policy of this plugin in the same reverse_proxy")
	}
	engine := newEngine(t)
	s := startSite(t, "lb_policy header X-User {\nfallback cache_aware\n}", engine.address())
	s.chat(chatOf(message("user", "hello")))
	require.Equal(t, "cold", s.lastDecision(1)["reason"], "it may be the fallback of another policy")
}

// TestTheEndOfAnAnswerShowsThatAWorkerDoesNotHang has one be silent for another request
// while an answer breaks off, or comes to its end.
func TestTheEndOfAnAnswerShowsThatAWorkerDoesNotHang(t *testing.T) {
	inSuspicion(t, func(s *state, w *worker, _ *door, _ *observer.ObservedLogs) {
		w.Place(100, s.clock.now()).Expect(fleet.Streamed, s.clock.now())
		time.Sleep(time.Minute)
		respond := func() *responseBody {
			return &responseBody{
				ReadCloser: io.NopCloser(strings.NewReader("the rest")),
				ticket:     &ticket{state: s, worker: w},
				heard:      s.clock.now(),
			}
		}
		require.NoError(t, respond().Close())
		require.Positive(t, w.Overdue(s.clock.now()))
		_, err := io.Copy(io.Discard, respond())
		require.NoError(t, err)
		require.Zero(t, w.Overdue(s.clock.now()))
	})
}
