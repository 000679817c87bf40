package inference

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-inference/caddy-inference/fleet"
	"github.com/caddy-inference/caddy-inference/selection"
)

const (
	metricsNamespace = "caddy"
	metricsSubsystem = "inference"
)

// metrics are the Prometheus metrics of the state. Counters and histograms are
// kept as they are counted, so that they go on over reloads; gauges are read off
// the state when somebody asks. Each config registers the whole as one collector
// in its own registry.
type metrics struct {
	state *state

	decisions  *prometheus.CounterVec   // policy, upstream, reason
	nobody     prometheus.Counter       // in place of one of them; never shown
	fallbacks  *prometheus.CounterVec   // policy, cause
	unplaced   *prometheus.CounterVec   // policy
	cut        *prometheus.CounterVec   // policy, limit
	suspicions *prometheus.CounterVec   // upstream, cause
	queue      *prometheus.HistogramVec // policy
	first      *prometheus.HistogramVec // upstream
	promptIDs  *prometheus.CounterVec   // policy, source, cause
	tokenizer  *prometheus.HistogramVec // outcome

	prompt   *prometheus.CounterVec // upstream, model; so are all below
	best     *prometheus.CounterVec
	held     *prometheus.CounterVec
	cached   *prometheus.CounterVec
	reported *prometheus.CounterVec

	events *eventMetrics

	inFlight  *prometheus.Desc // upstream; so are all up to overdue
	queued    *prometheus.Desc
	decoding  *prometheus.Desc
	recent    *prometheus.Desc
	rate      *prometheus.Desc
	capacity  *prometheus.Desc
	believed  *prometheus.Desc
	suspected *prometheus.Desc
	overdue   *prometheus.Desc

	treeBytes     *prometheus.Desc
	treeLimit     *prometheus.Desc
	treeNodes     *prometheus.Desc
	treeEvictions *prometheus.Desc
	bodyBytes     *prometheus.Desc
	bodyLimit     *prometheus.Desc
	memoBytes     *prometheus.Desc
	memoLimit     *prometheus.Desc
}

