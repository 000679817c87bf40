package inference

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

const (
	// maxEngineMetrics bounds what is read of an engine's metrics page, in bytes.
	maxEngineMetrics = 8 << 20

	// maxMetricsLine bounds a line of it that is looked at, in bytes. The longest
	// of ours has the engine's whole cache configuration in its labels, about 2 KiB.
	maxMetricsLine = 16 << 10

	// maxCacheTokens bounds what is believed of the size of one cache. What is
	// reckoned with it cannot overflow.
	maxCacheTokens = 1 << 40
)

// engineFacts is what an engine's metrics page tells. Zero values are unknown.
type engineFacts struct {
	capacity int     // tokens of its KV cache
	started  float64 // Unix seconds
	ranks    int     // data parallel ranks
}

const (
	cacheConfigMetric  = "vllm:cache_config_info"
	poolMetric         = "sglang:max_total_num_tokens"
	processStartMetric = "process_start_time_seconds"
)

// readEngineMetrics finds vLLM's cache_config_info, SGLang's max_total_num_tokens
// and the process start time on a metrics page. With data parallelism there is one
// cache a rank; the address holds them all. The error is errNoMetrics if asking
// again would not help.
func readEngineMetrics(page io.Reader) (engineFacts, error) {
	lines, err := factLines(page)
	if err != nil {
		return engineFacts{}, fmt.Errorf("reading metrics page: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(lines)
	if err != nil {
		return engineFacts{}, fmt.Errorf("%w: %w", errNoMetrics, err)
	}
	var facts engineFacts
	for _, m := range families[cacheConfigMetric].GetMetric() {
		facts.capacity += cacheTokens(m.GetLabel())
		facts.ranks++
	}
	tokens, ranks := poolTokens(families[poolMetric].GetMetric())
	facts.capacity += tokens
	facts.ranks = min(facts.ranks+ranks, maxRanks)
	for _, m := range families[processStartMetric].GetMetric() {
		started := max(m.GetGauge().GetValue(), m.GetUntyped().GetValue())
		if started > 0 && !math.IsInf(started, 1) { // nor NaN
			facts.started = max(facts.started, started)
		}
	}
	return facts, nil
}

// factLines returns the lines of a metrics page that we read. A page has some
// thousand; ours can be read whatever the others are, and with them a last line
// that was cut.
func factLines(page io.Reader) (*bytes.Buffer, error) {
	lines := new(bytes.Buffer)
	reader := bufio.NewReaderSize(page, maxMetricsLine)
	begins := true // at the beginning of a line
	for {
		line, err := reader.ReadSlice('\n')
		if err == nil && begins && hasFact(line) {
			lines.Write(line)
		}
		begins = err == nil
		switch {
		case err == nil || errors.Is(err, bufio.ErrBufferFull):
		case err == io.EOF:
			return lines, nil
		default:
			return nil, err
		}
	}
}

// hasFact reports whether a line is about a metric of ours, its type included.
func hasFact(line []byte) bool {
	line = bytes.TrimPrefix(line, []byte("# TYPE "))
	for _, metric := range []string{cacheConfigMetric, poolMetric, processStartMetric} {
		if bytes.HasPrefix(line, []byte(metric)) {
			return true
		}
	}
	return false
}

// cacheTokens reads a cache's size off the labels that describe it.
func cacheTokens(labels []*dto.LabelPair) int {
	var tokens, blocks, blockSize int
	for _, l := range labels {
		n, err := strconv.Atoi(l.GetValue())
		if err != nil || n < 0 || n > maxCacheTokens {
			continue // "None" and the like are unknown
		}
		switch l.GetName() {
		case "kv_cache_size_tokens":
			tokens = n
		case "num_gpu_blocks":
			blocks = n
		case "block_size":
			blockSize = n
		}
	}
	if tokens > 0 {
		return tokens
	}
	if blocks == 0 || blockSize > maxCacheTokens/blocks {
		return 0
	}
	return blocks * blockSize
}

// poolTokens reads SGLang's size of a cache: one for each data parallel rank, told
// by every process that shares it.
func poolTokens(metrics []*dto.Metric) (tokens, ranks int) {
	perRank := make(map[string]int)
	for _, m := range metrics {
		n := max(m.GetGauge().GetValue(), m.GetUntyped().GetValue())
		if n > 0 && n <= maxCacheTokens { // nor NaN
			rank := labelValue(m.GetLabel(), "dp_rank")
			perRank[rank] = max(perRank[rank], int(n))
		}
	}
	for _, n := range perRank {
		tokens += n
	}
	return tokens, len(perRank)
}

func labelValue(labels []*dto.LabelPair, name string) string {
	for _, l := range labels {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
