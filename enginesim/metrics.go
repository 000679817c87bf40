package enginesim

import (
	"strconv"
)

// counters are what an engine counts since its start, under the engine's lock.
type counters struct {
	cacheQueries, cacheHits    int // tokens looked up at prefill, and found
	promptTokens, cachedTokens int // of prompts that came through prefill
	generationTokens           int
	finished                   int // sequences that reached their last token
	blocksStored               int
	blocksRemoved              int
	ttft                       histogram
}

// ttftBounds are the upper bounds, in seconds, of vLLM's buckets for the time to
// the first token.
var ttftBounds = []float64{
	0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
}

// histogram counts values below each of its bounds.
type histogram struct {
	bounds []float64
	counts [32]int // by first bound that is not less; the one after the last bound is +Inf
	sum    float64
	total  int
}

func (h *histogram) observe(v float64) {
	i := 0
	for i < len(h.bounds) && v > h.bounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += v
	h.total++
}

// gauges are an engine's state at one moment.
type gauges struct {
	running, waiting int
	usedBlocks       int
	counts           counters
}

func (e *engine) gauges() gauges {
	e.mu.Lock()
	defer e.mu.Unlock()
	return gauges{running: e.running, waiting: e.waiting.Len(), usedBlocks: e.cache.used(), counts: e.counts}
}

// page is a metrics page in Prometheus' text format under construction. Label
// values are escaped as the format wants it.
type page struct {
	buf    []byte
	labels string // of every sample
}

func (p *page) family(name, kind, help string) {
	p.buf = append(p.buf, "# HELP "+name+" "+help+"\n# TYPE "+name+" "+kind+"\n"...)
}

// sample writes one line. extra is further labels, each behind a comma.
func (p *page) sample(name, extra string, value float64) {
	p.buf = append(p.buf, name+"{"+p.labels+extra+"} "...)
	p.buf = strconv.AppendFloat(p.buf, value, 'g', -1, 64)
	p.buf = append(p.buf, '\n')
}

func (p *page) gauge(name, help string, value float64) {
	p.family(name, "gauge", help)
	p.sample(name, "", value)
}

func (p *page) counter(name, help string, value int) {
	p.family(name, "counter", help)
	p.sample(name, "", float64(value))
}

func (p *page) histogram(name, help string, h *histogram) {
	p.family(name, "histogram", help)
	below := 0
	for i, bound := range h.bounds {
		below += h.counts[i]
		p.sample(name+"_bucket", `,le="`+strconv.FormatFloat(bound, 'f', -1, 64)+`"`, float64(below))
	}
	p.sample(name+"_bucket", `,le="+Inf"`, float64(h.total))
	p.sample(name+"_sum", "", h.sum)
	p.sample(name+"_count", "", float64(h.total))
}

// label is name="value" with value escaped.
func label(name, value string) string {
	escaped := make([]byte, 0, len(value))
	for i := range len(value) {
		switch c := value[i]; c {
		case '\\', '"':
			escaped = append(escaped, '\\', c)
		case '\n':
			escaped = append(escaped, '\\', 'n')
		default:
			escaped = append(escaped, c)
		}
	}
	return name + `="` + string(escaped) + `"`
}

// appendMetrics writes the engine's metrics page, in vLLM's names.
func (e *engine) appendMetrics(buf []byte) []byte {
	g := e.gauges()
	blocks := e.opts.blocks()
	p := page{buf: buf, labels: label("model_name", e.opts.Models[0]) + `,engine="0"`}
	p.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", float64(g.running))
	p.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", float64(g.waiting))
	p.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", float64(g.usedBlocks)/float64(blocks))
	p.counter("vllm:prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.", g.counts.cacheQueries)
	p.counter("vllm:prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.", g.counts.cacheHits)
	p.counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.", g.counts.promptTokens)
	p.counter("vllm:generation_tokens_total", "Number of generation tokens processed.", g.counts.generationTokens)

	p.family("vllm:request_success_total", "counter", "Count of successfully processed requests.")
	for _, reason := range []string{"stop", "length", "abort", "error"} {
		count := 0
		if reason == "length" {
			count = g.counts.finished
		}
		p.sample("vllm:request_success_total", `,finished_reason="`+reason+`"`, float64(count))
	}
	p.histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", &g.counts.ttft)

	p.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
	p.sample("vllm:cache_config_info", ","+label("block_size", strconv.Itoa(e.opts.BlockSize))+
		","+label("num_gpu_blocks", strconv.Itoa(blocks))+
		","+label("kv_cache_size_tokens", strconv.Itoa(blocks*e.opts.BlockSize))+
		`,enable_prefix_caching="True"`, 1)

	p.labels = ""
	p.family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
	p.buf = append(p.buf, "process_start_time_seconds "...)
	p.buf = strconv.AppendFloat(p.buf, float64(e.started.UnixNano())/1e9, 'f', 3, 64)
	return append(p.buf, '\n')
}
