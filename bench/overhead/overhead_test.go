package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/caddy-inference/caddy-inference/bench/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEverythingIsCountedAndWritten(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections() // it asked the routers whether they answer
	dir := filepath.Join(t.TempDir(), "results")
	var tables, progress bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-quick", "-o", dir}, &tables, &progress), progress.String())

	content, err := os.ReadFile(filepath.Join(dir, "overhead.json"))
	require.NoError(t, err)
	var r report
	require.NoError(t, json.Unmarshal(content, &r))
	require.Equal(t, []string{direct, base, "cache_aware"}, r.Rows)
	require.Len(t, r.Cells, len(quickGrid()))
	for _, c := range r.Cells {
		for _, of := range c.Rows {
			requireCounted(t, c.Cell, of)
		}
	}
	require.Len(t, r.Memory, 2)
	for _, m := range r.Memory {
		require.Positive(t, m.RSS)
		require.GreaterOrEqual(t, m.PeakRSS, m.RSS)
	}

	content, err = os.ReadFile(filepath.Join(dir, "overhead.md"))
	require.NoError(t, err)
	require.Equal(t, tables.String(), string(content))
	content, err = os.ReadFile(filepath.Join(dir, "overhead.csv"))
	require.NoError(t, err)
	lines, err := csv.NewReader(bytes.NewReader(content)).ReadAll()
	require.NoError(t, err)
	require.Len(t, lines, 1+len(r.Cells)*len(r.Rows))
	row, cpu := slices.Index(lines[0], "row"), slices.Index(lines[0], "router_cpu_seconds")
	for _, line := range lines[1:] { // how much it is, a slice is too short to tell
		require.Equal(t, line[row] == direct, line[cpu] == "", line)
	}
}

func requireCounted(t *testing.T, c cell, of rowResult) {
	t.Helper()
	name := c.String() + ": " + of.Row
	require.Zero(t, of.Errors, "%s: %s", name, of.Failure)
	require.Equal(t, 1, of.Rounds, name)
	require.Positive(t, of.P50, name)
	require.GreaterOrEqual(t, of.P99, of.P50, name)
	require.Positive(t, of.Rate, name)
	require.Positive(t, of.RateRatio.Median, name)
	if of.Row == direct {
		require.Zero(t, of.CPU, name)
		require.Nil(t, of.CPURatio, name)
	}
	switch c.Load {
	case answers:
		require.GreaterOrEqual(t, of.Requests, c.Clients, name)
	case streams:
		require.Equal(t, c.Clients, of.Requests, name)
		require.Equal(t, c.Clients*(streamTokens+extraEvents[c.API]), of.Events, name)
	case leaving:
		require.Equal(t, c.Clients*leaves, of.Requests, name)
	}
}

func TestRunThatIsBrokenOffLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, run(ctx, nil, io.Discard, io.Discard), context.Canceled)
}

func TestFlagsAreCheckedBeforeAnythingIsBuilt(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"more", `unexpected argument "more"`},
		{"-rows cache_aware", `rows "cache_aware": must name stock`},
		{"-seconds 0", "seconds 0: must be above 0"},
		{"-slice 1ms", "slice 1ms: must be between"},
		{"-cells [", "cells: error parsing regexp"},
		{"-cells responses", `cells "responses": there are none`},
	} {
		err := run(t.Context(), strings.Fields(test.args), io.Discard, io.Discard)
		require.ErrorContains(t, err, test.want)
	}
	require.NoError(t, run(t.Context(), []string{"-h"}, io.Discard, io.Discard))
}

func TestBodiesHaveTheirExactSizeAndAreJSON(t *testing.T) {
	for _, c := range append(grid(), quickGrid()...) {
		for _, next := range c.sources("127.0.0.1:1", new(atomic.Uint32)) {
			for range 5 {
				head, body, found := bytes.Cut(next(), []byte("\r\n\r\n"))
				require.True(t, found)
				require.Contains(t, string(head), "POST "+paths[c.API]+" ")
				require.Len(t, body, c.Bytes)
				require.True(t, json.Valid(body), "%s", body)
			}
		}
	}
}

