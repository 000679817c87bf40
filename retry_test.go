package inference

import (
	"bufio"
	"bytes"
	"math/rand/v2"
	"net"
	"net/http"
	"testing"

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
	tests := []struct {
		name    string
		block   string
		respond http.HandlerFunc // nil: nobody listens
	}{
		{"nobody listens", "lb_retries 3", nil},
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
			s := startSite(t, "lb_policy cache_aware\n"+test.block, list...)
			random := rand.New(rand.NewPCG(6, 6))
			for i := range 20 {
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
	engines := newEngines(t, 3)
	for _, e := range engines {
		e.respondWith(refuse(http.StatusServiceUnavailable))
	}
	s := startSite(t, "lb_policy cache_aware\nlb_retries 10\nlb_retry_match {\nexpression `{rp.status_code} == 503`\n}", addresses(engines)...)
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