func newMetrics(s *state) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: name, Help: help,
		}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: name, Help: help, Buckets: buckets,
		}, labels)
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(metricsNamespace, metricsSubsystem, name), help, labels, nil)
	}
	return &metrics{
		state: s,

		nobody:     prometheus.NewCounter(prometheus.CounterOpts{Name: "nobody_total", Help: "Choices of workers that are gone."}),
		decisions:  counter("decisions_total", "Choices of an upstream, one for each attempt of a request, by their reason.", "policy", "upstream", "reason"),
		fallbacks:  counter("fallbacks_total", "Choices made without a prompt to route on, by the cause.", "policy", "cause"),
		unplaced:   counter("unplaced_total", "Attempts for which no upstream could be chosen.", "policy"),
		cut:        counter("cut_bodies_total", "Requests routed on the first part of their body, by the limit that was reached.", "policy", "limit"),
		suspicions: counter("suspicions_total", "Times that requests began to stay away from the upstream as it did not serve, by the cause.", "upstream", "cause"),
		queue: histogram("queued_tokens_at_choice", "Uncached prompt tokens queued on the chosen upstream when it was chosen.",
			prometheus.ExponentialBuckets(256, 4, 8), "policy"),
		first: histogram("first_token_seconds", "Time from the choice of an upstream to the first output token of a streamed answer.",
			prometheus.ExponentialBuckets(0.01, 2, 14), "upstream"),

		promptIDs: counter("prompt_ids_total", "Requests whose token ids were wanted, by where these were looked for, and the cause if they are not known.", "policy", "source", "cause"),
		tokenizer: histogram("tokenize_seconds", "Time of calls to engines for token ids, by what came of them.",
			prometheus.ExponentialBuckets(0.001, 2, 13), "outcome"),

		prompt:   counter("prompt_tokens_total", "Prompt tokens of answered requests with a prompt to route on, or whose engine counted it; as the engine counted them, else estimated.", "upstream", "model"),
		best:     counter("best_held_tokens_total", "Of the prompt tokens, those that some upstream was believed to hold.", "upstream", "model"),
		held:     counter("held_tokens_total", "Of the prompt tokens, those that the chosen upstream was believed to hold.", "upstream", "model"),
		cached:   counter("cached_tokens_total", "Of the prompt tokens, those that the engine reported to have found in its cache.", "upstream", "model"),
		reported: counter("reported_prompt_tokens_total", "Prompt tokens of the requests whose engine reported cached tokens: what cached_tokens_total is a part of.", "upstream", "model"),

		events: newEventMetrics(),

		inFlight:  desc("requests_in_flight", "Requests placed on the upstream and not ended.", "upstream"),
		queued:    desc("queued_tokens", "Uncached prompt tokens placed on the upstream that wait for their first output token.", "upstream"),
		decoding:  desc("requests_decoding", "Requests on the upstream whose first output token was seen.", "upstream"),
		recent:    desc("recent_tokens", "Uncached prompt tokens placed on the upstream of late: each counts half after a minute.", "upstream"),
		rate:      desc("prefill_tokens_per_second", "Prefill rate learned from first-token times; 0 if none was learned of late.", "upstream"),
		capacity:  desc("kv_capacity_tokens", "Tokens the engine's KV cache holds, as it said; 0 if unknown.", "upstream"),
		believed:  desc("believed_bytes", "Bytes of prompts the upstream is believed to hold, counted in whole pieces of 128.", "upstream"),
		suspected: desc("suspected", "1 while requests stay away from the upstream as it did not serve, else 0.", "upstream"),
		overdue:   desc("overdue_seconds", "For how long something should have been heard of the upstream; 0 if there is nothing to complain of.", "upstream"),

		treeBytes:     desc("tree_bytes", "Memory used by the tree of prefixes."),
		treeLimit:     desc("tree_limit_bytes", "Memory the tree of prefixes may use."),
		treeNodes:     desc("tree_nodes", "Nodes of the tree of prefixes."),
		treeEvictions: desc("tree_evictions_total", "Nodes evicted from the tree of prefixes to keep it within its limit."),
		bodyBytes:     desc("buffered_bytes", "Bytes of request bodies held."),
		bodyLimit:     desc("buffered_limit_bytes", "Bytes of request bodies that may be held."),
		memoBytes:     desc("token_memo_bytes", "Memory used to remember token ids of prompts."),
		memoLimit:     desc("token_memo_limit_bytes", "Memory that may be used to remember token ids of prompts."),
	}
}

// vector is what counters and histograms with labels have in common.
type vector interface {
	prometheus.Collector
	DeletePartialMatch(prometheus.Labels) int
}

