package main

import (
	"slices"
	"sync"

	"github.com/caddy-inference/caddy-inference/enginesim"

	"github.com/caddy-inference/caddy-inference/bench/engines"
)

// prefilling is engines, and what each was seen to prefill.
type prefilling struct {
	fleet engines.Fleet
	notes []*notes // by engine
}

// notes are the prefills of an engine that have ended.
type notes struct {
	mu   sync.Mutex
	list []enginesim.Prefill
}

func (n *notes) add(p enginesim.Prefill) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, p)
}

// startEngines starts n engines at an address and the ports after it.
func startEngines(n int, first string, options enginesim.Options) (prefilling, error) {
	fleet, err := engines.Start(n, first, options)
	p := prefilling{fleet: fleet}
	for _, e := range fleet {
		notes := new(notes)
		e.Server.Watch(notes.add)
		p.notes = append(p.notes, notes)
	}
	return p, err
}

// seen returns the prefills so far, by engine.
func (p prefilling) seen() (all [][]enginesim.Prefill) {
	for _, n := range p.notes {
		n.mu.Lock()
		all = append(all, slices.Clone(n.list))
		n.mu.Unlock()
	}
	return all
}
