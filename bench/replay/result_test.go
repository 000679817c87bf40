package main

import (
	"errors"
	"testing"
	"time"

	"github.com/caddy-inference/caddy-inference/enginesim"
	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/bench/router"
	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// TestTimesAreAsIfNothingHadBeenCompressed works out a recording by hand: four
// requests, twenty times as fast, of which one fails.
func TestTimesAreAsIfNothingHadBeenCompressed(t *testing.T) {
	start := time.Now()
	p := &player{
		scenario: scenario{Name: "s"},
		router:   router.External{Label: "r"},
		speed:    20,
		trace:    []trace.Request{{At: 0}, {At: time.Minute}, {At: 11 * time.Minute}, {At: 12 * time.Minute}},
	}
	got := p.summarize(&recording{
		start: start,
		took:  36 * time.Second,
		known: true,
		usage: router.Usage{CPU: 8 * time.Millisecond, PeakRSS: 7},
		answers: []answer{
			{first: 50 * time.Millisecond, whole: 100 * time.Millisecond, events: 3},
			{first: 150 * time.Millisecond, whole: 300 * time.Millisecond, events: 3},
			{first: 100 * time.Millisecond, whole: 200 * time.Millisecond, events: 3},
			{err: errors.New("refused"), late: time.Second},
		},
		prefills: [][]enginesim.Prefill{
			{{Arrived: start, Prompt: 100, Cached: 40, Wait: time.Second}, {Arrived: start.Add(3 * time.Second), Prompt: 100, Wait: 3 * time.Second}},
			{{Arrived: start.Add(33 * time.Second), Prompt: 200, Cached: 160, Wait: 2 * time.Second}},
		},
	})
	require.Equal(t, 4, got.Requests)
	require.Equal(t, 1, got.Errors)
	require.Equal(t, "refused", got.Failure)
	require.InDelta(t, 0.5, *got.Hit, 1e-9)
	require.InDelta(t, 1.6, got.Busiest, 1e-9, "160 tokens of 200 on one of two")
	require.InDelta(t, 2, got.Engine.Mean, 1e-9)
	require.InDelta(t, 2, got.Engine.P50, 1e-9)
	require.InDelta(t, 3, got.Engine.P99, 1e-9)
	require.InDelta(t, 2, got.Client.Mean, 1e-9)
	require.InDelta(t, 4, got.Whole.Mean, 1e-9)
	require.InDelta(t, 20, got.Late, 1e-9)
	require.InDelta(t, 2, got.CPU, 1e-9)
	require.Equal(t, int64(7), got.PeakRSS)
	require.Equal(t, 9, got.Events)
	require.Len(t, got.Segments, 2)
	require.InDelta(t, 2, got.Segments[0].Engine, 1e-9)
	require.InDelta(t, 600, got.Segments[1].Start, 1e-9)
	require.InDelta(t, 2, got.Segments[1].Engine, 1e-9)
	require.Equal(t, 2, got.Segments[1].Requests)
}

func TestWhatTheEngineDoesNotTellComesFromItsUsage(t *testing.T) {
	p := &player{router: router.External{Label: "r"}, speed: 1, trace: make([]trace.Request, 2)}
	got := p.summarize(&recording{answers: []answer{
		{first: time.Second, prompt: 100, cached: 50},
		{first: 3 * time.Second, prompt: 300, cached: 250},
	}})
	require.InDelta(t, 0.75, *got.Hit, 1e-9)
	require.Nil(t, got.Engine)
	require.InDelta(t, 2, got.ttft().Mean, 1e-9)
	least, most := got.spread()
	require.InDelta(t, 2, least, 1e-9)
	require.InDelta(t, 2, most, 1e-9)
}

func TestRequestsAreSentApart(t *testing.T) {
	got := spread([]trace.Request{{At: 0}, {At: 0}, {At: 0}, {At: 60 * time.Millisecond}, {At: time.Second}})
	var at []time.Duration
	for _, r := range got {
		at = append(at, r.At)
	}
	require.Equal(t, []time.Duration{0, apart, 2 * apart, 3 * apart, time.Second}, at)
}

func TestNothingIsKnownOfRequestsThatFailed(t *testing.T) {
	p := &player{router: router.External{Label: "r"}, speed: 1, trace: make([]trace.Request, 2)}
	got := p.summarize(&recording{answers: []answer{{err: errors.New("no")}, {err: errors.New("no")}}})
	require.Equal(t, 2, got.Errors)
	require.Nil(t, got.ttft())
	r := report{Scenarios: []scenario{{Name: "s"}}, Results: []result{got}}
	require.NoError(t, r.writeCharts(t.TempDir()))
}
