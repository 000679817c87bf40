package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// lab builds the product with other values, and measures it. It never writes into
// the source: the go command is shown changed files in place of the real ones.
type lab struct {
	module  string   // the product's
	program string   // import path of virtual
	flags   []string // for it
	seeds   int      // of generated traffic: from 1 to this

	known map[string]outcomes // by the key of the variant
	now   []byte              // hash of the program from the source as it is
}

// report is what came out for a question.
type report struct {
	title, why string
	tables     []table
}

// answer measures the product with each value of a question.
func (l *lab) answer(ctx context.Context, q question, metrics []metric) (report, error) {
	r := report{title: q.title(), why: q.why}
	variants, err := q.variants(ctx, l.module)
	if err != nil {
		return r, err
	}
	dir, err := os.MkdirTemp("", "caddy-inference-sweep-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	if q.how != nil {
		r.tables, err = l.benchmark(ctx, dir, variants, *q.how)
	} else {
		r.tables, err = l.replay(ctx, dir, variants, metrics)
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", q.title(), err)
	}
	return r, nil
}

// checkSource fails if the source is not what it was the first time: then what was
// measured before cannot be compared with what is measured now.
func (l *lab) checkSource(ctx context.Context, b builder) error {
	program := filepath.Join(b.dir, "now")
	if err := b.one(ctx, variant{name: "now"}, b.dir, program); err != nil {
		return err
	}
	f, err := os.Open(program)
	if err != nil {
		return err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return err
	}
	now := hash.Sum(nil)
	if l.now != nil && !bytes.Equal(l.now, now) {
		return errors.New("the source was changed meanwhile, so values cannot be compared: start again, or sweep a copy of it")
	}
	l.now = now
	return nil
}
