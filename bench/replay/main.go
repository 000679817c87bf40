// Command replay plays recorded or generated traffic through a router in front of
// simulated engines, and tells how long first tokens took.
//
//	go run ./replay -scenarios agents-quarter
//	go run ./replay -scenarios all -conversation conversation_trace.jsonl -o results
//	go run ./replay -trace mine.jsonl -capacity 262144 -engines 4
//	go run ./replay -trace agents -listen 127.0.0.1:9001 -routers mine=http://127.0.0.1:8080
//
// Requests are sent at the trace's own times, whatever has become of the ones
// before, and everything can be compressed: at -speed 25 an hour takes two
// and a half minutes. The engines are vLLM-like ones that take the time of a given prefill
// rate and evict what was used longest ago; routers are processes of their own.
// Traces are files in the format of the Mooncake project, or made up by one of the
// generators of package trace.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/caddy-inference/caddy-inference/bench/machine"
	"github.com/caddy-inference/caddy-inference/bench/router"
	"github.com/caddy-inference/caddy-inference/bench/trace"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to do
	}
}

// defaultSpeed is what the two cores of docs/benchmarks.md keep up with.
const defaultSpeed = 25

// withTrace begins the usage of a flag that says what a scenario would.
const withTrace = "with -trace: "

// options are the flags.
type options struct {
	scenarios, conversation string
	own                     scenario
	routers                 string
	speed                   float64
	seed                    uint64
	virtual                 bool
	listen                  string
	api, model              string
	out                     string
	list                    bool
}

func parse(args []string, output io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("replay", flag.ContinueOnError)
	f.SetOutput(output)
	f.StringVar(&o.scenarios, "scenarios", "", "names from -list, separated by commas, or all")
	f.BoolVar(&o.list, "list", false, "list the scenarios and end")
	f.StringVar(&o.conversation, "conversation", "", "file of Mooncake's conversation trace, for the scenarios that need it;\nFAST25-release/traces/conversation_trace.jsonl in github.com/kvcache-ai/Mooncake")
	f.StringVar(&o.own.Trace, "trace", "", "a scenario of your own: a file, or one of the generators "+strings.Join(trace.Names(), ", "))
	f.IntVar(&o.own.Engines, "engines", fleetEngines, withTrace+"how many engines")
	f.IntVar(&o.own.Capacity, "capacity", fleetCapacity, withTrace+"tokens of each engine's KV cache")
	f.Float64Var(&o.own.Prefill, "prefill", fleetPrefill, withTrace+"tokens a second that each engine prefills")
	f.IntVar(&o.own.Routers, "replicas", 1, withTrace+"how many routers share the requests")
	f.BoolVar(&o.own.Memory, "memory", false, withTrace+"running requests and answers take room in the KV cache, as in life,\nand not only prompts as in the virtual-time model")
	f.StringVar(&o.routers, "routers", "round_robin,least_conn,prefix_hash,cache_aware", "routers to compare: stock, round_robin, least_conn, a policy of this plugin,\nor NAME=URL for one that runs already")
	f.Float64Var(&o.speed, "speed", defaultSpeed, "how many times faster than in life everything is")
	f.Float64Var(&o.own.Minutes, "minutes", 0, withTrace+"play only so many minutes of it")
	f.Uint64Var(&o.seed, "seed", 1, "of the generators")
	f.BoolVar(&o.virtual, "virtual", true, "also show what the virtual-time model says")
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "where the first engine listens, the others on the ports after it;\nempty if the router has engines of its own")
	f.StringVar(&o.api, "api", "completions", "how prompts are sent: completions or chat")
	f.StringVar(&o.model, "model", "sim", "name of the model")
	f.StringVar(&o.out, "o", "", "directory for results.json, results.csv and charts")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	var own []string // flags that say what a scenario would
	f.Visit(func(g *flag.Flag) {
		if strings.HasPrefix(g.Usage, withTrace) {
			own = append(own, g.Name)
		}
	})
	switch _, known := apis[o.api]; {
	case f.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case !(o.speed >= 0.01 && o.speed <= 1000):
		return nil, fmt.Errorf("speed %v: must be between 0.01 and 1000", o.speed)
	case !known:
		return nil, fmt.Errorf("api %q: must be completions or chat", o.api)
	case o.own.Engines < 1 || o.own.Routers < 1:
		return nil, errors.New("engines and replicas: must be at least 1")
	case o.own.Capacity < blockTokens || !(o.own.Prefill > 0) || !(o.own.Minutes >= 0):
		return nil, fmt.Errorf("capacity must be at least %d tokens, prefill more than 0 and minutes not negative", blockTokens)
	case o.own.Trace != "" && o.scenarios != "":
		return nil, errors.New("-scenarios and -trace: give one of them")
	case o.own.Trace == "" && len(own) > 0:
		return nil, fmt.Errorf("-%s: goes with -trace; a scenario has its own", own[0])
	case o.own.Trace == "" && o.scenarios == "" && !o.list:
		return nil, errors.New("nothing to play: give -scenarios or -trace; -h shows all flags")
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
	if o.list {
		for _, s := range scenarios {
			fmt.Fprintf(stdout, "%-24s %s\n", s.Name, s.About)
		}
		return nil
	}
	chosen, err := o.chosen()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "replay-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	routers, err := router.All(ctx, dir, strings.Split(o.routers, ","))
	if err != nil {
		return err
	}
	r := &report{Machine: machine.This(), Speed: o.speed, API: o.api, Scenarios: chosen}
	fmt.Fprintf(stdout, "%s; speed %v\n", r.Machine, o.speed)
	for _, s := range chosen {
		if err := o.compare(ctx, r, s, routers, stderr); err != nil {
			return err
		}
		r.printTable(stdout, s)
	}
	return nil
}

