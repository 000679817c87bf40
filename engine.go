package inference

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/zap"
)

const (
	askTimeout = 5 * time.Second

	// An engine that does not answer is asked again after askFirst, then after
	// twice as long each time, up to askLast. One that did is not asked again
	// before askFirst, however many requests fail.
	askFirst = time.Second
	askLast  = 30 * time.Second

	// maxEngineMetrics bounds what is read of an engine's metrics page, in bytes.
	maxEngineMetrics = 8 << 20

	// maxMetricsLine bounds a line of it that is looked at, in bytes. The longest
	// of ours has the engine's whole cache configuration in its labels, about 2 KiB.
	maxMetricsLine = 16 << 10

	// maxCacheTokens bounds what is believed of the size of one cache. What is
	// reckoned with it cannot overflow.
	maxCacheTokens = 1 << 40
)

// engine is what a worker's engine said of itself, and whether it has to be
// asked again.
type engine struct {
	asking  atomic.Bool
	wanted  atomic.Bool // somebody wants an answer from after now
	suspect atomic.Bool // it failed since it was last asked
	started float64     // Unix seconds; 0 unknown. Touched by the one who asks
}

// ask asks w's engine, in the background, how many tokens its cache holds and
// whether it is still the process it was. s.mu is held.
func (s *state) ask(w *worker) {
	if s.ctx == nil || w.transport.Load() == nil {
		return
	}
	w.engine.wanted.Store(true) // so that whoever asks already goes on
	if !w.engine.asking.CompareAndSwap(false, true) {
		return
	}
	ctx := s.ctx
	s.tasks.Go(func() { s.askWhileWanted(ctx, w) })
}

// suspect says that w failed a request in a way that a restart of its engine
// would explain.
func (s *state) suspect(w *worker) {
	w.engine.suspect.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.workers[w.Worker] == w {
		s.ask(w)
	}
}

// askWhileWanted asks until there is an answer from after it was last wanted.
func (s *state) askWhileWanted(ctx context.Context, w *worker) {
	for s.askUntilAnswered(ctx, w) && w.pause(ctx, askFirst) {
		w.engine.asking.Store(false)
		if !w.engine.wanted.Load() || !w.engine.asking.CompareAndSwap(false, true) {
			return
		}
	}
	w.engine.asking.Store(false)
}

// askUntilAnswered reports whether the engine answered before ctx ended, the
// worker left, or a config came that does not reach it by HTTP.
func (s *state) askUntilAnswered(ctx context.Context, w *worker) bool {
	failed := false
	for wait := askFirst; ; wait = min(2*wait, askLast) {
		w.engine.wanted.Store(false)
		failed = w.engine.suspect.Swap(false) || failed
		said, err := askEngine(ctx, w)
		if err == nil || errors.Is(err, errNoMetrics) {
			s.heard(w, said, failed)
		}
		if err == nil {
			return true
		}
		if c := s.logger.Load().Check(zap.DebugLevel, "engine did not tell its cache size"); c != nil {
			c.Write(zap.String("upstream", w.Address()), zap.Error(err))
		}
		if errors.Is(err, errNoMetrics) {
			return true
		}
		if errors.Is(err, errNotHTTP) || !w.pause(ctx, wait) {
			if failed {
				w.engine.suspect.Store(true) // for whoever asks next
			}
			return false
		}
	}
}

// pause waits and reports whether there is reason to go on.
func (w *worker) pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.left:
		return false
	case <-ctx.Done():
		return false
	}
}

// engineFacts is what an engine's metrics page tells. Zero values are unknown.
type engineFacts struct {
	capacity int     // tokens of its KV cache
	started  float64 // Unix seconds
}

// heard takes in what the engine said. One that failed and does not tell when it
// was started is taken for restarted: a cache believed empty costs one prefill,
// one wrongly believed full costs one for each request.
func (s *state) heard(w *worker, said engineFacts, failed bool) {
	restarted := said.started != w.engine.started && w.engine.started != 0 || failed && said.started == 0
	w.engine.started = said.started
	if restarted {
		s.forgetPrefixes(w)
		w.ForgetRate()
		s.logger.Load().Info("engine was restarted; its cache is taken for empty", zap.String("upstream", w.Address()))
	}
	if said.capacity > 0 {
		w.SetCapacity(said.capacity)
	}
	s.fit(w)
}

// fit limits what w is believed to hold to what its engine has room for.
func (s *state) fit(w *worker) {
	bytes := float64(w.Capacity()) * s.models.StoredRatio()
	s.tree.SetCapacity(*w.prefix.Load(), int64(bytes))
}

var (
	// errNoMetrics says that the engine answers, but not this question.
	errNoMetrics = errors.New("no metrics page")

	// errNotHTTP says that there is no way to ask.
	errNotHTTP = errors.New("upstream is not reached by HTTP")
)

// askEngine reads the metrics page of w's engine.
func askEngine(ctx context.Context, w *worker) (engineFacts, error) {
	transport := w.transport.Load()
	if transport == nil {
		return engineFacts{}, errNotHTTP
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	ctx = context.WithValue(ctx, caddy.ReplacerCtxKey, caddy.NewReplacer())
	request := (&http.Request{
		Method: http.MethodGet,
		URL:    &url.URL{Host: w.Address(), Path: "/metrics"},
		Host:   w.Address(),
		Header: http.Header{"User-Agent": {"caddy-inference"}},
		Proto:  "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	response, err := transport.RoundTrip(request)
	if err != nil {
		return engineFacts{}, err
	}
	defer response.Body.Close()
	if response.StatusCode >= http.StatusInternalServerError {
		return engineFacts{}, fmt.Errorf("metrics page answered %d", response.StatusCode)
	}
	if response.StatusCode != http.StatusOK {
		return engineFacts{}, fmt.Errorf("%w: answered %d", errNoMetrics, response.StatusCode)
	}
	return readEngineMetrics(io.LimitReader(response.Body, maxEngineMetrics))
}

const (
	cacheConfigMetric  = "vllm:cache_config_info"
	poolMetric         = "sglang:max_total_num_tokens"
	processStartMetric = "process_start_time_seconds"
)

// readEngineMetrics finds vLLM's cache_config_info, SGLang's max_total_num_tokens
// and the process start time on a metrics page. With data parallelism there is one cache a rank; the address
// holds them all.
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
	}
	facts.capacity += poolTokens(families[poolMetric].GetMetric())
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
func poolTokens(metrics []*dto.Metric) (tokens int) {
	ranks := make(map[string]int)
	for _, m := range metrics {
		n := max(m.GetGauge().GetValue(), m.GetUntyped().GetValue())
		if n > 0 && n <= maxCacheTokens { // nor NaN
			rank := labelValue(m.GetLabel(), "dp_rank")
			ranks[rank] = max(ranks[rank], int(n))
		}
	}
	for _, n := range ranks {
		tokens += n
	}
	return tokens
}

func labelValue(labels []*dto.LabelPair, name string) string {
	for _, l := range labels {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
