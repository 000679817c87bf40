package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"

	"github.com/caddy-inference/caddy-inference/bench/router"
)

const (
	direct = "direct" // the engines without a router
	base   = "stock"  // the router that the others are compared with
)

// row is what requests are sent to: a router, or the engines themselves.
type row struct {
	name      string
	addresses []string         // which a client goes to in turn
	instance  *router.Instance // nil for the engines
}

// rows are all that are measured. The first is direct.
type rows []*row

// startRows starts all routers in front of the engines.
func startRows(ctx context.Context, routers []router.Router, es fleet) (rows, error) {
	list := rows{{name: direct, addresses: es.Addresses()}}
	for _, r := range routers {
		instance, err := r.Start(ctx, router.Fleet{Engines: es.Addresses()})
		if err != nil {
			return nil, errors.Join(err, list.stop())
		}
		at := &row{name: r.Name(), instance: instance}
		list = append(list, at)
		u, err := url.Parse(instance.URL)
		if err != nil || u.Scheme != "http" || u.Port() == "" {
			err = fmt.Errorf("router %s at %s: must be at http://HOST:PORT to be measured", at.name, instance.URL)
			return nil, errors.Join(err, list.stop())
		}
		at.addresses = []string{u.Host}
	}
	return list, nil
}

// stop stops the routers. The error says that one had ended before.
func (rs rows) stop() (err error) {
	for _, r := range rs {
		if r.instance != nil {
			err = errors.Join(err, r.instance.Stop())
		}
	}
	return err
}

func (rs rows) names() (list []string) {
	for _, r := range rs {
		list = append(list, r.name)
	}
	return list
}

// usage is what the row's process has taken so far; nil if that is not known.
func (r *row) usage() (*router.Usage, error) {
	if r.instance == nil {
		return nil, nil
	}
	u, err := r.instance.Usage()
	if errors.Is(err, router.ErrUnknown) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &u, nil
}

// processorTime is what was taken between two usages, in seconds; NaN if that is
// not known.
func processorTime(before, after *router.Usage) float64 {
	if before == nil || after == nil {
		return math.NaN()
	}
	return (after.CPU - before.CPU).Seconds()
}

// unknown are the routers whose usage is not known.
func (rs rows) unknown() (list []string, err error) {
	for _, r := range rs {
		u, err := r.usage()
		if err != nil {
			return nil, fmt.Errorf("usage of %s: %w", r.name, err)
		}
		if u == nil && r.instance != nil {
			list = append(list, r.name)
		}
	}
	return list, nil
}

// memory is that of a router, in bytes.
type memory struct {
	Row     string `json:"row"`
	RSS     int64  `json:"rss_bytes"`
	PeakRSS int64  `json:"peak_rss_bytes"`
}

// memory is what the routers occupy now, of those of which it is known.
func (rs rows) memory() (list []memory, err error) {
	for _, r := range rs {
		u, err := r.usage()
		if err != nil {
			return nil, fmt.Errorf("memory of %s: %w", r.name, err)
		}
		if u != nil {
			list = append(list, memory{r.name, u.RSS, u.PeakRSS})
		}
	}
	return list, nil
}
