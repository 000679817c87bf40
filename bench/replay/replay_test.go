package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

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

// TestReplayFromTraceToTable replays 80 requests through two routers. Three
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
		require.Positive(t, got.Engine.Mean)
		require.Len(t, got.Segments, 1)
		if i%2 == 1 {
			continue
		}
		require.Positive(t, got.PeakRSS)
		require.GreaterOrEqual(t, got.Client.Mean, got.Engine.Mean/2)
		require.GreaterOrEqual(t, got.Whole.Mean, got.Client.Mean)
		require.GreaterOrEqual(t, got.Events, 2*81, "a first token and the usage")
	}
	require.InDelta(t, r.Results[1].Hit, r.Results[0].Hit, 0.05, "over HTTP as in the model")
	require.Greater(t, r.Results[2].Hit, r.Results[0].Hit)
	for _, file := range []string{"results.csv", "ttft.svg", "talks.svg"} {
		require.FileExists(t, filepath.Join(out, file))
	}
}

func TestEngineThatRestartsHalfWayComesBackEmpty(t *testing.T) {
	out := t.TempDir()
	o, err := parse([]string{"-trace", writeTrace(t, 2, 60), "-engines", "2", "-routers", "least_conn", "-o", out}, io.Discard)
	require.NoError(t, err)
	chosen, err := o.chosen()
	require.NoError(t, err)
	chosen[0].Restart = true
	routers, err := o.build(t.Context(), t.TempDir())
	require.NoError(t, err)
	r := &report{Scenarios: chosen}
	require.NoError(t, o.compare(t.Context(), r, chosen[0], routers, io.Discard))
	require.Len(t, r.Results, 1, "no model of it")
	require.LessOrEqual(t, r.Results[0].Errors, 4, "what was in flight; the rest went to the other engine: %s", r.Results[0].Failure)
}

func TestPlayIsBrokenOff(t *testing.T) {
	ctx, cancel := contextThatEnds(t)
	file, done := writeTrace(t, 3, 60), make(chan error)
	go func() {
		done <- run(ctx, []string{"-trace", file, "-speed", "0.1", "-engines", "2", "-routers", "round_robin"}, io.Discard, io.Discard)
	}()
	time.AfterFunc(3*time.Second, cancel)
	require.Error(t, <-done)
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
		Scenario: "s", Router: "r", Hit: 0.5, Requests: 3, Errors: 1,
		Engine:   times{Mean: 1.2345, P50: 1, P90: 2, P99: 3},
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
	require.Equal(t, "0.500", got["hit_share"])
	require.Equal(t, "1.234", got["engine_ttft_mean_seconds"])
	require.Equal(t, "1.00 to 2.00", got["segments_ttft_mean_seconds"])
	require.Equal(t, "100", got["router_peak_rss_mib"])
	require.Equal(t, "-", got["client_ttft_mean_seconds"], "not known")
}
