package router

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// Named returns a router by its name: stock (a bare reverse_proxy), one of Caddy's
// policies round_robin and least_conn, one of this plugin's, or NAME=URL.
func (b Binaries) Named(ctx context.Context, name string) (Router, error) {
	if strings.Contains(name, "=") {
		return ParseExternal(name)
	}
	if policy, ok := stock[name]; ok {
		return Caddy{Label: name, Binary: b.Stock, Policy: policy}, nil
	}
	modules, err := exec.CommandContext(ctx, b.Ours, "list-modules").Output() //nolint:gosec // built above
	if err != nil {
		return nil, fmt.Errorf("listing the modules of %s: %w", b.Ours, err)
	}
	if !strings.Contains(string(modules), "http.reverse_proxy.selection_policies."+name+"\n") {
		return nil, fmt.Errorf("router %q: there is no such policy", name)
	}
	return Caddy{Label: name, Binary: b.Ours, Policy: name, Ours: true}, nil
}
