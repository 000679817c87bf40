package enginesim

import (
	"crypto/sha256"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

func sha256Of(s string) [sha256.Size]byte { return sha256.Sum256([]byte(s)) }

// scraped is the metrics page as Prometheus reads it.
func scraped(t *testing.T, s *Server) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(do(s, "GET", "/metrics", "").Body)
	require.NoError(t, err)
	return families
}

// value is the value of a family's only sample, or of the one with a label.
func value(t *testing.T, f *dto.MetricFamily, want ...string) float64 {
	t.Helper()
	require.NotNil(t, f)
	for _, m := range f.Metric {
		labels := map[string]string{}
		for _, l := range m.Label {
			labels[l.GetName()] = l.GetValue()
		}
		if len(want) == 2 && labels[want[0]] != want[1] {
			continue
		}
		return m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	require.Fail(t, "no such sample", "%v", want)
	return 0
}

func TestMetricsShowTheEnginesState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := DefaultOptions()
		opts.Models = []string{"a \"model\"\n\\"}
		s, err := NewServer(opts)
		require.NoError(t, err)
		text := strings.Repeat("word ", 800)
		for range 2 {
			post(s, "/v1/completions", `{"prompt":"`+text+`","max_tokens":5}`)
		}
		running, err := s.life.Load().ranks[0].submit(prompt{ids: numbered(1, 1600)}, namespace{}, 1, 0)
		require.NoError(t, err)
		waiting, err := s.life.Load().ranks[0].submit(prompt{ids: numbered(2, 16)}, namespace{}, 1, 0)
		require.NoError(t, err)

		stats, families := s.Stats(), scraped(t, s)
		require.Equal(t, 1.0, value(t, families["vllm:num_requests_running"], "model_name", opts.Models[0]))
		require.Equal(t, 1.0, value(t, families["vllm:num_requests_waiting"], "engine", "0"))
		require.Equal(t, 100.0/32768, value(t, families["vllm:kv_cache_usage_perc"]))
		require.Equal(t, float64(stats.PromptTokens+1600), value(t, families["vllm:prefix_cache_queries_total"]))
		require.Equal(t, float64(stats.CachedTokens), value(t, families["vllm:prefix_cache_hits_total"]))
		require.Equal(t, (stats.PromptTokens/2-1)/16*16, stats.CachedTokens)
		require.Equal(t, float64(stats.PromptTokens), value(t, families["vllm:prompt_tokens_total"]))
		require.Equal(t, 10.0, value(t, families["vllm:generation_tokens_total"]))
		require.Equal(t, 2.0, value(t, families["vllm:request_success_total"], "finished_reason", "length"))
		require.Zero(t, value(t, families["vllm:request_success_total"], "finished_reason", "abort"))
		info := families["vllm:cache_config_info"]
		require.Equal(t, 1.0, value(t, info, "block_size", "16"))
		require.Equal(t, 1.0, value(t, info, "num_gpu_blocks", "32768"))
		require.Equal(t, 1.0, value(t, info, "kv_cache_size_tokens", "524288"))
		require.InDelta(t, float64(s.life.Load().ranks[0].started.Unix()), value(t, families["process_start_time_seconds"]), 1)

		ttft := families["vllm:time_to_first_token_seconds"].Metric[0].Histogram
		require.EqualValues(t, 2, ttft.GetSampleCount())
		cold := opts.prefillTime(stats.PromptTokens / 2)
		warm := opts.prefillTime(stats.PromptTokens/2 - stats.CachedTokens)
		require.InDelta(t, (cold + warm).Seconds(), ttft.GetSampleSum(), 1e-6)
		below := map[float64]uint64{}
		for _, b := range ttft.Bucket {
			below[b.GetUpperBound()] = b.GetCumulativeCount()
		}
		require.EqualValues(t, 1, below[0.005], "the warm one")
		require.EqualValues(t, 1, below[0.08])
		require.EqualValues(t, 2, below[0.25], "the cold one")
		waiting.abandon()
		running.abandon()
	})
}

func TestRestartShowsInTheStartTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := instantServer(t)
		post(s, "/v1/completions", `{"prompt":"x"}`)
		before := value(t, scraped(t, s)["process_start_time_seconds"])
		time.Sleep(time.Minute)
		s.Restart()
		after := scraped(t, s)
		require.Equal(t, before+60, value(t, after["process_start_time_seconds"]))
		require.Zero(t, value(t, after["vllm:prompt_tokens_total"]))
	})
}

func BenchmarkMetrics(b *testing.B) {
	l := &life{ranks: []*engine{newEngine(DefaultOptions())}}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = l.appendMetrics(buf[:0])
	}
}