func TestColdPromptsBeginLikeNoOther(t *testing.T) {
	c := cell{answers, "chat", 200, cold, many}
	var serial atomic.Uint32
	seen := map[string]bool{}
	for range 2 { // rows
		for _, next := range c.sources("127.0.0.1:1", &serial) {
			for range 50 {
				_, text, _ := strings.Cut(string(next()), system)
				seen[text[:10]] = true
			}
		}
	}
	require.Len(t, seen, 2*many*50)
}

func TestHotPromptsAreTheSameFewForAllRows(t *testing.T) {
	c := cell{answers, "completions", 2048, hot, many}
	seen := map[string]bool{}
	for range 2 { // rows
		for _, next := range c.sources("127.0.0.1:1", new(atomic.Uint32)) {
			for range 3 {
				seen[string(next())] = true
			}
		}
	}
	require.Len(t, seen, hotPrompts)
}

func TestAnEscapeIsNeverCut(t *testing.T) {
	require.Contains(t, corpus(), `\n`)
	require.Contains(t, corpus(), `\"`)
	a := newAuthor(1, new(atomic.Uint32))
	for n := range 2000 {
		text := a.appendText(nil, n)
		require.Len(t, text, n)
		require.True(t, json.Valid([]byte(`"`+string(text)+`"`)), "%s", text)
	}
}

func TestWrongAnswersAreErrors(t *testing.T) {
	for _, test := range []struct {
		name, body, want string
		status           int
	}{
		{"not found", `{"error":{}}`, "status 404", http.StatusNotFound},
		{"nothing", ``, "this is no answer", http.StatusOK},
		{"the other API's", `{"object":"text_completion","usage":{"completion_tokens":1,"total_tokens":2}}`, "this is no answer", http.StatusOK},
		{"too long", `{"object":"chat.completion","usage":{"completion_tokens":10,"total_tokens":2}}`, "this is no answer", http.StatusOK},
		{"cut off", `{"object":"chat.completion","usage":{"completion_tokens":1,`, "this is no answer", http.StatusOK},
		{"as engines write it", `{"object":"chat.completion","usage":{"completion_tokens":1,"total_tokens":2}}`, "", http.StatusOK},
		{"written anew", "{\n \"usage\": {\"completion_tokens\": 1},\n \"object\": \"chat.completion\"\n}\n", "", http.StatusOK},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(test.status)
				fmt.Fprint(w, test.body)
			}))
			defer server.Close()
			c := testClient(server, "chat")
			defer c.close()
			c.takeAnswers(t.Context(), time.Time{})
			if test.want == "" {
				require.NoError(t, c.tally.failure)
				require.Len(t, c.tally.times, 1)
				return
			}
			require.ErrorContains(t, c.tally.failure, test.want)
			require.Equal(t, 1, c.tally.errors)
			require.Empty(t, c.tally.times)
		})
	}
}

func TestStreamThatLacksAnEventIsAnError(t *testing.T) {
	for _, missing := range []int{0, 1} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range streamTokens + extraEvents["completions"] - missing {
				fmt.Fprint(w, "data: {}\n\n")
			}
		}))
		c := testClient(server, "completions")
		c.takeStream()
		require.Equal(t, missing, c.tally.errors)
		if missing > 0 {
			require.ErrorContains(t, c.tally.failure, "a stream of 301 events, not 302")
		}
		c.close()
		server.Close()
	}
}

func TestClientGoesOnAfterAConnectionBroke(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, `{}`)
	}))
	defer server.Close()
	c := testClient(server, "completions")
	defer c.close()
	require.Error(t, c.exchange(c.next(), c.readAnswer))
	require.NoError(t, c.exchange(c.next(), c.readAnswer))
}

func testClient(server *httptest.Server, api string) *client {
	address := server.Listener.Addr().String()
	c := cell{Load: answers, API: api, Bytes: 200, Prompts: hot, Clients: 1}
	return newClient(0, []string{address}, c.sources(address, new(atomic.Uint32))[0], api)
}

