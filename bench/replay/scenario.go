package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddy-inference/caddy-inference/enginesim"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// scenario is traffic, and the fleet it meets.
type scenario struct {
	Name     string  `json:"name"`
	About    string  `json:"about"`
	Trace    string  `json:"trace"`   // generator, or file
	Minutes  float64 `json:"minutes"` // of the trace; 0 is all
	Speed    float64 `json:"speed"`   // at most, where there are many requests; 0 is any
	Engines  int     `json:"engines"`
	Capacity int     `json:"capacity_tokens"` // of an engine's KV cache
	Prefill  float64 `json:"prefill_tokens_per_second"`
	Routers  int     `json:"routers"` // in front of the fleet, each with a part of the requests
	Restart  bool    `json:"restart"` // the first engine restarts half-way
	Memory   bool    `json:"memory"`  // running requests and answers take room in the KV cache
}

// restartTakes is how long a restarting engine is away, in simulated time.
const restartTakes = 20 * time.Second

// The fleet of the scenarios, unless they say otherwise.
const (
	fleetEngines  = 8
	fleetCapacity = 524_288 // tokens
	fleetPrefill  = 8000    // tokens a second
)

// conversation stands for the file of Mooncake's conversation trace, which is
// given by a flag.
const conversation = "conversation"

// scenarios are the rows of the table.
var scenarios = []scenario{
	{Name: "conversation", Trace: conversation, About: "an hour of a chat service, recorded; little is shared"},
	{Name: "conversation-quarter", Trace: conversation, Capacity: fleetCapacity / 4, About: "the same, a quarter of the KV cache"},
	{Name: "agents", Trace: "agents", About: "an hour of coding and tool agents, generated; most is shared"},
	{Name: "agents-quarter", Trace: "agents", Capacity: fleetCapacity / 4, About: "the same, a quarter of the KV cache"},
	{Name: "agents-memory", Trace: "agents", Minutes: 30, Capacity: fleetCapacity / 4, Memory: true, About: "half of the hour; running requests and answers, too, take room in the KV cache"},
	{Name: "shared", Trace: "shared", Minutes: 5, Speed: 5, About: "five minutes of requests that all begin with one system prompt"},
	{Name: "unique", Trace: "unique", About: "no two prompts have anything in common"},
	{Name: "burst", Trace: "burst", About: "sixteen samples of one prompt at the same moment, again and again"},
	{Name: "long", Trace: "long", About: "conversations over 100,000 tokens of context each"},
	{Name: "restart", Trace: "agents", Minutes: 30, Restart: true, About: "half an hour of agents; one engine is away for 20 s half-way and comes back empty"},
	{Name: "conversation-2-routers", Trace: conversation, Minutes: 30, Routers: 2, About: "half an hour; two routers that know nothing of each other"},
	{Name: "agents-2-routers", Trace: "agents", Minutes: 30, Routers: 2, About: "half an hour; two routers that know nothing of each other"},
}

// withDefaults is the scenario with what it leaves open filled in.
func (s scenario) withDefaults() scenario {
	if s.Engines == 0 {
		s.Engines = fleetEngines
	}
	if s.Capacity == 0 {
		s.Capacity = fleetCapacity
	}
	if s.Prefill == 0 {
		s.Prefill = fleetPrefill
	}
	if s.Routers == 0 {
		s.Routers = 1
	}
	return s
}

// named returns the scenarios of a comma-separated list, in the table's order;
// "all" are all of them.
func named(list string) ([]scenario, error) {
	names := strings.Split(list, ",")
	if list == "all" {
		names = nil
		for _, s := range scenarios {
			names = append(names, s.Name)
		}
	}
	var found []scenario
	for _, s := range scenarios {
		if slices.Contains(names, s.Name) {
			found = append(found, s)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(scenarios, func(s scenario) bool { return s.Name == name }) {
			return nil, fmt.Errorf("scenario %q: there is no such one; -list shows them", name)
		}
	}
	return found, nil
}

// apart is the least simulated time between two requests. Mooncake's trace has times
// in steps of three seconds, and ten requests at each: sent at the same moment, they
// would be taken up in an order of the machine's making, and small prompts would
// wait behind large ones that were placed later.
const apart = 25 * time.Millisecond

// spread returns the requests with none nearer to the one before than apart.
func spread(requests []trace.Request) []trace.Request {
	requests = slices.Clone(requests)
	for i := 1; i < len(requests); i++ {
		requests[i].At = max(requests[i].At, requests[i-1].At+apart)
	}
	return requests
}

// cut leaves the minutes of a trace that are played.
func (s scenario) cut(requests []trace.Request) []trace.Request {
	if s.Minutes == 0 {
		return requests
	}
	end := time.Duration(s.Minutes * float64(time.Minute))
	for i := range requests {
		if requests[i].At >= end {
			return requests[:i]
		}
	}
	return requests
}

// speed is how much faster than in life the scenario is played if it may be so fast.
func (s scenario) speed(most float64) float64 {
	if s.Speed == 0 {
		return most
	}
	return min(s.Speed, most)
}

// blockTokens is the unit in which engines cache. Real ones have smaller blocks;
// with this one they are those of the traces, and so of the virtual-time model.
const blockTokens = 512

// engine is the settings of each engine of the scenario.
func (s scenario) engine(speed float64, model string) enginesim.Options {
	o := enginesim.DefaultOptions()
	o.Models = []string{model}
	o.Capacity = s.Capacity
	o.BlockSize = blockTokens
	o.MaxModelLen = s.Capacity
	o.PrefillRate = s.Prefill
	o.Speed = speed
	o.StreamInterval = streamInterval
	o.PromptsOnly = !s.Memory
	return o
}

// streamInterval is how many tokens an event of an answer has.
const streamInterval = 8
