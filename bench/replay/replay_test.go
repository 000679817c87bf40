package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/caddy-inference/caddy-inference/enginesim"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/caddy-inference/caddy-inference/bench/router"
	"github.com/caddy-inference/caddy-inference/bench/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// writeTrace makes a file of conversations in turn, each of which grows by a block a
// request, so that who remembers them hits and who takes turns does not.
func writeTrace(t *testing.T, conversations, turns int) string {
	t.Helper()
	var requests []trace.Request
	for turn := range turns {
		for c := range conversations {
			r := trace.Request{At: time.Duration(turn*conversations+c) * 500 * time.Millisecond, Output: 4}
			for block := range turn + 2 {
				r.Blocks = append(r.Blocks, uint64(1000*(c+1)+block))
			}
			r.Input = len(r.Blocks)*trace.BlockTokens - 100
			requests = append(requests, r)
		}
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "talks.jsonl"))
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, trace.Write(file, requests))
	return file.Name()
}

// TestReplayFromTraceToTable replays 81 requests through two routers. Three
// conversations on two engines: in turn, each comes to the other engine every time.
func TestReplayFromTraceToTable(t *testing.T) {
	out := filepath.Join(t.TempDir(), "results")
	var stdout bytes.Buffer
	err := run(t.Context(), []string{
		"-trace", writeTrace(t, 3, 27), "-engines", "2", "-routers", "round_robin,cache_aware", "-speed", "20", "-o", out,
	}, &stdout, io.Discard)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(out, "results.json"))
	require.NoError(t, err)
	var r report
	require.NoError(t, json.Unmarshal(text, &r))
	require.Len(t, r.Results, 4)
	for i, name := range []string{"round_robin", "round_robin (model)", "cache_aware", "cache_aware (model)"} {
		got := r.Results[i]
		require.Equal(t, name, got.Router)
		require.Contains(t, stdout.String(), "| "+name+" |")
		require.Equal(t, "talks", got.Scenario)
		require.Equal(t, 81, got.Requests)
		require.Zero(t, got.Errors, got.Failure)
		require.NotNil(t, got.Engine)
		require.Positive(t, got.Engine.Mean)
		require.Len(t, got.Segments, 1)
		if i%2 == 1 {
			continue
		}
		require.Positive(t, got.PeakRSS)
		require.Greater(t, got.Whole.Mean, got.Client.Mean)
		require.GreaterOrEqual(t, got.Events, 2*81, "a first token and the usage")
	}
	require.Greater(t, *r.Results[2].Hit, *r.Results[0].Hit)
	for _, file := range []string{"results.csv", "means.svg", "distribution-talks.svg"} {
		require.FileExists(t, filepath.Join(out, file))
	}
}

func TestEngineThatRestartsHalfWayComesBackEmpty(t *testing.T) {
	o, err := parse([]string{"-trace", writeTrace(t, 2, 60), "-engines", "2", "-routers", "least_conn"}, io.Discard)
	require.NoError(t, err)
	chosen, err := o.chosen()
	require.NoError(t, err)
	s := chosen[0]
	s.Restart = true
	routers, err := router.All(t.Context(), t.TempDir(), []string{o.routers})
	require.NoError(t, err)
	requests, err := trace.ByName(s.Trace, 1)
	require.NoError(t, err)
	p := &player{scenario: s, trace: requests, router: routers[0], speed: o.speed, api: apis[o.api], model: o.model, listen: o.listen}
	rec, err := p.play(t.Context())
	require.NoError(t, err)
	half := rec.start.Add(p.real(requests[len(requests)-1].At / 2))
	var after []enginesim.Prefill
	for _, f := range rec.prefills[0] {
		if f.Arrived.After(half) {
			after = append(after, f)
		}
	}
	first := slices.IndexFunc(after, func(f enginesim.Prefill) bool { return f.Cached == 0 })
	require.GreaterOrEqual(t, first, 0, "it comes back, and empty: every turn but the first of a conversation hits otherwise")
	_, ok, err := modelled(s, requests, "least_conn")
	require.NoError(t, err)
	require.False(t, ok, "there is no model of it")
}

// TestReplayThroughSomebodyElsesRouter has a server in the place of a router, which
// answers as each case says.
func TestReplayThroughSomebodyElsesRouter(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, test := range []struct {
		name   string
		answer http.HandlerFunc
		fails  string
		prints string
	}{
		{"whole", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "data: {\"usage\":{\"prompt_tokens\":100,\"prompt_tokens_details\":{\"cached_tokens\":25}}}\n\ndata: [DONE]\n\n")
		}, "", "| mine | 0.250 | - |"},
		{"refuses all", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "too busy", http.StatusTooManyRequests)
		}, "all requests failed, the first of them so: status 429: too busy", ""},
		{"is broken off", func(_ http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				_, _ = io.Copy(io.Discard, r.Body) // else nobody sees the client leave
				cancel()
				<-r.Context().Done()
			}
		}, "context canceled", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(test.answer)
			defer server.Close()
			var stdout bytes.Buffer
			out := filepath.Join(t.TempDir(), "results")
			err := run(ctx, []string{
				"-trace", writeTrace(t, 1, 5), "-listen", "", "-routers", "mine=" + server.URL, "-speed", "100", "-o", out,
			}, &stdout, io.Discard)
			http.DefaultClient.CloseIdleConnections()
			if test.fails != "" {
				require.ErrorContains(t, err, test.fails)
				return
			}
			require.NoError(t, err)
			require.Contains(t, stdout.String(), test.prints)
			require.FileExists(t, filepath.Join(out, "distribution-talks.svg"), "all times may be equal")
		})
	}
}

