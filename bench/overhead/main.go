// Command overhead measures what a router adds to a request: time, processor time
// and memory, next to Caddy's own reverse_proxy and to no router at all.
//
//	go run ./overhead
//	go run ./overhead -rows stock,least_conn,prefix_hash,cache_aware -o results
//	go run ./overhead -listen 127.0.0.1:9001 -rows stock,mine=http://127.0.0.1:8080
//
// Behind all of them are the same four simulated engines, which take next to no
// time. Every cell of the grid is measured in rounds: in each round every row, the
// engines without a router among them, has a slice of time of its own. The order
// changes from round to round, by a lot that is the same in every run: in every 2n
// rounds of n rows, each row has each place twice and directly follows each of the
// others twice, so that the moods of the machine, and what one row leaves to the
// next, meet all alike. What a router adds is its time less that of the engines in
// the same round, and what is told is the median of the rounds.
//
// Processor time and memory are those of the routers that it starts, as Linux tells
// them in /proc; where they are not known there is a dash.
//
// It is no measurement of how well a router chooses: see replay for that.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/caddy-inference/caddy-inference/bench/machine"
	"github.com/caddy-inference/caddy-inference/bench/router"
)

func main() {
	// The load shares the machine with the routers. Memory is not what it is short
	// of, so let it collect garbage less often.
	debug.SetGCPercent(400)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "overhead:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to do
	}
}

// options are the flags.
type options struct {
	rows    []string
	seconds float64 // for each row in each cell
	slice   time.Duration
	cells   *regexp.Regexp
	quick   bool
	listen  string
	out     string
}

func parse(args []string, output io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("overhead", flag.ContinueOnError)
	f.SetOutput(output)
	rows := f.String("rows", "stock,cache_aware", "routers to measure: stock, which the others are compared with, round_robin, least_conn,\na policy of this plugin, or NAME=URL for one that runs already")
	f.Float64Var(&o.seconds, "seconds", 8, fmt.Sprintf("how long each row is measured in each of the %d cells", len(grid())))
	f.DurationVar(&o.slice, "slice", 100*time.Millisecond, "how long a row has in a round")
	cells := f.String("cells", "", "measure only the cells whose names this regular expression is found in, as in\n'chat 200 B hot, 64 at a time' or 'streams, completions 2048 B hot, 64 at a time'")
	f.BoolVar(&o.quick, "quick", false, "one round of little, to see that all works; the figures mean nothing")
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "where the first engine listens, the others on the ports after it")
	f.StringVar(&o.out, "o", "", "directory for overhead.json, overhead.csv and overhead.md")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	var err error
	if o.cells, err = regexp.Compile(*cells); err != nil {
		return nil, fmt.Errorf("cells: %w", err)
	}
	o.rows = strings.Split(*rows, ",")
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case !slices.Contains(o.rows, base):
		return nil, fmt.Errorf("rows %q: must name %s, which the others are compared with", *rows, base)
	case !(o.seconds > 0 && o.seconds <= 3600):
		return nil, fmt.Errorf("seconds %v: must be above 0 and at most 3600", o.seconds)
	case o.slice < 10*time.Millisecond || o.slice > time.Minute:
		return nil, fmt.Errorf("slice %v: must be between 10ms and 1m", o.slice)
	case len(o.chosen()) == 0:
		return nil, fmt.Errorf("cells %q: there are none of that name", *cells)
	}
	return o, nil
}

// run is the program.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dir, err := os.MkdirTemp("", "overhead-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	routers, err := router.All(ctx, dir, o.rows)
	if err != nil {
		return err
	}
	r := &report{Machine: machine.This()}
	err = o.measure(ctx, routers, r, stderr)
	if len(r.Cells) > 0 { // a run that is broken off has not been for nothing
		err = errors.Join(err, o.tell(r, stdout))
	}
	return err
}

// tell prints and writes what was measured.
func (o *options) tell(r *report, stdout io.Writer) error {
	r.print(stdout)
	if o.out != "" {
		if err := r.write(o.out); err != nil {
			return fmt.Errorf("writing results: %w", err)
		}
	}
	if n := r.errors(); n > 0 {
		return fmt.Errorf("%d requests went wrong: the figures are not to be trusted", n)
	}
	return nil
}

// chosen are the cells to measure.
func (o *options) chosen() []cell {
	cells := grid()
	if o.quick {
		cells = quickGrid()
	}
	return slices.DeleteFunc(cells, func(c cell) bool { return !o.cells.MatchString(c.String()) })
}

// measure measures all cells, with all routers running from the first to the last.
func (o *options) measure(ctx context.Context, routers []router.Router, r *report, progress io.Writer) error {
	es, err := startEngines(o.listen)
	if err != nil {
		return err
	}
	defer es.Close()
	rows, err := startRows(ctx, routers, es)
	if err != nil {
		return err
	}
	defer rows.stop() //nolint:errcheck // told below, if it matters
	unknown, err := rows.unknown()
	if err != nil {
		return err
	}
	for _, name := range unknown {
		fmt.Fprintf(progress, "%s: %v\n", name, router.ErrUnknown)
	}
	p := plan{
		rows:    rows,
		engines: es,
		slice:   o.slice,
		seconds: o.seconds,
		random:  rand.New(rand.NewPCG(1, 1)), //nolint:gosec // the same orders every time
	}
	if o.quick {
		p.slice, p.seconds = 50*time.Millisecond, 0.05
	}
	cells := o.chosen()
	r.Slice, r.Seconds, r.Rows = p.slice.Seconds(), p.seconds, rows.names()
	for i, c := range cells {
		fmt.Fprintf(progress, "%d/%d %s\n", i+1, len(cells), c)
		samples, err := p.measure(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
		r.Cells = append(r.Cells, summarize(c, rows.names(), samples))
	}
	if r.Memory, err = rows.memory(); err != nil {
		return err
	}
	return rows.stop()
}