func (m *metrics) vectors() []vector {
	return append(m.events.vectors(), m.decisions, m.fallbacks, m.unplaced, m.cut, m.suspicions, m.queue, m.first, m.promptIDs, m.tokenizer, m.prompt, m.best, m.held, m.cached, m.reported)
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range m.vectors() {
		v.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{
		m.inFlight, m.queued, m.decoding, m.recent, m.rate, m.capacity, m.believed, m.suspected, m.overdue,
		m.treeBytes, m.treeLimit, m.treeNodes, m.treeEvictions, m.bodyBytes, m.bodyLimit, m.memoBytes, m.memoLimit,
	} {
		ch <- d
	}
	for _, d := range m.events.descs() {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, v := range m.vectors() {
		v.Collect(ch)
	}
	now := m.state.clock.now()
	for _, w := range m.state.members() {
		load := w.Load()
		gauge(ch, m.inFlight, float64(load.InFlight()), w.Address())
		gauge(ch, m.queued, float64(load.Queued()), w.Address())
		gauge(ch, m.decoding, float64(w.Decoding()), w.Address())
		gauge(ch, m.recent, w.Recent(now), w.Address())
		gauge(ch, m.rate, w.PrefillRate(now), w.Address())
		gauge(ch, m.capacity, float64(w.Capacity()), w.Address())
		gauge(ch, m.believed, float64(m.state.tree.Held(*w.prefix.Load())), w.Address())
		gauge(ch, m.suspected, float64(w.suspicions()), w.Address())
		gauge(ch, m.overdue, w.Overdue(now).Seconds(), w.Address())
	}
	tree := m.state.tree.Stats()
	gauge(ch, m.treeBytes, float64(tree.Bytes))
	gauge(ch, m.treeLimit, float64(tree.MaxBytes))
	gauge(ch, m.treeNodes, float64(tree.Nodes))
	total(ch, m.treeEvictions, tree.Evicted)
	gauge(ch, m.bodyBytes, float64(m.state.buffered.used.Load()))
	gauge(ch, m.bodyLimit, float64(m.state.buffered.limit.Load()))
	gauge(ch, m.memoBytes, float64(m.state.tokenMemo.bytes()))
	gauge(ch, m.memoLimit, maxTokenMemo)
	m.events.collect(m.state, ch)
}

// choiceCounters count the choices of a worker by one policy, for each reason
// there can be.
type choiceCounters [reasons]prometheus.Counter

// choices returns the counters of w's choices by a policy. Those of a worker that
// is gone count for nobody.
func (m *metrics) choices(policy string, w *worker) (c choiceCounters) {
	w.series.RLock()
	defer w.series.RUnlock()
	for why := reason(selection.None) + 1; int(why) < reasons; why++ {
		if w.uncounted {
			c[why] = m.nobody
			continue
		}
		c[why] = m.decisions.WithLabelValues(policy, w.Address(), why.String())
	}
	return c
}

// suspicion counts one of a worker.
func (m *metrics) suspicion(w *worker, why blame) {
	w.series.RLock()
	defer w.series.RUnlock()
	if !w.uncounted {
		m.suspicions.WithLabelValues(w.Address(), string(why)).Inc()
	}
}

// firstToken observes the time to a first token.
func (m *metrics) firstToken(w *worker, seconds float64) {
	w.series.RLock()
	defer w.series.RUnlock()
	if !w.uncounted {
		m.first.WithLabelValues(w.Address()).Observe(seconds)
	}
}

// tokens counts the tokens of an answered request.
func (m *metrics) tokens(w *worker, model *fleet.Model, n tokenCounts) {
	w.series.RLock()
	defer w.series.RUnlock()
	if w.uncounted {
		return
	}
	upstream, name := w.Address(), model.Name()
	m.prompt.WithLabelValues(upstream, name).Add(float64(n.prompt))
	m.best.WithLabelValues(upstream, name).Add(float64(n.best))
	m.held.WithLabelValues(upstream, name).Add(float64(n.held))
	if n.cached >= 0 {
		m.cached.WithLabelValues(upstream, name).Add(float64(n.cached))
		m.reported.WithLabelValues(upstream, name).Add(float64(n.prompt))
	}
}

// ids counts a request whose token ids were looked for somewhere.
func (m *metrics) ids(policy, source, cause string) {
	m.promptIDs.WithLabelValues(policy, source, cause).Inc()
}

// tokenized observes a call for token ids.
func (m *metrics) tokenized(outcome string, took time.Duration) {
	m.tokenizer.WithLabelValues(outcome).Observe(took.Seconds())
}

// forget deletes the series of an upstream that is gone, for good.
func (m *metrics) forget(w *worker) {
	w.series.Lock()
	defer w.series.Unlock()
	w.uncounted = true
	for _, v := range m.vectors() {
		v.DeletePartialMatch(prometheus.Labels{"upstream": w.Address()})
	}
}

var _ prometheus.Collector = (*metrics)(nil)
