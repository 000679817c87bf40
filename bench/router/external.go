package router

import (
	"context"
	"fmt"
	"net/url"
	"strings"
)

// External is a router that somebody else has started: in front of the engines
// that a measurement simulates, or of real ones.
type External struct {
	Label string // its name
	URL   string // where it takes requests, without a path
}

// ParseExternal reads NAME=URL.
func ParseExternal(s string) (External, error) {
	name, address, found := strings.Cut(s, "=")
	u, err := url.Parse(address)
	if !found || name == "" || err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return External{}, fmt.Errorf("router %q: must be NAME=URL, as in mine=http://127.0.0.1:8080", s)
	}
	return External{Label: name, URL: strings.TrimSuffix(address, "/")}, nil
}

// Name returns the router's name.
func (e External) Name() string { return e.Label }

// Start reports whether the router answers, and waits for that as long as for one
// that is started here.
func (e External) Start(ctx context.Context, _ Fleet) (*Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := answers(ctx, e.URL); err != nil {
		return nil, fmt.Errorf("router %s does not answer: %w", e.Label, err)
	}
	return &Instance{URL: e.URL}, nil
}
