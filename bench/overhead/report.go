package main

import (
	"fmt"
	"io"
	"strconv"

	"github.com/caddy-inference/caddy-inference/bench/machine"
)

// report is everything that a run came to.
type report struct {
	Machine machine.Machine `json:"machine"`
	Slice   float64         `json:"slice_seconds"`
	Seconds float64         `json:"seconds"` // for each row in each cell
	Rows    []string        `json:"rows"`
	Cells   []cellResult    `json:"cells"`
	Memory  []memory        `json:"memory"` // after the last cell
}

// errors is how many requests went wrong.
func (r *report) errors() (n int) {
	for _, c := range r.Cells {
		for _, of := range c.Rows {
			n += of.Errors
		}
	}
	return n
}

// print prints tables in Markdown.
func (r *report) print(to io.Writer) {
	fmt.Fprintf(to, "%s. %v s for each row in each cell, in turns of %v s or of a whole stream. In brackets the quartiles of all rounds.\n", r.Machine, r.Seconds, r.Slice)
	for _, t := range []table{r.latency(), r.load(), r.streams(), r.memoryTable(), r.summary(), r.failures()} {
		t.print(to)
	}
}

// others are the rows that are compared with the base.
func (r *report) others() (list []string) {
	for _, name := range r.Rows {
		if name != direct && name != base {
			list = append(list, name)
		}
	}
	return list
}

// latency is what routers add to one request at a time.
func (r *report) latency() table {
	t := table{title: "One request at a time: µs, and what each router adds to them", head: []string{"request", "direct p50", "p99", "stock adds p50", "p99"}}
	for _, name := range r.others() {
		t.head = append(t.head, name+" adds p50", "p99", "p50 of stock's")
	}
	for _, c := range r.Cells {
		if c.Cell.Load != answers || c.Cell.Clients != few {
			continue
		}
		at, stock := c.row(direct), c.row(base)
		line := []string{c.Cell.request(), number(at.P50), number(at.P99), number(stock.AddedP50), number(stock.AddedP99)}
		for _, name := range r.others() {
			of := c.row(name)
			line = append(line, number(of.AddedP50), number(of.AddedP99), of.AddedP50Ratio.String())
		}
		t.add(line...)
	}
	return t
}

// load is what routers do, and take, when they are busy.
func (r *report) load() table {
	t := table{
		title: fmt.Sprintf("%d requests at a time: requests a second, and the router's processor time in µs a request", many),
		head:  []string{"request", "direct /s", "stock /s", "µs"},
	}
	for _, name := range r.others() {
		t.head = append(t.head, name+" /s", "of stock's", "µs", "of stock's")
	}
	for _, c := range r.Cells {
		if c.Cell.Load != answers || c.Cell.Clients != many {
			continue
		}
		stock := c.row(base)
		line := []string{c.Cell.request(), number(c.row(direct).Rate), number(stock.Rate), number(stock.CPU)}
		for _, name := range r.others() {
			of := c.row(name)
			line = append(line, number(of.Rate), of.RateRatio.String(), number(of.CPU), of.CPURatio.String())
		}
		t.add(line...)
	}
	return t
}

// streams is what streamed answers take.
func (r *report) streams() table {
	t := table{
		title: fmt.Sprintf("%d streams of %d tokens at a time: ms to the first event, and the router's processor time in µs an event; where clients leave after the first event, in µs a request", many, streamTokens),
		head:  []string{"", "direct p50", "p99", "stock p50", "p99", "µs"},
	}
	for _, name := range r.others() {
		t.head = append(t.head, name+" p50", "p99", "µs", "of stock's")
	}
	for _, c := range r.Cells {
		if c.Cell.Load == answers {
			continue
		}
		at, stock := c.row(direct), c.row(base)
		line := []string{string(c.Cell.Load) + ", " + c.Cell.request(), milli(at.P50), milli(at.P99), milli(stock.P50), milli(stock.P99), number(stock.CPU)}
		for _, name := range r.others() {
			of := c.row(name)
			line = append(line, milli(of.P50), milli(of.P99), number(of.CPU), of.CPURatio.String())
		}
		t.add(line...)
	}
	return t
}

func (r *report) memoryTable() table {
	t := table{title: "Resident memory after all that, MiB", head: []string{"router", "now", "at most"}}
	for _, m := range r.Memory {
		t.add(m.Row, mebi(m.RSS), mebi(m.PeakRSS))
	}
	return t
}

// summary is the worst cells, and the one in the middle.
func (r *report) summary() table {
	t := table{title: "Of stock's, over all cells", head: []string{"", "", "median", "worst", "which is"}}
	for _, name := range r.others() {
		for _, s := range sums {
			if extremes := r.extremes(name, s); extremes != nil {
				t.add(append([]string{name, s.about}, extremes...)...)
			}
		}
	}
	return t
}

// failures is what went wrong.
func (r *report) failures() table {
	t := table{title: "Errors: these figures are not to be trusted", head: []string{"cell", "row", "errors", "the first"}}
	for _, c := range r.Cells {
		for _, of := range c.Rows {
			if of.Errors > 0 {
				t.add(c.Name, of.Row, strconv.Itoa(of.Errors), of.Failure)
			}
		}
	}
	return t
}

// row is the result of a row.
func (c *cellResult) row(name string) *rowResult {
	for i := range c.Rows {
		if c.Rows[i].Row == name {
			return &c.Rows[i]
		}
	}
	panic("no row " + name) // rows are the same in all cells
}

// request is what the cell's requests are.
func (c cell) request() string { return fmt.Sprintf("%s, %d B, %s", c.API, c.Bytes, c.Prompts) }

// String is the median, and the quartiles behind it.
func (s *spread) String() string {
	if s == nil {
		return missing
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", s.Median, s.Low, s.High)
}
