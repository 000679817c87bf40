package main

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// cellResult is what a cell came to.
type cellResult struct {
	Cell cell        `json:"cell"`
	Name string      `json:"name"`
	Rows []rowResult `json:"rows"`
}

// rowResult is what a row came to in a cell. Figures are medians of the rounds in
// which they are known, and 0 if there is none.
type rowResult struct {
	Row      string `json:"row"`
	Rounds   int    `json:"rounds"`
	Requests int    `json:"requests"`
	Events   int    `json:"events,omitempty"`
	Errors   int    `json:"errors"`
	Failure  string `json:"first_error,omitempty"`

	P50  float64 `json:"p50_us,omitzero"`        // to the end of the answer, or to the first event of a stream
	P99  float64 `json:"p99_us,omitzero"`        // the same
	Rate float64 `json:"rate"`                   // requests a second, or events
	CPU  float64 `json:"router_cpu_us,omitzero"` // for a request, or for an event

	AddedP50 float64 `json:"added_p50_us,omitzero"` // to the one without a router
	AddedP99 float64 `json:"added_p99_us,omitzero"`

	// The same of stock's is 1. Ratios are taken within a round; rounds in which there
	// is none are left out, and nil are those that no round has.
	AddedP50Ratio *spread `json:"added_p50_ratio,omitempty"`
	RateRatio     *spread `json:"rate_ratio,omitempty"`
	CPURatio      *spread `json:"cpu_ratio,omitempty"`

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
	r.AddedP50, r.AddedP99 = median(p50), median(p99)
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

// median is that of a figure of all rounds.
func (r *rowResult) median(figure func(sample) float64) float64 {
	var values []float64
	for _, s := range r.samples {
		values = append(values, figure(s))
	}
	return median(values)
}

// over divides. Of nothing there is no share, nor of less, as what a router adds can
// be in a round that the machine spoiled: that is NaN.
func over(a, b float64) float64 {
	if b > 0 {
		return a / b
	}
	return math.NaN()
}

// known are the values that are not NaN. It reuses the space of all.
func known(values []float64) []float64 { return slices.DeleteFunc(values, math.IsNaN) }

// quantile is the least of the known values that a share of them are not above; NaN
// if there is none. It sorts them.
func quantile(values []float64, share float64) float64 {
	values = known(values)
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	return stat.Quantile(share, stat.Empirical, values, nil)
}

// median is that of the known values; 0 if there is none.
func median(values []float64) float64 {
	if values = known(values); len(values) == 0 {
		return 0
	}
	return quantile(values, 0.5)
}

// spreadOf is the spread of the known values; nil if there is none.
func spreadOf(values []float64) *spread {
	if values = known(values); len(values) == 0 {
		return nil
	}
	return &spread{quantile(values, 0.25), quantile(values, 0.5), quantile(values, 0.75)}
}
