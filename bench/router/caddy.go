package router

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Caddy is a reverse_proxy of Caddy's with a selection policy.
type Caddy struct {
	Label  string // its name
	Binary string // path of the program
	Policy string // of lb_policy; empty for Caddy's default
	Ours   bool   // the program has this plugin
}

// Name returns the router's name.
func (c Caddy) Name() string { return c.Label }

// Start writes a Caddyfile for the fleet and runs Caddy with it, on a free port of
// this machine.
func (c Caddy) Start(ctx context.Context, fleet Fleet) (*Instance, error) {
	dir, err := os.MkdirTemp("", "caddy-")
	if err != nil {
		return nil, fmt.Errorf("router %s: %w", c.Label, err)
	}
	instance, err := c.startIn(ctx, dir, fleet)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("router %s: %w", c.Label, err), os.RemoveAll(dir))
	}
	return instance, nil
}

// startIn starts Caddy in a directory, which becomes the instance's.
func (c Caddy) startIn(ctx context.Context, dir string, fleet Fleet) (*Instance, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(config, []byte(c.caddyfile(address, fleet)), 0o600); err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, c.Binary, "run", "--config", config, "--adapter", "caddyfile") //nolint:gosec // built here or given by the user
	command.Env = append(os.Environ(), "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir)
	return run(ctx, dir, "http://"+address, command)
}

// caddyfile is the configuration. Nothing is tuned that a user would not tune.
func (c Caddy) caddyfile(address string, fleet Fleet) string {
	speed := fleet.Speed
	if speed == 0 {
		speed = 1
	}
	var b strings.Builder
	b.WriteString("{\n\tadmin off\n\tauto_https off\n\tpersist_config off\n\tlog {\n\t\tlevel ERROR\n\t}\n")
	if c.Ours && speed != 1 {
		fmt.Fprintf(&b, "\tinference {\n\t\ttime_scale %v\n\t}\n", speed)
	}
	fmt.Fprintf(&b, "}\nhttp://%s {\n\treverse_proxy %s {\n", address, strings.Join(fleet.Engines, " "))
	if c.Policy != "" {
		fmt.Fprintf(&b, "\t\tlb_policy %s\n", c.Policy)
	}
	if fleet.Retry {
		// Caddy's own durations are in real time, whatever passes on the engines.
		down := time.Duration(10 * float64(time.Second) / speed)
		fmt.Fprintf(&b, "\t\tlb_retries %d\n\t\tfail_duration %v\n", len(fleet.Engines)-1, down)
	}
	b.WriteString("\t}\n}\n")
	return b.String()
}
