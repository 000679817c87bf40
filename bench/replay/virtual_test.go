package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-inference/caddy-inference/enginesim"
	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/bench/router"
	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// TestSimulatedEnginesAgreeWithTheModel has the simulated engines, with their HTTP,
// tokens and blocks, serve what the model serves, in a bubble in which time passes as
// it does in the model. TRACE=file takes another trace, and all of it.
func TestSimulatedEnginesAgreeWithTheModel(t *testing.T) {
	name, minutes := "agents", 5.0
	if file := os.Getenv("TRACE"); file != "" {
		name, minutes = file, 0
	}
	requests, err := trace.ByName(name, 1)
	require.NoError(t, err)
	for _, capacity := range []int{fleetCapacity, fleetCapacity / 4} {
		s := scenario{Capacity: capacity, Minutes: minutes}.withDefaults()
		requests := s.cut(requests)
		want, _, err := modelled(s, requests, "round_robin")
		require.NoError(t, err)
		var prefills []enginesim.Prefill
		synctest.Test(t, func(t *testing.T) { prefills = serveInTurn(t, s, requests) })
		p := player{scenario: s, router: router.External{}, speed: 1, trace: requests}
		got := p.summarize(&recording{start: prefills[0].Arrived, prefills: [][]enginesim.Prefill{prefills}})
		t.Logf("%d tokens: mean %.4f, model %.4f; hit %.4f, model %.4f", capacity, got.Engine.Mean, want.Engine.Mean, *got.Hit, *want.Hit)
		require.InEpsilon(t, want.Engine.Mean, got.Engine.Mean, 0.01)
		require.InEpsilon(t, want.Engine.P99, got.Engine.P99, 0.01)
		require.InDelta(t, *want.Hit, *got.Hit, 0.001)
	}
}

// serveInTurn sends requests to new engines in turn, each at its time.
func serveInTurn(t *testing.T, s scenario, requests []trace.Request) (prefills []enginesim.Prefill) {
	var mu sync.Mutex
	servers := make([]*enginesim.Server, s.Engines)
	for i := range servers {
		server, err := enginesim.NewServer(s.engine(1, "sim"))
		require.NoError(t, err)
		server.Watch(func(p enginesim.Prefill) {
			mu.Lock()
			defer mu.Unlock()
			prefills = append(prefills, p)
		})
		servers[i] = server
	}
	c := newClient(apis["completions"], "sim")
	start := time.Now()
	var group sync.WaitGroup
	for i := range requests {
		time.Sleep(time.Until(start.Add(requests[i].At)))
		group.Go(func() {
			_, body := c.body(&requests[i])
			r := httptest.NewRequest(http.MethodPost, c.api.path, body())
			servers[i%s.Engines].ServeHTTP(httptest.NewRecorder(), r)
		})
	}
	group.Wait()
	return prefills
}
