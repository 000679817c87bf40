package router

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Binaries are the programs that routers are run from.
type Binaries struct {
	Stock string // Caddy as it comes
	Ours  string // Caddy with this plugin
}

// Build makes both programs in dir, from the sources that this module depends on.
// The same Caddy is in both.
func Build(ctx context.Context, dir string) (Binaries, error) {
	b := Binaries{Stock: filepath.Join(dir, "caddy"), Ours: filepath.Join(dir, "caddy-inference")}
	for path, of := range map[string]string{
		b.Stock: "github.com/caddyserver/caddy/v2/cmd/caddy",
		b.Ours:  "github.com/caddy-inference/caddy-inference/cmd/caddy",
	} {
		command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, of) //nolint:gosec // both are constants
		command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOTOOLCHAIN="+runtime.Version())             // with what built this program
		if output, err := command.CombinedOutput(); err != nil {
			return Binaries{}, fmt.Errorf("building %s (run this in the bench directory): %w\n%s", of, err, output)
		}
	}
	return b, nil
}

// stock are the policies that Caddy brings; the empty one is its default.
var stock = map[string]string{"stock": "", "round_robin": "round_robin", "least_conn": "least_conn"}

// All returns the routers of some names, in that order, and builds in dir the programs
// that they need.
func All(ctx context.Context, dir string, names []string) (list []Router, err error) {
	var binaries Binaries
	for _, name := range names {
		if !strings.Contains(name, "=") && binaries.Ours == "" {
			if binaries, err = Build(ctx, dir); err != nil {
				return nil, err
			}
		}
		r, err := binaries.Named(ctx, name)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

// Named returns a router by its name: stock (a bare reverse_proxy), one of Caddy's
// policies round_robin and least_conn, one of this plugin's, or NAME=URL.
func (b Binaries) Named(ctx context.Context, name string) (Router, error) {
	if strings.Contains(name, "=") {
		return ParseExternal(name)
	}
	if policy, ok := stock[name]; ok {
		return Caddy{Label: name, Binary: b.Stock, Policy: policy}, nil
	}
	ours, err := b.ours(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(ours, name) {
		all := append(slices.Sorted(maps.Keys(stock)), ours...)
		return nil, fmt.Errorf("router %q: must be one of %s, or NAME=URL for one that runs already", name, strings.Join(all, ", "))
	}
	return Caddy{Label: name, Binary: b.Ours, Policy: name, Ours: true}, nil
}

// ours are this plugin's policies: those that Caddy does not have without it.
func (b Binaries) ours(ctx context.Context) ([]string, error) {
	theirs, err := policies(ctx, b.Stock)
	if err != nil {
		return nil, err
	}
	all, err := policies(ctx, b.Ours)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(policy string) bool { return slices.Contains(theirs, policy) }), nil
}

// policies are the selection policies in a Caddy.
func policies(ctx context.Context, binary string) (list []string, err error) {
	modules, err := exec.CommandContext(ctx, binary, "list-modules").Output()
	if err != nil {
		return nil, fmt.Errorf("listing the modules of %s: %w", binary, err)
	}
	for line := range strings.Lines(string(modules)) {
		if policy, ok := strings.CutPrefix(line, "http.reverse_proxy.selection_policies."); ok {
			list = append(list, strings.TrimSpace(policy))
		}
	}
	return list, nil
}
