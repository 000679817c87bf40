package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// builder makes programs of the product.
type builder struct {
	dir  string // for what is made; one builder's own
	at   string // where the go command runs
	what string // import path of the package
	how  []string
}

// build makes a program of each variant. The programs' paths are in the order of
// the variants; those that differ in flags only share one.
func (b builder) build(ctx context.Context, variants []variant) ([]string, error) {
	programs := make([]string, len(variants))
	for i, v := range variants {
		if same := slices.IndexFunc(variants[:i], v.sameSource); same >= 0 {
			programs[i] = programs[same]
			continue
		}
		dir := filepath.Join(b.dir, strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
		programs[i] = filepath.Join(dir, "program")
		if err := b.one(ctx, v, dir, programs[i]); err != nil {
			return nil, err
		}
	}
	return programs, nil
}

func (v variant) sameSource(other variant) bool {
	return v.file == other.file && bytes.Equal(v.source, other.source)
}

// one makes a program of a variant, and uses dir for what that takes.
func (b builder) one(ctx context.Context, v variant, dir, program string) error {
	args := append(slices.Clone(b.how), "-o", program)
	changed := filepath.Join(dir, filepath.Base(v.file))
	if v.file != "" {
		overlay, err := overlay(dir, v.file, changed)
		if err != nil {
			return err
		}
		if err := os.WriteFile(changed, v.source, 0o600); err != nil {
			return err
		}
		args = append(args, "-overlay", overlay)
	}
	if _, err := goCommand(ctx, b.at, append(args, b.what)...); err != nil {
		return fmt.Errorf("the value %s does not compile: %s", v.name, v.original(err.Error(), changed))
	}
	return nil
}

// original names the file that was changed where a complaint names the changed one.
// The go command may have made that path a relative one.
func (v variant) original(complaint, changed string) string {
	own := filepath.Dir(changed)
	tail := filepath.Join(filepath.Base(filepath.Dir(own)), filepath.Base(own), filepath.Base(changed))
	return regexp.MustCompile(`\S*`+regexp.QuoteMeta(tail)).ReplaceAllLiteralString(complaint, v.file)
}

// overlay writes a file into dir that tells the go command to read one file in place
// of another, and returns its path.
func overlay(dir, file, changed string) (string, error) {
	path := filepath.Join(dir, "overlay.json")
	b, err := json.Marshal(map[string]map[string]string{"Replace": {file: changed}})
	if err != nil {
		return "", err
	}
	return path, os.WriteFile(path, b, 0o600)
}
