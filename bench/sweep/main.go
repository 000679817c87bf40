// Command sweep shows why a constant of the product has the value it has: it
// builds the product with other values and measures each.
//
//	go run ./sweep -const selection.decodeTokens -values 0,16,64,256,1024
//	go run ./sweep -replace selection/cost.go -old 'return share * share' -new 'return share'
//	go run ./sweep -const selection.rateNoise -values 1,2,1e9 -speeds 1,1,1,1,1,1,1,0.5 -noise 0.1
//	go run ./sweep -flag belief -values 0.5,0.75,1.5,0
//	go run ./sweep -const radix.ChunkBytes -values 32,64,128 -bench Route/16KiB/english/hit/=4 -package radix
//	go run ./sweep -all -o chosen.md
//
// The constants are constants because nobody should have to turn them; so there is
// no knob to sweep. Instead the go command is shown a changed file in place of the
// real one, which is never touched.
//
// What is measured are replays of traffic in virtual time, by the program virtual,
// or benchmarks of a package, with -bench. Replays come to the same on every machine.
// But one request that goes elsewhere changes all that follow, so two values differ
// by some percent for no reason, and so generated traffic is generated several times;
// a trace in a file is one sample, unless there is noise.
//
// It is to be run in the bench directory, and the source must not be changed while
// it runs.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sweep:", err)
		os.Exit(1)
	}
}

// run answers what the arguments ask.
func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parseOptions(args, out)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	l := lab{module: product, program: product + "/bench/virtual", flags: o.flags(), seeds: o.seeds, known: map[string]outcomes{}}
	var document bytes.Buffer
	if err := l.answerAll(ctx, o, out, &document); err != nil || o.file == "" {
		return err
	}
	return os.WriteFile(o.file, document.Bytes(), 0o644) //nolint:gosec // a document, for everybody
}
