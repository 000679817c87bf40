package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/stat"
)

// benchmarks is which benchmarks of the product are run, and how.
type benchmarks struct {
	pkg     string // path inside the product, as in radix
	pattern string // as go test -bench takes it
	time    string // as go test -benchtime takes it
	count   int    // rounds
}

// readings are the results of a variant's benchmarks, one a round.
type readings map[reading][]float64

type reading struct{ benchmark, unit string }

// benchmark builds the package's tests for each variant and runs their
// benchmarks, one variant after the other in every round, so that a machine that
// is slower for a while is so for all.
func (l *lab) benchmark(ctx context.Context, dir string, variants []variant, b benchmarks) ([]table, error) {
	listed, err := goList(ctx, "-m", "-f", "{{.Dir}}", l.module)
	if err != nil {
		return nil, err
	}
	// The package's tests may need what only its own module requires.
	home := strings.TrimSpace(string(listed))
	programs, err := builder{dir, home, path.Join(l.module, b.pkg), []string{"test", "-c"}}.build(ctx, variants)
	if err != nil {
		return nil, err
	}
	results := make([]readings, len(variants))
	var order []reading
	for range b.count {
		for i := range variants {
			if results[i] == nil {
				results[i] = readings{}
			}
			command := exec.CommandContext(ctx, programs[i], "-test.run=^$", "-test.bench="+b.pattern, "-test.benchtime="+b.time) //nolint:gosec // built here
			command.Dir = path.Join(home, b.pkg)
			printed, err := output(command)
			if err != nil {
				return nil, err
			}
			order = results[i].add(printed, order)
		}
	}
	if len(order) == 0 {
		return nil, fmt.Errorf("package %s has no benchmark that matches %q", cmp.Or(b.pkg, "."), b.pattern)
	}
	return b.tables(variants, results, order)
}

// add takes in what a test program prints, and adds to order what is in there for
// the first time.
func (r readings) add(printed []byte, order []reading) []reading {
	for line := range bytes.Lines(printed) {
		fields := strings.Fields(string(line))
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		for pair := range slices.Chunk(fields[2:], 2) {
			figure, err := strconv.ParseFloat(pair[0], 64)
			if err != nil || len(pair) < 2 {
				break
			}
			of := reading{strings.TrimPrefix(fields[0], "Benchmark"), pair[1]}
			r[of] = append(r[of], figure)
			if !slices.Contains(order, of) {
				order = append(order, of)
			}
		}
	}
	return order
}

// tables has one for each benchmark: a row for each variant, a column for each unit.
func (b benchmarks) tables(variants []variant, results []readings, order []reading) ([]table, error) {
	var tables []table
	for _, of := range order {
		i := slices.IndexFunc(tables, func(t table) bool { return t.title == of.benchmark })
		if i < 0 {
			i = len(tables)
			t := table{title: of.benchmark, head: []string{""}}
			for _, v := range variants {
				t.rows = append(t.rows, []string{v.title()})
			}
			tables = append(tables, t)
		}
		tables[i].head = append(tables[i].head, of.unit)
		for j := range variants {
			if len(results[j][of]) == 0 {
				return nil, errors.New(variants[j].name + ": has no " + of.unit + " of " + of.benchmark)
			}
			tables[i].rows[j] = append(tables[i].rows[j], middle(results[j][of]))
		}
	}
	return tables, nil
}

// middle writes the median of some figures, and half the distance between the
// outermost as a share of it.
func middle(figures []float64) string {
	slices.Sort(figures)
	median := stat.Quantile(0.5, stat.Empirical, figures, nil)
	text := fmt.Sprintf("%.0f", median)
	if median < 100 {
		text = fmt.Sprintf("%.3g", median)
	}
	if noise := (figures[len(figures)-1] - figures[0]) / 2; noise > 0 {
		return fmt.Sprintf("%s ±%.0f %%", text, 100*noise/median)
	}
	return text
}
