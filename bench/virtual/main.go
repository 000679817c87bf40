// Command virtual replays traffic in virtual time and prints what came of it under
// each rule: the time to first token, and how much of the prompts was found in
// caches.
//
//	go run ./virtual
//	go run ./virtual -trace agents,conversation_trace.jsonl -capacity 524288,131072
//	go run ./virtual -trace burst -rules round_robin,cache_aware -routers 1,2,4
//	go run ./virtual -speeds 1,1,1,1,1,1,1,0.5 -noise 0.1
//	go run ./virtual -trace agents -write agents.jsonl
//
// Traces are files in the format of the Mooncake project
// (github.com/kvcache-ai/Mooncake, FAST25-release/traces) or what a generator of
// package trace makes; -write keeps one of these in a file. What is modelled, and
// what is not, is said in package model.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/caddy-inference/caddy-inference/bench/model"
	"github.com/caddy-inference/caddy-inference/bench/trace"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "virtual:", err)
		os.Exit(1)
	}
}

// run does what the arguments ask and prints to out.
func run(args []string, out io.Writer) error {
	o, err := parse(args, out)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	traces := make([][]trace.Request, len(o.traces))
	for i, name := range o.traces {
		if traces[i], err = trace.ByName(name, o.seed); err != nil {
			return err
		}
	}
	if o.file != "" {
		return write(o.file, traces[0], out)
	}
	var rows []row
	for i, requests := range traces {
		rows = append(rows, o.replay(o.traces[i], requests)...)
	}
	if o.json {
		lines := json.NewEncoder(out)
		lines.SetIndent("", "  ")
		return lines.Encode(rows)
	}
	for i, requests := range traces {
		fmt.Fprintf(out, "%s: %v\n", o.traces[i], trace.Summarize(requests))
	}
	o.describeEngines(out)
	return tabulate(rows, out)
}

// describeEngines prints in what the engines are unlike those of the model's
// defaults.
func (o *options) describeEngines(out io.Writer) {
	if len(o.speeds) > 0 {
		fmt.Fprintf(out, "speeds: %v\n", o.speeds)
	}
	if o.noise > 0 {
		fmt.Fprintf(out, "noise: %v\n", o.noise)
	}
}

// write keeps a trace in a file.
func write(file string, requests []trace.Request, out io.Writer) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := errors.Join(trace.Write(f, requests), f.Close()); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %v\n", file, trace.Summarize(requests))
	return nil
}

// row is what one replay came to.
type row struct {
	Trace    string    `json:"trace"`
	Capacity int       `json:"capacity"` // tokens that an engine's cache holds
	Rule     string    `json:"rule"`
	Routers  int       `json:"routers"`
	Belief   float64   `json:"belief"`           // capacity that a rule reckons with, as a share of the real one
	Speeds   []float64 `json:"speeds,omitempty"` // of engines, as factors of the usual; 1 for those left out
	Noise    float64   `json:"noise"`            // sigma of the log-normal factor on the time of a prefill
	TTFTMean float64   `json:"ttft_mean"`        // seconds
	P50      float64   `json:"p50"`              // of the time to first token, in seconds, as the two that follow
	P90      float64   `json:"p90"`
	P99      float64   `json:"p99"`
	Hit      float64   `json:"hit"`     // share of the prompts' tokens found in a cache
	Busiest  float64   `json:"busiest"` // tokens that the busiest engine prefilled, over the mean
}

// replay plays a trace under every combination of what was asked for.
func (o *options) replay(name string, requests []trace.Request) (rows []row) {
	for _, settings := range o.settings() {
		for _, rule := range o.rules {
			came := model.Replay(requests, settings, rule.Rule)
			rows = append(rows, row{
				Trace: name, Capacity: settings.Capacity, Rule: rule.name, Routers: settings.Routers, Belief: settings.Belief,
				Speeds: settings.Speeds, Noise: settings.Noise,
				TTFTMean: came.Mean, P50: came.P50, P90: came.P90, P99: came.P99, Hit: came.Hit, Busiest: came.Busiest,
			})
		}
	}
	return rows
}

// tabulate prints rows for people.
func tabulate(rows []row, out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\ntrace\tcapacity\trouters\tbelief\trule\tTTFT mean, s\tp50\tp90\tp99\thit\tbusiest/mean\t")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%d\t%d\t%v\t%s\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.2f\t\n",
			r.Trace, r.Capacity, r.Routers, r.Belief, r.Rule, r.TTFTMean, r.P50, r.P90, r.P99, r.Hit, r.Busiest)
	}
	return w.Flush()
}
