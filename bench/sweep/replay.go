package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// outcome is what virtual tells of one replay.
type outcome struct {
	Trace    string  `json:"trace"`
	Capacity int     `json:"capacity"` // tokens
	Routers  int     `json:"routers"`
	TTFTMean float64 `json:"ttft_mean"` // seconds
	P99      float64 `json:"p99"`       // seconds
	Hit      float64 `json:"hit"`       // share of the prompts' tokens
	Busiest  float64 `json:"busiest"`   // work of the busiest engine over the mean
}

// column names what was replayed.
func (o outcome) column() string {
	name := fmt.Sprintf("%s %dk", strings.TrimSuffix(filepath.Base(o.Trace), ".jsonl"), o.Capacity>>10)
	if o.Routers > 1 {
		name += fmt.Sprintf(" (%d routers)", o.Routers)
	}
	return name
}

// outcomes are those of a variant: a row for each seed, a column for each traffic
// and capacity.
type outcomes [][]outcome

// replay builds virtual for each variant, runs it and tabulates the metrics.
func (l *lab) replay(ctx context.Context, dir string, variants []variant, metrics []metric) ([]table, error) {
	if err := l.learn(ctx, dir, variants); err != nil {
		return nil, err
	}
	results := make([]outcomes, len(variants))
	for i, v := range variants {
		results[i] = l.known[v.key()]
		if !results[i].like(results[0]) {
			return nil, fmt.Errorf("the value %s: virtual tells of other replays than with the value %s", v.name, variants[0].name)
		}
	}
	var tables []table
	for _, m := range metrics {
		tables = append(tables, m.table(variants, results))
		if m.ratio {
			tables = append(tables, m.changes(variants, results))
		}
	}
	return tables, nil
}

// like reports whether the same was replayed, and something was.
func (o outcomes) like(other outcomes) bool {
	return slices.EqualFunc(o, other, func(a, b []outcome) bool {
		return len(a) > 0 && slices.EqualFunc(a, b, func(x, y outcome) bool { return x.column() == y.column() })
	})
}

// learn runs those of the variants of which nothing is known yet.
func (l *lab) learn(ctx context.Context, dir string, variants []variant) error {
	variants = slices.DeleteFunc(slices.Clone(variants), func(v variant) bool { return l.known[v.key()] != nil })
	b := builder{dir: dir, what: l.program, how: []string{"build", "-buildvcs=false"}}
	if err := l.checkSource(ctx, b); err != nil {
		return err
	}
	programs, err := b.build(ctx, variants)
	if err != nil {
		return err
	}
	if err := l.checkSource(ctx, b); err != nil {
		return err
	}
	return l.runAll(ctx, variants, programs)
}

// runAll runs the programs of variants with every seed, on all cores: time is
// virtual, nothing is made slower by it.
func (l *lab) runAll(ctx context.Context, variants []variant, programs []string) error {
	var all sync.WaitGroup
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	results, errs := make([]outcomes, len(variants)), make([]error, len(variants)*l.seeds)
	for i, v := range variants {
		results[i] = make(outcomes, l.seeds)
		for seed := range l.seeds {
			all.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				flags := slices.Concat(l.flags, v.flags, []string{"-seed", strconv.Itoa(seed + 1), "-json"})
				results[i][seed], errs[i*l.seeds+seed] = runVirtual(ctx, programs[i], flags)
			})
		}
	}
	all.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return fmt.Errorf("the value %s: %w", variants[i/l.seeds].name, errs[i])
	}
	for i, v := range variants {
		l.known[v.key()] = results[i]
	}
	return nil
}

func runVirtual(ctx context.Context, program string, flags []string) ([]outcome, error) {
	printed, err := output(exec.CommandContext(ctx, program, flags...)) //nolint:gosec // built here
	if err != nil {
		return nil, err
	}
	var row []outcome
	if err := json.Unmarshal(printed, &row); err != nil {
		return nil, errors.Join(errors.New("virtual does not print what it should"), err)
	}
	return row, nil
}
