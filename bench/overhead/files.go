package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
)

// write writes the report into a directory: overhead.json has the figures,
// overhead.csv the samples they come from, overhead.md the tables.
func (r *report) write(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	figures, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	var tables, samples bytes.Buffer
	r.print(&tables)
	if err := r.writeCSV(&samples); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"overhead.json": append(figures, '\n'),
		"overhead.csv":  samples.Bytes(),
		"overhead.md":   tables.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// writeCSV writes a line for each slice of time.
func (r *report) writeCSV(to io.Writer) error {
	lines := [][]string{{
		"load", "api", "bytes", "prompts", "clients", "row", "round",
		"requests", "events", "seconds", "p50_us", "p99_us", "router_cpu_seconds", "errors",
	}}
	for _, c := range r.Cells {
		for _, of := range c.Rows {
			for round, s := range of.samples {
				line := []string{string(c.Cell.Load), c.Cell.API, strconv.Itoa(c.Cell.Bytes), c.Cell.Prompts, strconv.Itoa(c.Cell.Clients)}
				line = append(line, of.Row, strconv.Itoa(round+1))
				lines = append(lines, append(line, s.fields()...))
			}
		}
	}
	return csv.NewWriter(to).WriteAll(lines)
}

// fields are the sample's figures, times to the nanosecond, empty if not known.
func (s sample) fields() []string {
	exact := func(v float64) string {
		if math.IsNaN(v) {
			return ""
		}
		return strconv.FormatFloat(v, 'f', 9, 64)
	}
	return []string{
		strconv.Itoa(s.Requests), strconv.Itoa(s.Events),
		exact(s.Seconds), exact(s.P50), exact(s.P99), exact(s.CPU),
		strconv.Itoa(s.Errors),
	}
}
