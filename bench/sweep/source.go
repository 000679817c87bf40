package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// product is the module whose source is swept.
const product = "github.com/caddy-inference/caddy-inference"

// place is a stretch of a source file that can be given another text.
type place struct {
	file     string // path, as the go command knows it
	source   []byte // of the whole file
	from, to int    // the stretch, in bytes
}

// text returns what stands there.
func (p place) text() string { return string(p.source[p.from:p.to]) }

// with returns the file's source with another text there.
func (p place) with(text string) []byte {
	return bytes.Join([][]byte{p.source[:p.from], []byte(text), p.source[p.to:]}, nil)
}

// textPlace finds the one place where a text stands in a file of a module.
func textPlace(ctx context.Context, module, file, text string) (place, error) {
	if !filepath.IsLocal(file) {
		return place{}, fmt.Errorf("file %q: must be a path inside the module, as in selection/cost.go", file)
	}
	listed, err := goList(ctx, "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return place{}, err
	}
	name := filepath.Join(strings.TrimSpace(string(listed)), file)
	source, err := os.ReadFile(name)
	if err != nil {
		return place{}, err
	}
	from := bytes.Index(source, []byte(text))
	switch n := bytes.Count(source, []byte(text)); {
	case text == "":
		return place{}, errors.New("the text to replace is empty")
	case n == 0:
		return place{}, fmt.Errorf("%s: the text to replace does not occur there: %q", file, text)
	case n > 1:
		return place{}, fmt.Errorf("%s: the text to replace occurs %d times, give more of what is around it: %q", file, n, text)
	}
	return place{file: name, source: source, from: from, to: from + len(text)}, nil
}

// constantPlace finds the value of a constant, named by its package's path inside
// a module and its name: selection.decodeTokens.
func constantPlace(ctx context.Context, module, constant string) (place, error) {
	pkg, name, found := strings.CutLast(constant, ".")
	if !found {
		return place{}, fmt.Errorf("constant %q: must be named with its package, as in selection.decodeTokens", constant)
	}
	listed, err := goList(ctx, "-json=Dir,GoFiles", path.Join(module, pkg))
	if err != nil {
		return place{}, err
	}
	var p struct {
		Dir     string
		GoFiles []string
	}
	if err := json.Unmarshal(listed, &p); err != nil {
		return place{}, fmt.Errorf("reading what go list says of %s: %w", pkg, err)
	}
	return findConstant(p.Dir, p.GoFiles, name)
}

// goList returns what go list prints.
func goList(ctx context.Context, args ...string) ([]byte, error) {
	listed, err := goCommand(ctx, "", append([]string{"list"}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("looking for the source (run this in the bench directory): %w", err)
	}
	return listed, nil
}

// goCommand runs the go command in a directory, "" for this one, and returns what
// it prints.
func goCommand(ctx context.Context, dir string, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, "go", args...) //nolint:gosec // what to build is the user's business
	command.Dir = dir
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	printed, err := output(command)
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", args[0], err)
	}
	return printed, nil
}

// output runs a program and returns what it prints. If it fails, that and what it
// complained of are in the error.
func output(command *exec.Cmd) ([]byte, error) {
	var complaint bytes.Buffer
	command.Stderr = &complaint
	printed, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, bytes.TrimSpace(append(complaint.Bytes(), printed...)))
	}
	return printed, nil
}
