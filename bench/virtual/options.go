package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/caddy-inference/caddy-inference/bench/model"
	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// options are what the flags say.
type options struct {
	traces     []string
	seed       uint64
	capacities []int
	rules      []namedRule
	routers    []int
	beliefs    []float64
	speeds     []float64 // of engines, relative to the rate of the model
	noise      float64   // of the time of a prefill
	prefix     int       // bytes that prefix_hash places by
	json       bool
	file       string // to write the trace to, in place of replaying it
}

type namedRule struct {
	name string
	model.Rule
}

// parse reads the flags. Help goes to out.
func parse(args []string, out io.Writer) (*options, error) {
	defaults := model.DefaultOptions()
	o := &options{}
	f := flag.NewFlagSet("virtual", flag.ContinueOnError)
	f.SetOutput(io.Discard) // an error is printed once, by the caller
	traces := f.String("trace", "agents", "traffic to replay: files, or the generators "+strings.Join(trace.Names(), ", "))
	f.Uint64Var(&o.seed, "seed", 1, "`number` that generators and noise are drawn from: another one, another trace of the kind")
	capacities := f.String("capacity", "524288,131072", "`tokens` that an engine's cache holds")
	rules := f.String("rules", "round_robin,least_conn,least_uncached,prefix_hash,cache_aware", "what places the requests")
	routers := f.String("routers", strconv.Itoa(defaults.Routers), "how many routers that know nothing of each other")
	beliefs := f.String("belief", fmt.Sprint(defaults.Belief), "capacity that rules reckon with, as a `share` of the real one; 0 for no limit")
	speeds := f.String("speeds", "", "how fast engines prefill, as `factors` of the usual; 1 for those left out")
	f.Float64Var(&o.noise, "noise", defaults.Noise, "by how much the time of a prefill varies: `sigma` of a log-normal factor")
	f.IntVar(&o.prefix, "prefix", defaults.PrefixLength, "`bytes` at the beginning of a prompt by which prefix_hash places it")
	f.BoolVar(&o.json, "json", false, "print JSON, for programs")
	f.StringVar(&o.file, "write", "", "write the trace to this `file`, and replay nothing")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.SetOutput(out)
			f.Usage()
		}
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("%q: there are only flags, see -h", f.Arg(0))
	}
	var errs [6]error
	o.traces, errs[0] = list(*traces, func(name string) (string, error) { return name, nil })
	o.capacities, errs[1] = list(*capacities, parseWhole)
	o.rules, errs[2] = list(*rules, parseRule)
	o.routers, errs[3] = list(*routers, parseWhole)
	o.beliefs, errs[4] = list(*beliefs, parseFactor)
	if *speeds != "" {
		o.speeds, errs[5] = list(*speeds, parseFactor)
	}
	for i, name := range []string{"trace", "capacity", "rules", "routers", "belief", "speeds"} {
		if errs[i] != nil {
			return nil, fmt.Errorf("-%s: %w", name, errs[i])
		}
	}
	return o, o.check()
}

// list reads values that are separated by commas.
func list[T any](values string, parse func(string) (T, error)) (all []T, err error) {
	for value := range strings.SplitSeq(values, ",") {
		value = strings.TrimSpace(value)
		if value == "" {
			return nil, fmt.Errorf("%q has an empty value: give one or more, separated by commas", values)
		}
		one, err := parse(value)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func parseRule(name string) (namedRule, error) {
	rule, err := model.ByName(name)
	return namedRule{name, rule}, err
}

func parseWhole(value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number", value)
	}
	return n, nil
}

func parseFactor(value string) (float64, error) {
	factor, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", value)
	}
	return factor, nil
}

// check reports the first thing that cannot be done.
func (o *options) check() error {
	if o.file != "" && len(o.traces) != 1 {
		return fmt.Errorf("-write: %d traces do not go into one file: name one with -trace", len(o.traces))
	}
	for _, settings := range o.settings() {
		if err := settings.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// settings are the combinations that are asked for.
func (o *options) settings() (all []model.Options) {
	for _, capacity := range o.capacities {
		for _, routers := range o.routers {
			for _, belief := range o.beliefs {
				one := model.DefaultOptions()
				one.Capacity, one.Routers, one.Belief = capacity, routers, belief
				one.Speeds, one.Noise, one.Seed, one.PrefixLength = o.speeds, o.noise, o.seed, o.prefix
				all = append(all, one)
			}
		}
	}
	return all
}
