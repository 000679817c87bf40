package main

import (
	"fmt"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// metric is a figure of an outcome.
type metric struct {
	name, format string
	of           func(o outcome) float64
	ratio        bool // never 0, so that values can be compared by ratios
}

// metrics are what can be told of replays, the most important first.
var metrics = []metric{
	{"Mean time to first token, in seconds", "%.3f", func(o outcome) float64 { return o.TTFTMean }, true},
	{"Time to first token of the slowest hundredth, in seconds", "%.2f", func(o outcome) float64 { return o.P99 }, true},
	{"Share of prompt tokens found in a cache", "%.3f", func(o outcome) float64 { return o.Hit }, false},
	{"Work of the busiest engine over the mean", "%.2f", func(o outcome) float64 { return o.Busiest }, false},
}

// table has the metric, as the mean over the seeds: a row for each variant, a column
// for each traffic.
func (m metric) table(variants []variant, results []outcomes) table {
	t := table{title: m.name, head: []string{""}}
	for _, o := range results[0][0] {
		t.head = append(t.head, o.column())
	}
	for i, v := range variants {
		row := []string{v.title()}
		for column := range results[i][0] {
			row = append(row, fmt.Sprintf(m.format, stat.Mean(m.figures(results[i], column), nil)))
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// changes has how much larger the metric is than with the product's value, each seed
// compared with itself, and how sure that is: the standard error over the seeds. The
// last column is the geometric mean over everything.
func (m metric) changes(variants []variant, results []outcomes) table {
	t := m.table(variants, results)
	t.title = "The same, compared with now, in %"
	t.head = append(t.head, "all")
	now := results[slices.IndexFunc(variants, func(v variant) bool { return v.current })]
	for i := range variants {
		var all []float64
		for column := range now[0] {
			ratios := m.figures(results[i], column)
			for seed, base := range m.figures(now, column) {
				ratios[seed] /= base
			}
			all = append(all, ratios...)
			t.rows[i][column+1] = change(ratios)
		}
		t.rows[i] = append(t.rows[i], change([]float64{stat.GeometricMean(all, nil)}))
	}
	return t
}

// figures returns the metric in a column, by seed.
func (m metric) figures(results outcomes, column int) []float64 {
	figures := make([]float64, len(results))
	for seed, row := range results {
		figures[seed] = m.of(row[column])
	}
	return figures
}

// change writes the mean of some ratios as a difference in percent, and its standard
// error if they are not all the same.
func change(ratios []float64) string {
	mean, deviation := stat.MeanStdDev(ratios, nil)
	text := fmt.Sprintf("%+.1f", 100*(mean-1))
	if len(ratios) > 1 && deviation > 0 {
		text += fmt.Sprintf(" ±%.1f", 100*stat.StdErr(deviation, float64(len(ratios))))
	}
	return text
}
