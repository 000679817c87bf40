package inference

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

// gather collects as a scrape does, from a registry that checks everything.
func gather(t *testing.T, c prometheus.Collector) []*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	return families
}

// value sums the samples of a family whose labels are among those wanted.
func value(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	sum := 0.0
	for _, family := range gather(t, theState(t).metrics) {
		if family.GetName() != "caddy_inference_"+name {
			continue
		}
		for _, metric := range family.GetMetric() {
			if hasLabels(metric, labels) {
				sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func hasLabels(metric *dto.Metric, want []string) bool {
	for i := 0; i < len(want); i += 2 {
		if labelValue(metric.GetLabel(), want[i]) != want[i+1] {
			return false
		}
	}
	return true
}

// TestEveryDecisionIsAccountedForInTokens plays two turns of a conversation with
// an engine that counts, and compares what is told about them everywhere.
func TestEveryDecisionIsAccountedForInTokens(t *testing.T) {
	engine := newEngine(t)
	s := startSite(t, "lb_policy cache_aware\nheader_down X-Reason {http.inference.reason}\nheader_down X-Held {http.inference.held_tokens}", engine.address())
	counted := `{"choices":[{"message":{"content":"yes"}}],"usage":{"prompt_tokens":%P,"prompt_tokens_details":{"cached_tokens":%C}}}`
	say := func(prompt, cached string) {
		engine.respondWith(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(strings.NewReplacer("%P", prompt, "%C", cached).Replace(counted)))
		})
	}
	history := message("user", letters(rand.New(rand.NewPCG(14, 14)), 12_800))
	say("3000", "0")
	s.chat(chatOf(history))
	history += "," + message("assistant", "yes") + "," + message("user", letters(rand.New(rand.NewPCG(15, 15)), 1280))
	say("3300", "2992")
	response, err := s.client.Post(s.url+"/v1/chat/completions", "application/json", strings.NewReader(chatOf(history)))
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, "hit", response.Header.Get("X-Reason"))
	require.NotEqual(t, "0", response.Header.Get("X-Held"))

	second, first := s.lastDecision(2), s.decisions()[0]
	require.Equal(t, "cold", first["reason"])
	require.Equal(t, 3000.0, first["prompt_tokens"])
	require.Equal(t, 0.0, first["held_tokens"])
	require.Equal(t, "hit", second["reason"])
	require.Equal(t, 3300.0, second["prompt_tokens"])
	require.InDelta(t, 2990, second["held_tokens"], 50)
	require.Equal(t, second["held_tokens"], second["best_held_tokens"])
	require.Equal(t, 2992.0, second["cached_tokens"])
	require.Equal(t, engine.address(), second["upstream"])

	labels := []string{"upstream", engine.address(), "model", "m1"}
	require.Equal(t, 6300.0, value(t, "prompt_tokens_total", labels...))
	require.Equal(t, 6300.0, value(t, "reported_prompt_tokens_total", labels...))
	require.Equal(t, 2992.0, value(t, "cached_tokens_total", labels...))
	require.Equal(t, second["held_tokens"], value(t, "held_tokens_total", labels...))
	require.Equal(t, second["held_tokens"], value(t, "best_held_tokens_total", labels...))
	require.Equal(t, 1.0, value(t, "decisions_total", "policy", "cache_aware", "upstream", engine.address(), "reason", "hit"))
	require.Equal(t, 1.0, value(t, "decisions_total", "policy", "cache_aware", "upstream", engine.address(), "reason", "cold"))
	require.Equal(t, 2.0, value(t, "queued_tokens_at_choice"))
	require.Positive(t, value(t, "tree_bytes"))
	require.EqualValues(t, defaultMaxTreeSize, value(t, "tree_limit_bytes"))
	require.Positive(t, value(t, "believed_bytes", "upstream", engine.address()))
	require.Zero(t, value(t, "buffered_bytes"))
	require.Eventually(t, func() bool { return value(t, "kv_capacity_tokens", "upstream", engine.address()) == 524_288 }, patience, tick)
	requireIdle(t)
}

func TestChoicesWithoutAPromptAreCountedByTheirCause(t *testing.T) {
	s := startSite(t, "lb_policy cache_aware", newEngine(t).address())
	s.post("/v1/foo", "{}")
	s.post("/v1/foo", "{}")
	s.post("/v1/chat/completions", "hello")
	require.Equal(t, 2.0, value(t, "fallbacks_total", "policy", "cache_aware", "cause", "unknown_endpoint"))
	require.Equal(t, 1.0, value(t, "fallbacks_total", "policy", "cache_aware", "cause", "unreadable_body"))
	require.Equal(t, 3.0, value(t, "decisions_total", "reason", "fallback"))
	require.Zero(t, value(t, "unplaced_total"))
}

// TestThatAnAnswerBrokeOffIsTold has the client leave one stream and the engine
// break another.
func TestThatAnAnswerBrokeOffIsTold(t *testing.T) {
	engine := newEngine(t)
	s := startSite(t, "lb_policy cache_aware", engine.address())
	body := `{"stream":true,` + chatOf(message("user", "hello"))[1:]
	for n, respond := range []http.HandlerFunc{silent, reset} {
		engine.respondWith(respond)
		response, err := s.client.Do(newRequest(t, s.url+"/v1/chat/completions", strings.NewReader(body)))
		require.NoError(t, err)
		_, err = response.Body.Read(make([]byte, 64))
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, true, s.lastDecision(n + 1)["broken"])
	}
	engine.respondWith(nil)
	s.chat(body)
	require.NotContains(t, s.lastDecision(3), "broken")
}

