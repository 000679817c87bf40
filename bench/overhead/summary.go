package main

import "fmt"

// sum is a ratio to the base that is told over all cells of a kind.
type sum struct {
	about  string
	counts func(cell) bool
	ratio  func(*rowResult) *spread
	least  bool // the least is the worst
}

var sums = []sum{
	{
		about:  "added p50, one at a time",
		counts: func(c cell) bool { return c.Load == answers && c.Clients == few },
		ratio:  func(r *rowResult) *spread { return r.AddedP50Ratio },
	},
	{
		about:  fmt.Sprintf("processor time a request, %d at a time", many),
		counts: func(c cell) bool { return c.Load == answers && c.Clients == many },
		ratio:  func(r *rowResult) *spread { return r.CPURatio },
	},
	{
		about:  fmt.Sprintf("requests a second, %d at a time", many),
		counts: func(c cell) bool { return c.Load == answers && c.Clients == many },
		ratio:  func(r *rowResult) *spread { return r.RateRatio },
		least:  true,
	},
	{
		about:  "processor time an event",
		counts: func(c cell) bool { return c.Load == streams },
		ratio:  func(r *rowResult) *spread { return r.CPURatio },
	},
	{
		about:  "processor time a client that leaves",
		counts: func(c cell) bool { return c.Load == leaving },
		ratio:  func(r *rowResult) *spread { return r.CPURatio },
	},
}

// extremes are the median and the worst of the row's ratios, and the worst's cell;
// nil if there is no cell of the kind in which the ratio is known.
func (r *report) extremes(name string, s sum) []string {
	var all []float64
	worst, where := 0.0, ""
	for _, c := range r.Cells {
		if !s.counts(c.Cell) {
			continue
		}
		of := s.ratio(c.row(name))
		if of == nil {
			continue
		}
		all = append(all, of.Median)
		if len(all) == 1 || of.Median > worst && !s.least || of.Median < worst && s.least {
			worst, where = of.Median, c.Cell.request()
		}
	}
	if len(all) == 0 {
		return nil
	}
	return []string{two(quantile(all, 0.5)), two(worst), where}
}
