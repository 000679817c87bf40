package main

import (
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// result is what a scenario came to with one router. All times are simulated
// ones, in seconds, as if nothing had been compressed.
type result struct {
	Scenario string  `json:"scenario"`
	Router   string  `json:"router"`
	Speed    float64 `json:"speed"`
	Took     float64 `json:"took_seconds"` // in real time
	Requests int     `json:"requests"`
	Errors   int     `json:"errors"`
	Failure  string  `json:"first_error,omitempty"`

	// Hit is the share of all prompt tokens that engines found in their caches; nil if
	// nobody told.
	Hit *float64 `json:"hit"`

	// Engine is the time to the first token at the engines, by their schedule:
	// queue and prefill, and so what routing is responsible for. It is nil if the
	// engines are not ours.
	Engine *times `json:"engine_ttft"`

	// Client is the time to the first token as the client sees it: the router,
	// network and this machine included, which compression makes larger. It is nil if
	// there was none.
	Client *times `json:"client_ttft"`

	// Whole is the time to the end of the answer, as the client sees it.
	Whole *times `json:"end_to_end"`

	// Busiest is what the busiest engine prefilled, in tokens, over the mean; 0 if it is
	// not known.
	Busiest float64 `json:"busiest_over_mean"`

	// CPU is what the router took, in milliseconds a request (seconds for 1,000),
	// and PeakRSS its memory at most, in bytes; 0 if not known. Several routers are
	// added up.
	CPU     float64 `json:"router_cpu_ms_per_request,omitempty"`
	PeakRSS int64   `json:"router_peak_rss_bytes,omitempty"`
	Events  int     `json:"events"` // of all answers

	// Segments are the ten-minute pieces of the trace.
	Segments []segment `json:"segments"`

	// Late is how late requests were sent, at the 99th percentile: it shows whether
	// the machine could keep up.
	Late float64 `json:"late_p99"`
}

// times describes a distribution, in seconds.
type times struct {
	Mean float64   `json:"mean"`
	P50  float64   `json:"p50"`
	P90  float64   `json:"p90"`
	P99  float64   `json:"p99"`
	All  []float64 `json:"percentiles,omitempty"` // the 1st to 100th, for charts
}

// segment is ten minutes of a trace.
type segment struct {
	Start    float64 `json:"start"` // in seconds from the trace's
	Requests int     `json:"requests"`
	Engine   float64 `json:"engine_ttft_mean"`
	Client   float64 `json:"client_ttft_mean"`
}

// segmentLength is that of a segment.
const segmentLength = 10 * time.Minute

// summarize works a recording out.
func (p *player) summarize(rec *recording) result {
	res := result{
		Scenario: p.scenario.Name,
		Router:   p.router.Name(),
		Speed:    p.speed,
		Took:     rec.took.Seconds(),
		Requests: len(p.trace),
	}
	segments := newSegments(p.trace)
	p.addAnswers(&res, rec, segments)
	p.addPrefills(&res, rec, segments)
	for _, s := range segments {
		if s.Requests > 0 {
			res.Segments = append(res.Segments, s.mean())
		}
	}
	if rec.known {
		res.CPU = 1000 * rec.usage.CPU.Seconds() / float64(len(p.trace))
		res.PeakRSS = rec.usage.PeakRSS
	}
	return res
}

// addAnswers adds what the clients saw.
func (p *player) addAnswers(res *result, rec *recording, segments []sums) {
	var first, whole, late []float64
	prompt, cached := 0, 0
	for i, a := range rec.answers {
		late = append(late, p.simulated(a.late))
		if a.err != nil {
			res.Errors++
			if res.Failure == "" {
				res.Failure = a.err.Error()
			}
			continue
		}
		first = append(first, p.simulated(a.first))
		whole = append(whole, p.simulated(a.whole))
		prompt, cached = prompt+a.prompt, cached+a.cached
		res.Events += a.events
		segments[p.trace[i].At/segmentLength].client.add(p.simulated(a.first))
	}
	if prompt > 0 {
		res.Hit = new(float64(cached) / float64(prompt))
	}
	res.Client, res.Whole = describe(first), describe(whole)
	if t := describe(late); t != nil {
		res.Late = t.P99
	}
}

// addPrefills adds what the engines did.
func (p *player) addPrefills(res *result, rec *recording, segments []sums) {
	var waits []float64
	most, all, prompt := 0, 0, 0
	for _, prefills := range rec.prefills {
		work := 0
		for _, f := range prefills {
			work += f.Prompt - f.Cached
			prompt += f.Prompt
			waits = append(waits, f.Wait.Seconds())
			at := time.Duration(float64(f.Arrived.Sub(rec.start)) * p.speed)
			segments[min(int(at/segmentLength), len(segments)-1)].engine.add(f.Wait.Seconds())
		}
		most, all = max(most, work), all+work
	}
	if len(waits) == 0 {
		return
	}
	res.Engine = describe(waits)
	res.Hit = new(1 - float64(all)/float64(prompt))
	if all > 0 {
		res.Busiest = float64(most) * float64(len(rec.prefills)) / float64(all)
	}
}

// simulated is how much simulated time, in seconds, a real duration is.
func (p *player) simulated(d time.Duration) float64 { return d.Seconds() * p.speed }

// sum adds up to a mean.
type sum struct {
	n     int
	total float64
}

func (s *sum) add(v float64) { s.n, s.total = s.n+1, s.total+v }

func (s *sum) mean() float64 { return s.total / float64(max(s.n, 1)) }

// sums are those of a segment.
type sums struct {
	segment
	engine, client sum
}

func (s *sums) mean() segment {
	s.Engine, s.Client = s.engine.mean(), s.client.mean()
	return s.segment
}

func newSegments(requests []trace.Request) []sums {
	list := make([]sums, requests[len(requests)-1].At/segmentLength+1)
	for i := range list {
		list[i].Start = (time.Duration(i) * segmentLength).Seconds()
	}
	for i := range requests {
		list[requests[i].At/segmentLength].Requests++
	}
	return list
}

// describe describes values, which it sorts; nil if there are none.
func describe(values []float64) *times {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	at := func(share float64) float64 { return stat.Quantile(share, stat.Empirical, values, nil) }
	t := &times{Mean: stat.Mean(values, nil), P50: at(0.5), P90: at(0.9), P99: at(0.99)}
	for percent := 1; percent <= 100; percent++ {
		t.All = append(t.All, at(float64(percent)/100))
	}
	return t
}

// spread returns the least and the greatest mean of a segment's engine times, or
// of the client's where the engines' are not known.
func (r *result) spread() (least, most float64) {
	for i, s := range r.Segments {
		v := s.Engine
		if r.Engine == nil {
			v = s.Client
		}
		if i == 0 {
			least, most = v, v
		}
		least, most = min(least, v), max(most, v)
	}
	return least, most
}
