package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/caddy-inference/caddy-inference/bench/machine"
)

// report is everything that a run came to.
type report struct {
	Machine   machine.Machine `json:"machine"`
	Speed     float64         `json:"speed"`
	API       string          `json:"api"`
	Scenarios []scenario      `json:"scenarios"`
	Results   []result        `json:"results"`
}

// write writes the report into a directory: results.json, results.csv and charts.
func (r *report) write(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), append(text, '\n'), 0o600); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(dir, "results.csv"))
	if err != nil {
		return err
	}
	defer file.Close()
	if err := r.writeCSV(file); err != nil {
		return err
	}
	return r.writeCharts(dir)
}

// column is a figure of the table and the CSV file.
type column struct {
	name     string // with its unit
	short    string // in the table; empty if it is not there
	decimals int    // in the table
	value    func(*result) float64
}

// unknown is the value of a figure that there is not.
var unknown = math.NaN()

var columns = []column{
	{"hit_share", "hit", 3, func(r *result) float64 {
		if r.Hit == nil {
			return unknown
		}
		return *r.Hit
	}},
	{"engine_ttft_mean_seconds", "engine TTFT mean", 3, of((*result).engine, mean)},
	{"engine_ttft_p50_seconds", "p50", 2, of((*result).engine, p50)},
	{"engine_ttft_p90_seconds", "p90", 2, of((*result).engine, p90)},
	{"engine_ttft_p99_seconds", "p99", 2, of((*result).engine, p99)},
	{"client_ttft_mean_seconds", "client TTFT mean", 3, of((*result).client, mean)},
	{"client_ttft_p50_seconds", "", 2, of((*result).client, p50)},
	{"client_ttft_p90_seconds", "", 2, of((*result).client, p90)},
	{"client_ttft_p99_seconds", "client p99", 2, of((*result).client, p99)},
	{"end_to_end_mean_seconds", "end to end mean", 2, of((*result).whole, mean)},
	{"end_to_end_p50_seconds", "", 2, of((*result).whole, p50)},
	{"end_to_end_p90_seconds", "", 2, of((*result).whole, p90)},
	{"end_to_end_p99_seconds", "", 2, of((*result).whole, p99)},
	{"busiest_over_mean", "busiest / mean", 2, func(r *result) float64 { return orUnknown(r.Busiest) }},
	{"least_segment_ttft_mean_seconds", "ten minutes, least", 2, func(r *result) float64 { least, _ := r.spread(); return least }},
	{"greatest_segment_ttft_mean_seconds", "most", 2, func(r *result) float64 { _, most := r.spread(); return most }},
	{"errors", "errors", 0, func(r *result) float64 { return float64(r.Errors) }},
	{"requests", "", 0, func(r *result) float64 { return float64(r.Requests) }},
	{"router_cpu_ms_per_request", "CPU ms / request", 2, func(r *result) float64 { return orUnknown(r.CPU) }},
	{"router_peak_rss_mib", "peak MiB", 0, func(r *result) float64 { return orUnknown(float64(r.PeakRSS) / (1 << 20)) }},
	{"late_p99_seconds", "", 3, func(r *result) float64 { return r.Late }},
}

func (r *result) engine() *times { return r.Engine }
func (r *result) client() *times { return r.Client }
func (r *result) whole() *times  { return r.Whole }

func mean(t *times) float64 { return t.Mean }
func p50(t *times) float64  { return t.P50 }
func p90(t *times) float64  { return t.P90 }
func p99(t *times) float64  { return t.P99 }

// of returns a figure of a distribution that there may not be.
func of(which func(*result) *times, figure func(*times) float64) func(*result) float64 {
	return func(r *result) float64 {
		if t := which(r); t != nil {
			return figure(t)
		}
		return unknown
	}
}

// orUnknown is for figures that cannot be 0.
func orUnknown(v float64) float64 {
	if v == 0 {
		return unknown
	}
	return v
}

// writeCSV writes a line for each result. What is not known is empty.
func (r *report) writeCSV(to io.Writer) error {
	w := csv.NewWriter(to)
	line := []string{"scenario", "router"}
	for _, c := range columns {
		line = append(line, c.name)
	}
	w.Write(line) //nolint:errcheck // kept until Error
	for i := range r.Results {
		res := &r.Results[i]
		line = append(line[:0], res.Scenario, res.Router)
		for _, c := range columns {
			text := ""
			if v := c.value(res); !math.IsNaN(v) {
				text = strconv.FormatFloat(v, 'g', -1, 64)
			}
			line = append(line, text)
		}
		w.Write(line) //nolint:errcheck // kept until Error
	}
	w.Flush()
	return w.Error()
}

// lateness is how late requests may be sent, in simulated seconds at the 99th
// percentile, before the figures say more about the machine than about the router.
const lateness = 0.25

// printTable prints the results of a scenario as a table in Markdown.
func (r *report) printTable(to io.Writer, s scenario) {
	fmt.Fprintf(to, "\n**%s**: %s; %d engines of %d tokens, %v tokens/s", s.Name, s.About, s.Engines, s.Capacity, s.Prefill)
	if s.Routers > 1 {
		fmt.Fprintf(to, ", %d routers", s.Routers)
	}
	fmt.Fprint(to, "\n\n")
	head, rule := []string{"router"}, []string{"---"}
	for _, c := range columns {
		if c.short != "" {
			head, rule = append(head, c.short), append(rule, "---")
		}
	}
	printRow(to, head)
	printRow(to, rule)
	var notes []string
	for i := range r.Results {
		res := &r.Results[i]
		if res.Scenario != s.Name {
			continue
		}
		row := []string{res.Router}
		for _, c := range columns {
			if c.short != "" {
				row = append(row, c.text(res))
			}
		}
		printRow(to, row)
		if res.Errors > 0 {
			notes = append(notes, fmt.Sprintf("%s: %d requests failed, the first of them so: %s", res.Router, res.Errors, res.Failure))
		}
		if res.Late > lateness {
			notes = append(notes, fmt.Sprintf("%s: one request in a hundred was sent more than %.2f s late, so this machine cannot keep up; use a lower -speed", res.Router, res.Late))
		}
	}
	for _, note := range notes {
		fmt.Fprintf(to, "\n%s\n", note)
	}
}

// text is the figure as the table shows it.
func (c *column) text(r *result) string {
	v := c.value(r)
	if math.IsNaN(v) {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', c.decimals, 64)
}

func printRow(to io.Writer, cells []string) {
	fmt.Fprintf(to, "| %s |\n", strings.Join(cells, " | "))
}