func TestTheTimeToTheFirstTokenIsObserved(t *testing.T) {
	engine := newEngine(t)
	s := startSite(t, "lb_policy cache_aware", engine.address())
	s.chat(`{"stream":true,` + chatOf(message("user", "hello"))[1:])
	require.Equal(t, 1.0, value(t, "first_token_seconds", "upstream", engine.address()))
	require.Positive(t, s.lastDecision(1)["first_token"])
	s.chat(chatOf(message("user", "hello")))
	require.Equal(t, 1.0, value(t, "first_token_seconds"), "an answer that comes at once has no first token to see")
}

// TestTheModelLabelIsBounded asks for models that no engine has, then for more
// than are kept.
func TestTheModelLabelIsBounded(t *testing.T) {
	engine := newEngine(t)
	s := startSite(t, "lb_policy cache_aware", engine.address())
	engine.respondWith(refuse(http.StatusNotFound))
	status, _ := s.post("/v1/chat/completions", `{"model":"made up","messages":[{"role":"user","content":"x"}]}`)
	require.Equal(t, http.StatusNotFound, status)
	require.Equal(t, "other", s.lastDecision(1)["model"])
	engine.respondWith(nil)
	for i := range 300 {
		s.chat(`{"model":"` + letters(rand.New(rand.NewPCG(16, uint64(i))), 12) + `","messages":[{"role":"user","content":"x"}]}`)
	}
	models := map[string]bool{}
	for _, family := range gather(t, theState(t).metrics) {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "model" {
					models[label.GetValue()] = true
				}
			}
		}
	}
	require.Len(t, models, 129)
	require.NotContains(t, models, "made up")
}

// TestNoSeriesIsMadeForAWorkerThatIsGone counts for a worker after its last user
// has left, as requests of an old config do.
func TestNoSeriesIsMadeForAWorkerThatIsGone(t *testing.T) {
	s := newState()
	w := s.join("192.0.2.1:8000", nil)
	s.metrics.choices("cache_aware", w)[fallback].Inc()
	s.metrics.firstToken(w, 1)
	series := func() (n int) {
		for _, family := range gather(t, s.metrics) {
			for _, metric := range family.GetMetric() {
				if hasLabels(metric, []string{"upstream", "192.0.2.1:8000"}) {
					n++
				}
			}
		}
		return n
	}
	require.NotZero(t, series())
	s.leave(w, w.transport.Load())
	require.Zero(t, series())
	s.metrics.choices("cache_aware", w)[fallback].Inc()
	s.metrics.firstToken(w, 1)
	s.metrics.tokens(w, s.models.Get(nil), tokenCounts{prompt: 1})
	require.Zero(t, series())
}

func TestMetricsAreNamedAsPrometheusWants(t *testing.T) {
	problems, err := testutil.CollectAndLint(newState().metrics)
	require.NoError(t, err)
	require.Empty(t, problems)
}
