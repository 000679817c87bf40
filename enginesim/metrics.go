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
	buf   []byte
	ranks []rankGauges
}

// rankGauges is the state of a rank, and the labels of all its samples.
type rankGauges struct {
	gauges
	labels string
}

func (p *page) family(name, kind, help string) {
	p.buf = append(p.buf, "# HELP "+name+" "+help+"\n# TYPE "+name+" "+kind+"\n"...)
}

// sample writes one line. extra is further labels, each behind a comma.
func (p *page) sample(name string, g *rankGauges, extra string, value float64) {
	p.buf = append(p.buf, name+"{"+g.labels+extra+"} "...)
	p.buf = strconv.AppendFloat(p.buf, value, 'g', -1, 64)
	p.buf = append(p.buf, '\n')
}

// gauge writes a value of each rank.
func (p *page) gauge(name, help string, value func(g *gauges) float64) {
	p.family(name, "gauge", help)
	for i := range p.ranks {
		p.sample(name, &p.ranks[i], "", value(&p.ranks[i].gauges))
	}
}

// counter writes what each rank has counted.
func (p *page) counter(name, help string, value func(c *counters) int) {
	p.family(name, "counter", help)
	for i := range p.ranks {
		p.sample(name, &p.ranks[i], "", float64(value(&p.ranks[i].counts)))
	}
}

func (p *page) histogram(name string, g *rankGauges, h *histogram) {
	below := 0
	for i, bound := range h.bounds {
		below += h.counts[i]
		p.sample(name+"_bucket", g, `,le="`+strconv.FormatFloat(bound, 'f', -1, 64)+`"`, float64(below))
	}
	p.sample(name+"_bucket", g, `,le="+Inf"`, float64(h.total))
	p.sample(name+"_sum", g, "", h.sum)
	p.sample(name+"_count", g, "", float64(h.total))
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
func (l *life) appendMetrics(buf []byte) []byte {
	opts := &l.ranks[0].opts
	p := page{buf: buf}
	for rank, e := range l.ranks {
		labels := label("model_name", opts.Models[0]) + "," + label("engine", strconv.Itoa(rank))
		p.ranks = append(p.ranks, rankGauges{e.gauges(), labels})
	}
	p.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", func(g *gauges) float64 { return float64(g.running) })
	p.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", func(g *gauges) float64 { return float64(g.waiting) })
	p.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", func(g *gauges) float64 { return float64(g.usedBlocks) / float64(opts.blocks()) })
	p.counter("vllm:prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.", func(c *counters) int { return c.cacheQueries })
	p.counter("vllm:prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.", func(c *counters) int { return c.cacheHits })
	p.counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.", func(c *counters) int { return c.promptTokens })
	p.counter("vllm:generation_tokens_total", "Number of generation tokens processed.", func(c *counters) int { return c.generationTokens })
	p.successes()

	p.family("vllm:time_to_first_token_seconds", "histogram", "Histogram of time to first token in seconds.")
	for i := range p.ranks {
		p.histogram("vllm:time_to_first_token_seconds", &p.ranks[i], &p.ranks[i].counts.ttft)
	}
	p.cacheConfig(opts)

	p.family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
	p.buf = append(p.buf, "process_start_time_seconds "...)
	p.buf = strconv.AppendFloat(p.buf, float64(l.ranks[0].started.UnixNano())/1e9, 'f', 3, 64)
	return append(p.buf, '\n')
}

func (p *page) successes() {
	p.family("vllm:request_success_total", "counter", "Count of successfully processed requests.")
	for i := range p.ranks {
		for _, reason := range []string{"stop", "length", "abort", "error"} {
			count := 0
			if reason == "length" {
				count = p.ranks[i].counts.finished
			}
			p.sample("vllm:request_success_total", &p.ranks[i], `,finished_reason="`+reason+`"`, float64(count))
		}
	}
}

func (p *page) cacheConfig(opts *Options) {
	p.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
	for i := range p.ranks {
		p.sample("vllm:cache_config_info", &p.ranks[i], ","+label("block_size", strconv.Itoa(opts.BlockSize))+
			","+label("num_gpu_blocks", strconv.Itoa(opts.blocks()))+
			","+label("kv_cache_size_tokens", strconv.Itoa(opts.blocks()*opts.BlockSize))+
			`,enable_prefix_caching="True"`, 1)
	}
}
