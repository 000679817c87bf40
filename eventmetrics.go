package inference

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-inference/caddy-inference/fleet"
	"github.com/caddy-inference/caddy-inference/kvevents"
)

// eventMetrics are the metrics of what engines say that they hold.
type eventMetrics struct {
	predictions *prometheus.CounterVec // upstream, outcome
	resyncs     *prometheus.CounterVec // upstream

	exact *prometheus.Desc // upstream, model, cause
	state *prometheus.Desc // upstream, state

	batches    *prometheus.Desc // upstream; so are all up to unlinked
	replayed   *prometheus.Desc
	gaps       *prometheus.Desc
	lost       *prometheus.Desc
	restarts   *prometheus.Desc
	unreadable *prometheus.Desc
	unlinked   *prometheus.Desc // and cause
	blocks     *prometheus.Desc
	blockSize  *prometheus.Desc

	indexBytes     *prometheus.Desc
	indexLimit     *prometheus.Desc
	indexBlocks    *prometheus.Desc
	indexEvictions *prometheus.Desc
	corrections    *prometheus.Desc
}

func newEventMetrics() *eventMetrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: name, Help: help,
		}, labels)
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(metricsNamespace, metricsSubsystem, name), help, labels, nil)
	}
	return &eventMetrics{
		predictions: counter("predictions_total", "Answers compared with what was known exactly of the upstream's cache, by the outcome.", "upstream", "outcome"),
		resyncs:     counter("event_resyncs_total", "Times that all of an upstream's events were read anew, as its answers contradicted them.", "upstream"),

		exact: desc("exact", "1 if the last request for the model was placed on the upstream on exact knowledge, else 0 with the cause.", "upstream", "model", "cause"),
		state: desc("event_stream", "1 for the state of the upstream's event stream.", "upstream", "state"),

		batches:    desc("event_batches_total", "Batches of cache events applied.", "upstream"),
		replayed:   desc("event_replayed_batches_total", "Of the batches, those that were replayed.", "upstream"),
		gaps:       desc("event_gaps_total", "Times that batches were missing.", "upstream"),
		lost:       desc("event_lost_batches_total", "Batches that could not be had again.", "upstream"),
		restarts:   desc("event_restarts_total", "Times that the publisher began anew.", "upstream"),
		unreadable: desc("event_unreadable_batches_total", "Batches that could not be read.", "upstream"),
		unlinked:   desc("event_links_ended_total", "Links to the publisher that ended or could not be made, by the cause.", "upstream", "cause"),
		blocks:     desc("indexed_blocks", "Blocks of KV cache that the upstream is known to hold.", "upstream"),
		blockSize:  desc("block_tokens", "Tokens in a block of the upstream's KV cache; 0 before its first event.", "upstream"),

		indexBytes:     desc("index_bytes", "Memory used by the index of what upstreams hold."),
		indexLimit:     desc("index_limit_bytes", "Memory the index may use."),
		indexBlocks:    desc("index_blocks", "Blocks in the index, whoever holds them."),
		indexEvictions: desc("index_evictions_total", "Blocks evicted from the index to keep it within its limit."),
		corrections:    desc("index_corrections_total", "Blocks of which the index forgot copies, as an answer contradicted them."),
	}
}

func (m *eventMetrics) vectors() []vector { return []vector{m.predictions, m.resyncs} }

func (m *eventMetrics) descs() []*prometheus.Desc {
	return []*prometheus.Desc{
		m.exact, m.state, m.batches, m.replayed, m.gaps, m.lost, m.restarts, m.unreadable, m.unlinked, m.blocks, m.blockSize,
		m.indexBytes, m.indexLimit, m.indexBlocks, m.indexEvictions, m.corrections,
	}
}

// collect collects what is read off the state.
func (m *eventMetrics) collect(s *state, ch chan<- prometheus.Metric) {
	now := s.clock.now()
	for _, w := range s.members() {
		m.collectModels(w, ch)
		if s.isFollowed(w) {
			m.collectStream(s, w, now, ch)
		}
	}
	index := s.index.Stats()
	gauge(ch, m.indexBytes, float64(index.Bytes))
	gauge(ch, m.indexLimit, float64(index.MaxBytes))
	gauge(ch, m.indexBlocks, float64(index.Blocks))
	total(ch, m.indexEvictions, index.Evicted)
	total(ch, m.corrections, index.Corrected)
}

// collectModels collects on what knowledge requests were placed on w.
func (m *eventMetrics) collectModels(w *worker, ch chan<- prometheus.Metric) {
	w.exact.causes.Range(func(model, cause any) bool {
		exact := 0.0
		if cause == "" {
			exact = 1
		}
		gauge(ch, m.exact, exact, w.Address(), model.(*fleet.Model).Name(), cause.(string))
		return true
	})
}

// collectStream collects what is known of the events of w, which are followed.
func (m *eventMetrics) collectStream(s *state, w *worker, now time.Time, ch chan<- prometheus.Metric) {
	f, upstream := w.feed.Load(), w.Address()
	if f == nil {
		gauge(ch, m.state, 1, upstream, w.inexact(now))
		return
	}
	state := kvevents.Synced.String()
	if why := f.inexact(now); why != "" {
		state = why
	}
	gauge(ch, m.state, 1, upstream, state)
	stats := f.subscriber.Stats()
	total(ch, m.batches, stats.Batches, upstream)
	total(ch, m.replayed, stats.Replayed, upstream)
	total(ch, m.gaps, stats.Gaps, upstream)
	total(ch, m.lost, stats.Lost, upstream)
	total(ch, m.restarts, stats.Restarts, upstream)
	total(ch, m.unreadable, stats.DecodeErrors+stats.Malformed, upstream)
	for why, n := range stats.Links {
		total(ch, m.unlinked, n, upstream, string(why))
	}
	holding := s.index.Holding(*f.handle.Load())
	gauge(ch, m.blocks, float64(holding.Blocks), upstream)
	gauge(ch, m.blockSize, float64(holding.BlockSize), upstream)
}

// isFollowed reports whether w is a place for requests whose events are followed.
func (s *state) isFollowed(w *worker) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return w.base.following.options != nil && (w != w.base || w.ranks.Load() == nil)
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func total(ch chan<- prometheus.Metric, d *prometheus.Desc, n uint64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

// prediction counts an answer that was compared with what was known of w.
func (m *metrics) prediction(w *worker, predicted, cached int) {
	outcome := "exact"
	switch {
	case cached < predicted:
		outcome = "less"
	case cached > predicted:
		outcome = "more"
	}
	w.series.RLock()
	defer w.series.RUnlock()
	if !w.uncounted {
		m.events.predictions.WithLabelValues(w.Address(), outcome).Inc()
	}
}

// resync counts that the events of w are read anew.
func (m *metrics) resync(w *worker) {
	w.series.RLock()
	defer w.series.RUnlock()
	if !w.uncounted {
		m.events.resyncs.WithLabelValues(w.Address()).Inc()
	}
}
