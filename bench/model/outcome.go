package model

import (
	"fmt"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"
)

// segment is the time that one of an outcome's Segments covers.
const segment = 10 * time.Minute

// Outcome is what a replay came to.
type Outcome struct {
	// Mean and percentiles of the time to first token, in seconds. A percentile is
	// the least time that so many of the requests did not exceed (gonum's
	// stat.Empirical).
	Mean, P50, P90, P99 float64

	Hit     float64 // share of the prompts' tokens that were found in a cache
	Busiest float64 // tokens that the busiest engine prefilled, over the mean

	// Segments are the mean times to first token of the requests that came in each ten
	// minutes, in seconds; 0 where none came.
	Segments []float64
}

// String returns the outcome in a line.
func (o Outcome) String() string {
	return fmt.Sprintf("TTFT mean %.3f p50 %.2f p90 %.2f p99 %.2f s, hit %.3f, busiest/mean %.2f", o.Mean, o.P50, o.P90, o.P99, o.Hit, o.Busiest)
}

// tally counts first tokens.
type tally struct {
	waits         []float64   // seconds to the first token
	segments      [][]float64 // the same by when the request came
	input, cached int
}

func (t *tally) add(j *job, wait time.Duration) {
	t.input, t.cached = t.input+j.Input, t.cached+j.cached
	t.waits = append(t.waits, wait.Seconds())
	which := int(j.At / segment)
	for len(t.segments) <= which {
		t.segments = append(t.segments, nil)
	}
	t.segments[which] = append(t.segments[which], wait.Seconds())
}

func (p *replay) outcome() Outcome {
	t := &p.tally
	if len(t.waits) == 0 {
		return Outcome{}
	}
	slices.Sort(t.waits)
	quantile := func(share float64) float64 { return stat.Quantile(share, stat.Empirical, t.waits, nil) }
	o := Outcome{
		Mean:    stat.Mean(t.waits, nil),
		P50:     quantile(0.50),
		P90:     quantile(0.90),
		P99:     quantile(0.99),
		Hit:     float64(t.cached) / float64(t.input),
		Busiest: p.busiest(),
	}
	for _, waits := range t.segments {
		mean := 0.0
		if len(waits) > 0 {
			mean = stat.Mean(waits, nil)
		}
		o.Segments = append(o.Segments, mean)
	}
	return o
}

// busiest returns the work of the busiest engine over the mean.
func (p *replay) busiest() float64 {
	most, all := 0, 0
	for _, e := range p.engines {
		most, all = max(most, e.work), all+e.work
	}
	return float64(most) * float64(len(p.engines)) / float64(all)
}