func TestClientLeavingUnseenIsAnError(t *testing.T) {
	s := sample{Requests: 10}
	s.expect(10)
	require.Zero(t, s.Errors)
	s.expect(7)
	require.Equal(t, 3, s.Errors)
	require.Equal(t, "3 of 10 clients left unseen by the engines", s.Failure)
}

func TestEnginesListenOnPortsInARow(t *testing.T) {
	_, err := startEngines("localhost")
	require.ErrorContains(t, err, `engines' address "localhost"`)

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	_, err = startEngines(taken.Addr().String())
	require.ErrorContains(t, err, "engine 1: ")
}

// What a router adds is what it takes more than the engines in the same round, and
// a ratio is one of figures of the same round: a machine that is slow in some
// rounds changes neither.
func TestMoodsOfTheMachineCancelOut(t *testing.T) {
	samples := make([][]sample, 3)
	for range 9 {
		mood := 1 + rand.Float64()
		for i, p50 := range []float64{100, 200, 210} {
			samples[i] = append(samples[i], sample{
				Requests: 1000, Seconds: mood, P50: p50 * mood, P99: 2 * p50 * mood, CPU: mood * p50 / 1e5,
			})
		}
	}
	r := summarize(cell{Load: answers}, []string{direct, base, "ours"}, samples)
	ours := r.row("ours")
	require.Equal(t, 9000, ours.Requests)
	require.InDelta(t, 1.1, ours.AddedP50Ratio.Low, 1e-9)
	require.InDelta(t, 1.1, ours.AddedP50Ratio.High, 1e-9)
	require.InDelta(t, 1.05, ours.CPURatio.Median, 1e-9)
	require.InDelta(t, 1, ours.RateRatio.Median, 1e-9)
	require.InDelta(t, 1, r.row(base).AddedP50Ratio.Median, 1e-9)
	require.Zero(t, r.row(direct).AddedP50)
}

func TestRoundsInWhichAFigureIsNotKnownAreLeftOut(t *testing.T) {
	unknown := math.NaN()
	engines := []sample{
		{Requests: 1, Seconds: 1, P50: 100, CPU: unknown},
		{Requests: 1, Seconds: 1, P50: 100, CPU: unknown},
		{Requests: 1, Seconds: 1, P50: 100, CPU: unknown},
		{Requests: 1, Seconds: 1, P50: 100, CPU: unknown},
	}
	stock := []sample{
		{Requests: 10, Seconds: 1, P50: 200, CPU: 0.02},
		{Requests: 10, Seconds: 1, P50: 200, CPU: 0},                  // less than a tick
		{Requests: 10, Seconds: 1, P50: 90, CPU: 0.02},                // the engines were disturbed
		{Requests: 0, Seconds: 1, P50: unknown, CPU: 0.02, Errors: 1}, // nothing went well
	}
	ours := []sample{
		{Requests: 20, Seconds: 1, P50: 300, CPU: 0.02},
		{Requests: 20, Seconds: 1, P50: 300, CPU: 0.02},
		{Requests: 20, Seconds: 1, P50: 300, CPU: 0.02},
		{Requests: 20, Seconds: 1, P50: 300, CPU: 0.02},
	}
	elsewhere := slices.Clone(ours)
	for i := range elsewhere {
		elsewhere[i].CPU = unknown
	}
	r := summarize(cell{Load: answers, Clients: many}, []string{direct, base, "ours", "elsewhere"}, [][]sample{engines, stock, ours, elsewhere})

	require.Equal(t, 200.0, r.row(base).P50)
	require.Equal(t, 100.0, r.row(base).AddedP50)
	require.Equal(t, &spread{2, 2, 2}, r.row("ours").AddedP50Ratio)
	require.Equal(t, &spread{2, 2, 2}, r.row("ours").RateRatio)
	require.Equal(t, &spread{0.5, 0.5, 0.5}, r.row("ours").CPURatio)
	require.Equal(t, &spread{2, 2, 2}, r.row("elsewhere").RateRatio)
	require.Zero(t, r.row("elsewhere").CPU)
	require.Nil(t, r.row("elsewhere").CPURatio)

	all := &report{Rows: []string{direct, base, "ours", "elsewhere"}, Cells: []cellResult{r}}
	var tables, samples bytes.Buffer
	all.print(&tables)
	require.NoError(t, all.writeCSV(&samples))
	_, err := json.Marshal(all)
	require.NoError(t, err)
	require.NotContains(t, tables.String()+samples.String(), "NaN")
	require.Nil(t, all.extremes("elsewhere", sums[1]), "processor time")
	require.Equal(t, "2.00", all.extremes("elsewhere", sums[2])[1], "requests a second")
}

