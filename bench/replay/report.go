package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
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

// columns are those of the table and the CSV file.
var columns = []struct {
	name  string // with its unit
	short string // in the table; empty if it is not there
	value func(*result) string
}{
	{"router", "router", func(r *result) string { return r.Router }},
	{"hit_share", "hit", func(r *result) string { return decimals(r.Hit, 3) }},
	{"engine_ttft_mean_seconds", "engine TTFT mean", func(r *result) string { return decimals(r.Engine.Mean, 3) }},
	{"engine_ttft_p50_seconds", "p50", func(r *result) string { return decimals(r.Engine.P50, 2) }},
	{"engine_ttft_p90_seconds", "p90", func(r *result) string { return decimals(r.Engine.P90, 2) }},
	{"engine_ttft_p99_seconds", "p99", func(r *result) string { return decimals(r.Engine.P99, 2) }},
	{"client_ttft_mean_seconds", "client TTFT mean", func(r *result) string { return decimals(r.Client.Mean, 3) }},
	{"client_ttft_p50_seconds", "", func(r *result) string { return decimals(r.Client.P50, 2) }},
	{"client_ttft_p90_seconds", "", func(r *result) string { return decimals(r.Client.P90, 2) }},
	{"client_ttft_p99_seconds", "p99", func(r *result) string { return decimals(r.Client.P99, 2) }},
	{"end_to_end_mean_seconds", "end to end mean", func(r *result) string { return decimals(r.Whole.Mean, 2) }},
	{"end_to_end_p99_seconds", "", func(r *result) string { return decimals(r.Whole.P99, 2) }},
	{"busiest_over_mean", "busiest / mean", func(r *result) string { return decimals(r.Busiest, 2) }},
	{"segments_ttft_mean_seconds", "ten-minute means", (*result).segmentRange},
	{"errors", "errors", func(r *result) string { return strconv.Itoa(r.Errors) }},
	{"requests", "", func(r *result) string { return strconv.Itoa(r.Requests) }},
	{"router_cpu_ms_per_request", "CPU ms / request", func(r *result) string { return decimals(r.CPU, 2) }},
	{"router_peak_rss_mib", "peak MiB", func(r *result) string { return decimals(float64(r.PeakRSS)/(1<<20), 0) }},
	{"late_p99_seconds", "", func(r *result) string { return decimals(r.Late, 3) }},
}

// decimals formats a figure, or a dash for one that there is not.
func decimals(v float64, n int) string {
	if v == 0 {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', n, 64)
}

func (r *result) segmentRange() string {
	least, most := r.spread()
	return decimals(least, 2) + " to " + decimals(most, 2)
}

// writeCSV writes a line for each result.
func (r *report) writeCSV(to io.Writer) error {
	w := csv.NewWriter(to)
	line := []string{"scenario"}
	for _, c := range columns {
		line = append(line, c.name)
	}
	w.Write(line) //nolint:errcheck // kept until Error
	for i := range r.Results {
		line = append(line[:0], r.Results[i].Scenario)
		for _, c := range columns {
			line = append(line, c.value(&r.Results[i]))
		}
		w.Write(line) //nolint:errcheck // kept until Error
	}
	w.Flush()
	return w.Error()
}

// printTable prints the results of a scenario as a table in Markdown.
func (r *report) printTable(to io.Writer, s scenario) {
	fmt.Fprintf(to, "\n**%s**: %s; %d engines of %d tokens, %v tokens/s", s.Name, s.About, s.Engines, s.Capacity, s.Prefill)
	if s.Routers > 1 {
		fmt.Fprintf(to, ", %d routers", s.Routers)
	}
	fmt.Fprint(to, "\n\n")
	var head, rule []string
	for _, c := range columns {
		if c.short != "" {
			head, rule = append(head, c.short), append(rule, "---")
		}
	}
	printRow(to, head)
	printRow(to, rule)
	for i := range r.Results {
		if r.Results[i].Scenario != s.Name {
			continue
		}
		var row []string
		for _, c := range columns {
			if c.short != "" {
				row = append(row, c.value(&r.Results[i]))
			}
		}
		printRow(to, row)
	}
}

func printRow(to io.Writer, cells []string) {
	fmt.Fprintf(to, "| %s |\n", strings.Join(cells, " | "))
}
