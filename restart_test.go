package inference

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// restartable is an engine whose metrics page tells when it was started, and which
// can be made to fail its health checks.
type restartable struct {
	*mockEngine
	sick atomic.Bool
}

func newRestartable(t *testing.T) *restartable {
	e := &restartable{mockEngine: newEngine(t)}
	e.startedAt(1)
	e.respondWith(func(w http.ResponseWriter, r *http.Request) {
		if e.sick.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		answer(w, r)
	})
	return e
}

func (e *restartable) startedAt(seconds int) {
	e.metrics.Store(fmt.Sprintf("process_start_time_seconds %d\n", seconds) + cacheConfig(0, "16", "1000", ""))
}

// requireHeard waits until the engine has told of itself.
func (e *restartable) requireHeard() {
	e.t.Helper()
	require.Eventually(e.t, func() bool { return value(e.t, "kv_capacity_tokens", "upstream", e.address()) == 16_000 }, patience, tick)
}

// TestARestartThatHealthChecksSeeIsForgotten restarts an engine so that no request
// finds out: it is down only for health checks.
func TestARestartThatHealthChecksSeeIsForgotten(t *testing.T) {
	engine, other := newRestartable(t), newRestartable(t)
	other.sick.Store(true)
	s := startSite(t, "lb_policy cache_aware\nhealth_uri /health\nhealth_interval 10ms\n"+tellReason, engine.address(), other.address())
	engine.requireHeard()
	body := chatOf(message("user", letters(rand.New(rand.NewPCG(24, 24)), 4000)))
	try := func() (reason string) {
		response, err := s.client.Do(newRequest(t, s.url+"/v1/chat/completions", strings.NewReader(body)))
		require.NoError(t, err)
		defer response.Body.Close()
		return response.Header.Get("X-Reason")
	}
	require.Eventually(t, func() bool { return try() == "hit" }, patience, tick)

	engine.startedAt(2)
	engine.sick.Store(true)
	other.sick.Store(false)
	require.Eventually(t, func() bool {
		reason := try()
		return reason == "holder_unavailable" || reason == "cold"
	}, patience, tick, "it is not seen to be down")
	engine.sick.Store(false)
	require.Eventually(t, func() bool { return value(t, "believed_bytes", "upstream", engine.address()) == 0 }, patience, tick,
		"it is still believed to hold what it held")
}

// TestAnEngineThatFindsNothingIsAskedWhetherItWasRestarted restarts an engine
// between two requests: the second one's answer tells.
func TestAnEngineThatFindsNothingIsAskedWhetherItWasRestarted(t *testing.T) {
	engine := newRestartable(t) // it never finds anything
	s := startSite(t, "lb_policy cache_aware\n"+tellReason, engine.address())
	engine.requireHeard()
	body := chatOf(message("user", letters(rand.New(rand.NewPCG(25, 25)), 8000)))
	require.Equal(t, "cold", s.reason(body))
	require.Equal(t, "hit", s.reason(body))
	engine.startedAt(2)
	require.Equal(t, "hit", s.reason(body), "nobody knows yet")
	require.Eventually(t, func() bool { return value(t, "believed_bytes", "upstream", engine.address()) == 0 }, patience, tick)
	require.Equal(t, "cold", s.reason(body))
}