func TestAnswerIsReadToItsEnd(t *testing.T) {
	const event = "data: {\"choices\":[{\"text\":\"the\"}],\"usage\":null}\n\n"
	const last = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":700,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":512}}}\n\n"
	for _, test := range []struct {
		name, body, fails string
		events            int
		prompt, cached    int
	}{
		{"whole", event + event + last + "data: [DONE]\n\n", "", 3, 700, 512},
		{"without usage", event + "data: [DONE]\n\n", "", 1, 0, 0},
		{"comments are no events", ": ping\n\n" + event + "data: [DONE]\n\n", "", 1, 0, 0},
		{"broken off", event, "breaks off", 1, 0, 0},
		{"broken off in an event", event + "data: {\"cho", "breaks off", 1, 0, 0},
		{"unreadable usage", "data: {\"usage\":{\"prompt_tokens\":\"x\"}}\n\n", "reading usage", 1, 0, 0},
		{"empty", "", "breaks off", 0, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			var a answer
			err := a.read(bytes.NewBufferString(test.body), time.Now())
			if test.fails == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.fails)
			}
			require.Equal(t, test.events, a.events)
			require.Equal(t, test.prompt, a.prompt)
			require.Equal(t, test.cached, a.cached)
		})
	}
}

func TestFlagsThatMakeNoSenseAreRefused(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "nothing to play"},
		{[]string{"-trace", "agents", "-speed", "0"}, "speed 0: must be between"},
		{[]string{"-trace", "agents", "-api", "messages"}, `api "messages": must be completions or chat`},
		{[]string{"-trace", "agents", "-engines", "0"}, "must be at least 1"},
		{[]string{"-trace", "nowhere.jsonl", "-routers", "a=http://a"}, `"nowhere.jsonl"`},
		{[]string{"-scenarios", "agents,what"}, `scenario "what": there is no such one`},
		{[]string{"-scenarios", "conversation"}, "needs -conversation FILE"},
		{[]string{"-trace", "agents", "more"}, `unexpected argument "more"`},
		{[]string{"-trace", "agents", "-scenarios", "agents"}, "give one of them"},
		{[]string{"-scenarios", "agents", "-capacity", "131072"}, "-capacity: goes with -trace"},
		{[]string{"-trace", "agents", "-capacity", "0"}, "capacity must be at least 512"},
		{[]string{"-trace", "agents", "-prefill", "0"}, "prefill more than 0"},
		{[]string{"-trace", "agents", "-minutes", "1", "-replicas", "2", "-routers", "a=http://127.0.0.1:1"}, "has 2 routers, and a is one"},
		{[]string{"-trace", "agents", "-minutes", "0.001", "-routers", "a=b"}, "must be NAME=URL"},
		{[]string{"-trace", "agents", "-minutes", "1", "-routers", "a=http://127.0.0.1:1", "-listen", "nowhere"}, `engines' address "nowhere"`},
	} {
		err := run(t.Context(), test.args, io.Discard, io.Discard)
		require.ErrorContains(t, err, test.want, test.args)
	}
}

func TestEveryScenarioCanBePlayed(t *testing.T) {
	all, err := named("all")
	require.NoError(t, err)
	require.Equal(t, scenarios, all)
	for _, s := range all {
		s = s.withDefaults()
		require.NoError(t, s.engine(20, "sim").Validate(), s.Name)
		if s.Trace == conversation {
			continue
		}
		requests, err := trace.ByName(s.Trace, 1)
		require.NoError(t, err)
		for _, r := range requests {
			require.LessOrEqual(t, r.Input+r.Output, s.Capacity, s.Name)
		}
	}
}

func TestResultsAreWrittenAsCSV(t *testing.T) {
	r := report{Results: []result{{
		Scenario: "s", Router: "r", Hit: new(0.0), Requests: 3, Errors: 1,
		Engine:   &times{Mean: 1.2345, P50: 1, P90: 2, P99: 3},
		Segments: []segment{{Engine: 1}, {Start: 600, Engine: 2}},
		PeakRSS:  100 << 20,
	}}}
	var b bytes.Buffer
	require.NoError(t, r.writeCSV(&b))
	lines, err := csv.NewReader(&b).ReadAll()
	require.NoError(t, err)
	require.Len(t, lines, 2)
	got := make(map[string]string)
	for i, name := range lines[0] {
		got[name] = lines[1][i]
	}
	require.Equal(t, "s", got["scenario"])
	require.Equal(t, "0", got["hit_share"], "known to be none")
	require.Equal(t, "1.2345", got["engine_ttft_mean_seconds"])
	require.Equal(t, "1", got["least_segment_ttft_mean_seconds"])
	require.Equal(t, "2", got["greatest_segment_ttft_mean_seconds"])
	require.Equal(t, "100", got["router_peak_rss_mib"])
	require.Empty(t, got["client_ttft_mean_seconds"], "not known")
	require.Empty(t, got["router_cpu_ms_per_request"], "not known")
}
