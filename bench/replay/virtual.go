package main

import (
	"fmt"
	"time"

	"github.com/caddy-inference/caddy-inference/bench/model"
	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// inVirtualTime is how a result of the model is marked, next to its router's name.
const inVirtualTime = " (model)"

// modelled returns what the virtual-time model, with no HTTP and no machine in
// between, says that a router comes to. There is none for a router that the model
// does not know, nor for engines that restart or have running requests in their caches.
func modelled(s scenario, requests []trace.Request, name string) (res result, ok bool, err error) {
	rule, err := model.ByName(name)
	if err != nil || s.Restart || s.Memory {
		return result{}, false, nil //nolint:nilerr // then there is none
	}
	o := model.DefaultOptions()
	o.Engines, o.Capacity, o.Rate, o.Routers = s.Engines, s.Capacity, s.Prefill, s.Routers
	if err := o.Validate(); err != nil {
		return result{}, false, fmt.Errorf("scenario %s: %w", s.Name, err)
	}
	out := model.Replay(requests, o, rule)
	res = result{
		Scenario: s.Name,
		Router:   name + inVirtualTime,
		Requests: len(requests),
		Hit:      &out.Hit,
		Engine:   &times{Mean: out.Mean, P50: out.P50, P90: out.P90, P99: out.P99},
		Busiest:  out.Busiest,
	}
	for i, mean := range out.Segments {
		if mean == 0 { // nobody came
			continue
		}
		res.Segments = append(res.Segments, segment{Start: (time.Duration(i) * segmentLength).Seconds(), Engine: mean})
	}
	return res, true, nil
}
