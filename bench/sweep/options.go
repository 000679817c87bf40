package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// options is what the command line says.
type options struct {
	questions []question
	metrics   []metric
	file      string // for the document; empty if none is wanted
	preface   string // of the document

	trace, capacity, routers string // for virtual
	seeds                    int
}

// flags returns the flags of virtual.
func (o options) flags() []string {
	return []string{"-rules", "cache_aware", "-trace", o.trace, "-capacity", o.capacity, "-routers", o.routers}
}

// parseOptions reads a command line. Help that it asks for goes to out.
func parseOptions(args []string, out io.Writer) (options, error) {
	var (
		o      options
		q      question
		b      benchmarks
		values string
	)
	f := flag.NewFlagSet("sweep", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&q.constant, "const", "", "constant to sweep: `PACKAGE.NAME`, as in selection.decodeTokens")
	f.StringVar(&q.flag, "flag", "", "flag of virtual to sweep: its `NAME`, as in belief")
	f.StringVar(&values, "values", "", "values of the constant or the flag: `V,V,...`")
	f.StringVar(&q.file, "replace", "", "`FILE` of the product in which to replace -old, as in selection/cost.go")
	f.StringVar(&q.old, "old", "", "`TEXT` that stands in the file once")
	f.Func("new", "`TEXT` in its place; may be given several times", func(text string) error {
		q.values = append(q.values, value{text: text})
		return nil
	})
	all := f.Bool("all", false, "sweep everything that was chosen in this way")
	f.StringVar(&o.trace, "trace", strings.Join(trace.Names(), ","), "traffic to replay, as virtual takes it")
	f.IntVar(&o.seeds, "seeds", 8, "how many times traffic is generated, each time from another seed")
	f.StringVar(&o.capacity, "capacity", "524288,131072", "KV tokens of an engine, as virtual takes them")
	f.StringVar(&o.routers, "routers", "1", "how many routers that know nothing of each other")
	f.Func("speeds", "how fast engines prefill, as `factors` that virtual takes", q.passOn("speeds"))
	f.Func("noise", "by how much the time of a prefill varies, as a `sigma` that virtual takes", q.passOn("noise"))
	f.StringVar(&b.pattern, "bench", "", "run benchmarks that match `RE`, as go test takes it, and no replay")
	f.StringVar(&b.pkg, "package", "", "`PATH` inside the product of the package with the benchmarks, as in radix")
	f.StringVar(&b.time, "benchtime", "0.3s", "how long each benchmark runs, as go test takes it")
	f.IntVar(&b.count, "count", 5, "how many times each benchmark runs; the median counts")
	verbose := f.Bool("v", false, "tell slow first tokens, cache hits and the busiest engine too")
	f.StringVar(&o.file, "o", "", "write the tables as Markdown into `FILE` too")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.SetOutput(out)
			f.Usage()
		}
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: values are given with -values or -new", f.Arg(0))
	}
	if o.seeds < 1 {
		return o, fmt.Errorf("-seeds %d: must be at least 1", o.seeds)
	}
	o.metrics = metrics[:1]
	if *verbose {
		o.metrics = metrics
	}
	if *all {
		o.questions, o.preface = chosen, preface
		return o, q.none(b)
	}
	if b.pattern != "" {
		q.how = &b
	}
	err := q.complete(values)
	o.questions = []question{q}
	return o, err
}

// passOn returns what takes the value of a flag of virtual.
func (q *question) passOn(name string) func(text string) error {
	return func(text string) error {
		q.flags = append(q.flags, "-"+name, text)
		return nil
	}
}

// none fails if something is asked in particular.
func (q question) none(b benchmarks) error {
	if q.constant+q.flag+q.file+b.pattern != "" || len(q.flags) > 0 {
		return errors.New("-all sweeps a list of its own: leave out -const, -flag, -replace, -speeds, -noise and -bench")
	}
	return nil
}

// complete takes in the values of a constant or a flag, and fails if the question
// is not one.
func (q *question) complete(values string) (err error) {
	subjects := 0
	for _, s := range []string{q.constant, q.flag, q.file} {
		subjects += min(len(s), 1)
	}
	switch {
	case subjects != 1:
		return errors.New("say what to sweep: one of -const, -replace, -flag and -all")
	case q.how != nil && q.flag != "":
		return errors.New("-flag is a flag of virtual, which is not run with -bench")
	case q.how != nil && len(q.flags) > 0:
		return errors.New("-speeds and -noise are flags of virtual, which is not run with -bench")
	case q.how != nil && q.how.count < 1:
		return fmt.Errorf("-count %d: must be at least 1", q.how.count)
	case q.file != "":
		if q.old == "" || len(q.values) == 0 || values != "" {
			return errors.New("-replace needs -old and at least one -new, and no -values")
		}
		return nil
	case values == "" || q.old != "" || len(q.values) > 0:
		return errors.New("-const and -flag need -values, and neither -old nor -new")
	case q.flag != "":
		for v := range strings.SplitSeq(values, ",") {
			q.values = append(q.values, value{text: v})
		}
		return nil
	}
	q.values, err = parseValues(values)
	return err
}
