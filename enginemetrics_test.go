package inference

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// metricsPage is what a metrics page of vLLM 0.32 looks like, for each rank and
// with what the Python client adds.
const metricsPage = `# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 12345.0
# HELP process_virtual_memory_bytes Virtual memory size in bytes.
# TYPE process_virtual_memory_bytes gauge
process_virtual_memory_bytes 1.6345591808e+010
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.79598976312e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 0.0
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
%s# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="tiny"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 3.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 3.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="tiny"} 0.25
`

// cacheConfig is the line of one rank.
func cacheConfig(rank int, blockSize, blocks, tokens string) string {
	return fmt.Sprintf(`vllm:cache_config_info{block_size="%s",cache_dtype="auto",calculate_kv_scales="False",cpu_kvcache_space_bytes="None",`+
		`enable_prefix_caching="True",engine="%d",gpu_memory_utilization="0.9",hash_block_size="None",is_attention_free="False",`+
		`kv_cache_memory_bytes="None",%snum_cpu_blocks="None",num_gpu_blocks="%s",num_gpu_blocks_override="None",`+
		`prefix_caching_hash_algo="sha256",sliding_window="None"} 1.0`+"\n", blockSize, rank, tokens, blocks)
}

func TestTheMetricsPageTellsTheCacheAndTheStart(t *testing.T) {
	const started = 1.79598976312e+09
	page := func(lines ...string) string { return fmt.Sprintf(metricsPage, strings.Join(lines, "")) }
	tests := map[string]struct {
		page     string
		expected engineFacts
	}{
		"tokens":            {page(cacheConfig(0, "16", "1000", `kv_cache_size_tokens="15984",`)), engineFacts{15984, started, 1}},
		"blocks":            {page(cacheConfig(0, "16", "1000", "")), engineFacts{16000, started, 1}},
		"tokens unknown":    {page(cacheConfig(0, "16", "1000", `kv_cache_size_tokens="None",`)), engineFacts{16000, started, 1}},
		"blocks unknown":    {page(cacheConfig(0, "16", "None", "")), engineFacts{0, started, 1}},
		"all unknown":       {page(cacheConfig(0, "None", "None", `kv_cache_size_tokens="None",`)), engineFacts{0, started, 1}},
		"no block size":     {page(cacheConfig(0, "", "1000", "")), engineFacts{0, started, 1}},
		"ranks":             {page(cacheConfig(0, "16", "1000", ""), cacheConfig(1, "16", "1000", ""), cacheConfig(2, "16", "None", "")), engineFacts{32000, started, 3}},
		"ranks with tokens": {page(cacheConfig(0, "16", "9", `kv_cache_size_tokens="100",`), cacheConfig(1, "16", "9", `kv_cache_size_tokens="50",`)), engineFacts{150, started, 2}},
		"negative":          {page(cacheConfig(0, "-16", "-1000", `kv_cache_size_tokens="-5",`)), engineFacts{0, started, 1}},
		"beyond belief":     {page(cacheConfig(0, "1099511627776", "1099511627776", `kv_cache_size_tokens="9223372036854775807",`)), engineFacts{0, started, 1}},
		"no cache":          {page(), engineFacts{0, started, 0}},
		"no types":          {"process_start_time_seconds 5\n" + cacheConfig(0, "16", "2", ""), engineFacts{32, 5, 1}},
		"two processes":     {"process_start_time_seconds{pid=\"1\"} 5\nprocess_start_time_seconds{pid=\"2\"} 7\n", engineFacts{0, 7, 0}},
		"no start":          {cacheConfig(0, "16", "2", ""), engineFacts{32, 0, 1}},
		"no time":           {"process_start_time_seconds NaN\n", engineFacts{}},
		"endless time":      {"process_start_time_seconds +Inf\n", engineFacts{}},
		"negative time":     {"process_start_time_seconds -1\n", engineFacts{}},
		"cut at the end":    {page(cacheConfig(0, "16", "2", "")) + "process_start_time_seconds 9.9e+", engineFacts{32, started, 1}},
		"lines end in CRLF": {"other 1\r\n" + cacheConfig(0, "16", "2", ""), engineFacts{32, 0, 1}},
		"another engine":    {"sglang:num_running_reqs{model_name=\"m\"} 3\nprocess_start_time_seconds 5\n", engineFacts{0, 5, 0}},
		"SGLang":            {"# TYPE sglang:max_total_num_tokens gauge\nsglang:max_total_num_tokens{model_name=\"m\",tp_rank=\"0\"} 471258.0\n", engineFacts{471258, 0, 1}},
		"SGLang's ranks": {"sglang:max_total_num_tokens{dp_rank=\"0\",tp_rank=\"0\"} 100\nsglang:max_total_num_tokens{dp_rank=\"0\",tp_rank=\"1\"} 100\n" +
			"sglang:max_total_num_tokens{dp_rank=\"1\",tp_rank=\"0\"} 90\n", engineFacts{190, 0, 2}},
		"SGLang, no number": {"sglang:max_total_num_tokens NaN\n", engineFacts{}},
		"names that begin alike": {"vllm:cache_config_info_total{block_size=\"16\",num_gpu_blocks=\"5\"} 1\n" +
			"process_start_time_seconds_total 5\n", engineFacts{}},
		"junk around it":              {"<html>\x00\xff }{ \n{{{\n" + cacheConfig(0, "16", "2", "") + "also # not 1 2 3 a page\n", engineFacts{32, 0, 1}},
		"junk":                        {"<!doctype html><title>hello</title>", engineFacts{}},
		"nothing":                     {"", engineFacts{}},
		"a long line before":          {strings.Repeat("x", 3*maxMetricsLine) + " process_start_time_seconds 5\n" + cacheConfig(0, "16", "2", ""), engineFacts{32, 0, 1}},
		"a long line with ours in it": {strings.Repeat("x", maxMetricsLine) + "process_start_time_seconds 5\n" + cacheConfig(0, "16", "2", ""), engineFacts{32, 0, 1}},
		"a long line of ours":         {"process_start_time_seconds" + strings.Repeat(" ", maxMetricsLine) + "5\n" + cacheConfig(0, "16", "2", ""), engineFacts{32, 0, 1}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for _, reader := range readers {
				facts, err := readEngineMetrics(reader(strings.NewReader(test.page)))
				require.NoError(t, err)
				require.Equal(t, test.expected, facts)
			}
		})
	}
}