func TestUsageOfARouterElsewhereIsNotKnown(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	mine := router.External{Label: "mine", URL: server.URL}
	list, err := startRows(t.Context(), []router.Router{mine}, fleet{})
	require.NoError(t, err)
	unknown, err := list.unknown()
	require.NoError(t, err)
	require.Equal(t, []string{"mine"}, unknown)
	memory, err := list.memory()
	require.NoError(t, err)
	require.Empty(t, memory)
	require.NoError(t, list.stop())
}

func TestProcessorTimeIsWhatWasTakenBetween(t *testing.T) {
	before, after := &router.Usage{CPU: time.Second}, &router.Usage{CPU: 1250 * time.Millisecond}
	require.Equal(t, 0.25, processorTime(before, after))
	require.True(t, math.IsNaN(processorTime(nil, after)))
	require.True(t, math.IsNaN(processorTime(before, nil)))
}

func TestFiguresOfEventsAreForAnEvent(t *testing.T) {
	s := sample{Requests: 2, Events: 600, Seconds: 3, CPU: 0.006}
	require.InDelta(t, 200, s.rate(), 1e-9)
	require.InDelta(t, 10, s.cpu(), 1e-9)
	s.Events = 0
	require.InDelta(t, 3000, s.cpu(), 1e-9)
	require.True(t, math.IsNaN(sample{}.cpu()))
}

func TestSummaryNamesTheWorstCell(t *testing.T) {
	r := &report{Rows: []string{direct, base, "ours"}}
	for size, ratio := range map[int]float64{200: 1.02, 2048: 1.3, 16384: 1.1} {
		c := cell{answers, "chat", size, hot, many}
		r.Cells = append(r.Cells, cellResult{Cell: c, Rows: []rowResult{
			{Row: direct},
			{Row: base},
			{Row: "ours", CPURatio: &spread{Median: ratio}, RateRatio: &spread{Median: 1 / ratio}},
		}})
	}
	require.Equal(t, []string{"1.10", "1.30", "chat, 2048 B, hot"}, r.extremes("ours", sums[1]))
	require.Equal(t, []string{"0.91", "0.77", "chat, 2048 B, hot"}, r.extremes("ours", sums[2]))
	require.Nil(t, r.extremes("ours", sums[4]))
}

func TestErrorsAreShown(t *testing.T) {
	r := &report{Rows: []string{direct, base}, Cells: []cellResult{{
		Cell: quickGrid()[0],
		Name: "this cell",
		Rows: []rowResult{{Row: direct}, {Row: base, Errors: 3, Failure: "status 502"}},
	}}}
	require.Equal(t, 3, r.errors())
	var b bytes.Buffer
	r.print(&b)
	require.Contains(t, b.String(), "| this cell | stock | 3      | status 502 |")
}

func TestTablesAreAlignedAndEmptyOnesLeftOut(t *testing.T) {
	tab := table{title: "µs", head: []string{"a", "µ"}}
	var b bytes.Buffer
	tab.print(&b)
	require.Empty(t, b.String())
	tab.add("long text", number(1234.5))
	tab.add("x", number(12.34))
	tab.add("x", number(-1.234))
	tab.add("x", number(0))
	tab.print(&b)
	require.Equal(t, `
µs

| a         | µ     |
| --------- | ----- |
| long text | 1234  |
| x         | 12.3  |
| x         | -1.23 |
| x         | -     |
`, b.String())
}