// chosen are the scenarios to play.
func (o *options) chosen() (list []scenario, err error) {
	if o.scenarios != "" {
		if list, err = named(o.scenarios); err != nil {
			return nil, err
		}
	}
	if o.own.Trace != "" {
		own := o.own
		own.Name = strings.TrimSuffix(filepath.Base(own.Trace), ".jsonl")
		own.About = "as given"
		list = append(list, own)
	}
	for i, s := range list {
		list[i] = s.withDefaults()
		if s.Trace != conversation {
			continue
		}
		if o.conversation == "" {
			return nil, fmt.Errorf("scenario %s: needs -conversation FILE, Mooncake's conversation_trace.jsonl; -h says where it is", s.Name)
		}
		list[i].Trace = o.conversation
	}
	return list, nil
}

// compare plays a scenario through every router. Results are written after each,
// so that a run that is broken off has not been for nothing.
func (o *options) compare(ctx context.Context, r *report, s scenario, routers []router.Router, stderr io.Writer) error {
	requests, err := trace.ByName(s.Trace, o.seed)
	if err != nil {
		return err
	}
	requests = spread(s.cut(requests))
	if len(requests) == 0 {
		return fmt.Errorf("scenario %s: no requests", s.Name)
	}
	for _, with := range routers {
		if _, external := with.(router.External); external && s.Routers > 1 {
			return fmt.Errorf("scenario %s: has %d routers, and %s is one", s.Name, s.Routers, with.Name())
		}
		p := &player{scenario: s, trace: requests, router: with, speed: s.speed(o.speed), api: apis[o.api], model: o.model, listen: o.listen}
		length := p.real(requests[len(requests)-1].At).Round(time.Second)
		fmt.Fprintf(stderr, "%s through %s: %d requests, about %v\n", s.Name, with.Name(), len(requests), length)
		rec, err := p.play(ctx)
		if err != nil {
			return fmt.Errorf("%s through %s: %w", s.Name, with.Name(), err)
		}
		res := p.summarize(rec)
		r.Results = append(r.Results, res)
		if res.Errors == res.Requests {
			return fmt.Errorf("%s through %s: all requests failed, the first of them so: %s", s.Name, with.Name(), res.Failure)
		}
		if err := o.addModelled(r, p); err != nil {
			return err
		}
		if o.out == "" {
			continue
		}
		if err := r.write(o.out); err != nil {
			return err
		}
	}
	return nil
}

// addModelled adds what the model says of what was played.
func (o *options) addModelled(r *report, p *player) error {
	if _, external := p.router.(router.External); external || !o.virtual {
		return nil
	}
	res, ok, err := modelled(p.scenario, p.trace, p.router.Name())
	if ok {
		r.Results = append(r.Results, res)
	}
	return err
}