func TestAMalformedFactIsNoAnswerToAskForAgain(t *testing.T) {
	for _, page := range []string{
		"process_start_time_seconds\n", "process_start_time_seconds five\n", "process_start_time_seconds{ 5\n",
		"vllm:cache_config_info{block_size=16} 1\n", "vllm:cache_config_info{block_size=\"16\" 1\n",
	} {
		facts, err := readEngineMetrics(strings.NewReader(page))
		require.ErrorIs(t, err, errNoMetrics, page)
		require.Zero(t, facts)
	}
}

func TestAPageThatBreaksOffIsAskedForAgain(t *testing.T) {
	page := fmt.Sprintf(metricsPage, cacheConfig(0, "16", "2", ""))
	for _, place := range []int{0, 1, len(page) / 2, len(page)} {
		_, err := readEngineMetrics(io.MultiReader(strings.NewReader(page[:place]), iotest.ErrReader(io.ErrUnexpectedEOF)))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.NotErrorIs(t, err, errNoMetrics)
	}
}

func TestAHugePageIsReadToItsLimit(t *testing.T) {
	const line = "vllm:requests_by_reason_total{engine=\"0\",model_name=\"tiny\",reason=\"none\"} 1.0\n"
	page := cacheConfig(0, "16", "1000", "") + strings.Repeat(line, maxEngineMetrics/len(line)) + "process_start_time_seconds 5\n"
	require.Greater(t, len(page), maxEngineMetrics)
	e := newFakeEngine(func(int) (int, string) { return http.StatusOK, page })
	facts, err := askEngine(t.Context(), e.worker(newState()))
	require.NoError(t, err)
	require.Equal(t, engineFacts{capacity: 16000, ranks: 1}, facts)
}

func FuzzEngineMetrics(f *testing.F) {
	f.Add(fmt.Sprintf(metricsPage, cacheConfig(0, "16", "1000", `kv_cache_size_tokens="15984",`)))
	f.Add("process_start_time_seconds NaN\n# TYPE vllm:cache_config_info histogram\nvllm:cache_config_info{le=\"1\"} 1\n")
	f.Fuzz(func(t *testing.T, page string) {
		facts, err := readEngineMetrics(strings.NewReader(page))
		if err != nil {
			require.ErrorIs(t, err, errNoMetrics)
			require.Zero(t, facts)
			return
		}
		require.GreaterOrEqual(t, facts.capacity, 0)
		require.GreaterOrEqual(t, facts.started, 0.0)
	})
}

func BenchmarkReadEngineMetrics(b *testing.B) {
	var page strings.Builder
	fmt.Fprintf(&page, metricsPage, cacheConfig(0, "16", "1000", ""))
	for i := range 2000 {
		fmt.Fprintf(&page, "vllm:request_prefill_time_seconds_bucket{engine=\"0\",le=\"%d\",model_name=\"tiny\"} 0.0\n", i)
	}
	b.SetBytes(int64(page.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := readEngineMetrics(strings.NewReader(page.String())); err != nil {
			b.Fatal(err)
		}
	}
}
