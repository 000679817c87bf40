package main

import (
	"slices"

	"gonum.org/v1/gonum/stat"
)

// cellResult is what a cell came to.
type cellResult struct {
	Cell cell        `json:"cell"`
	Name string      `json:"name"`
	Rows []rowResult `json:"rows"`
}

// rowResult is what a row came to in a cell. Figures are medians of all rounds.
type rowResult struct {
	Row      string `json:"row"`
	Rounds   int    `json:"rounds"`
	Requests int    `json:"requests"`
	Events   int    `json:"events,omitempty"`
	Errors   int    `json:"errors"`
	Failure  string `json:"first_error,omitempty"`

	P50  float64 `json:"p50_us"`        // to the end of the answer, or to the first event of a stream
	P99  float64 `json:"p99_us"`        // the same
	Rate float64 `json:"rate"`          // requests a second, or events
	CPU  float64 `json:"router_cpu_us"` // for a request, or for an event

	AddedP50 float64 `json:"added_p50_us"` // to the one without a router
	AddedP99 float64 `json:"added_p99_us"`

	// The same of stock's is 1. Ratios are taken within a round.
	AddedP50Ratio spread `json:"added_p50_ratio"`
	RateRatio     spread `json:"rate_ratio"`
	CPURatio      spread `json:"cpu_ratio"`

	samples []sample
}

// spread is a median with the quartiles beside it: half of the rounds were
// between them.
type spread struct {
	Low    float64 `json:"low"`
	Median float64 `json:"median"`
	High   float64 `json:"high"`
}

// summarize works out the samples of every row.
func summarize(c cell, names []string, samples [][]sample) cellResult {
	r := cellResult{Cell: c, Name: c.String()}
	engines, stock := samples[0], samples[slices.Index(names, base)]
	for i, name := range names {
		of := rowResult{Row: name, Rounds: len(samples[i]), samples: samples[i]}
		of.count()
		of.describe()
		of.compare(engines, stock)
		r.Rows = append(r.Rows, of)
	}
	return r
}

// count adds up what is counted.
func (r *rowResult) count() {
	for _, s := range r.samples {
		r.Requests += s.Requests
		r.Events += s.Events
		r.Errors += s.Errors
		if r.Failure == "" {
			r.Failure = s.Failure
		}
	}
}

// describe works out the row's own figures.
func (r *rowResult) describe() {
	r.P50 = r.median(func(s sample) float64 { return s.P50 })
	r.P99 = r.median(func(s sample) float64 { return s.P99 })
	r.Rate = r.median(sample.rate)
	r.CPU = r.median(sample.cpu)
}

// compare works out the figures that come from other rows of the same rounds.
func (r *rowResult) compare(engines, stock []sample) {
	n := min(len(r.samples), len(engines), len(stock))
	var p50, p99, ratio, rate, cpu []float64
	for i, s := range r.samples[:n] {
		added := s.P50 - engines[i].P50
		p50 = append(p50, added)
		p99 = append(p99, s.P99-engines[i].P99)
		ratio = append(ratio, over(added, stock[i].P50-engines[i].P50))
		rate = append(rate, over(s.rate(), stock[i].rate()))
		cpu = append(cpu, over(s.cpu(), stock[i].cpu()))
	}
	r.AddedP50, r.AddedP99 = quantile(p50, 0.5), quantile(p99, 0.5)
	r.AddedP50Ratio, r.RateRatio, r.CPURatio = spreadOf(ratio), spreadOf(rate), spreadOf(cpu)
}

// units is what the slice is counted in: events, if there were any.
func (s sample) units() float64 {
	if s.Events > 0 {
		return float64(s.Events)
	}
	return float64(s.Requests)
}

// rate is units a second.
func (s sample) rate() float64 { return over(s.units(), s.Seconds) }

// cpu is µs of the router's processor time for a unit.
func (s sample) cpu() float64 { return over(s.CPU*1e6, s.units()) }

func (r *rowResult) median(figure func(sample) float64) float64 {
	var values []float64
	for _, s := range r.samples {
		values = append(values, figure(s))
	}
	return quantile(values, 0.5)
}

// over divides; of nothing there is no share.
func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// quantile is the least value that a share of all are not above. It sorts them.
func quantile(values []float64, share float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return stat.Quantile(share, stat.Empirical, values, nil)
}

func spreadOf(values []float64) spread {
	return spread{quantile(values, 0.25), quantile(values, 0.5), quantile(values, 0.75)}
}
