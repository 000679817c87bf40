package main

import (
	"context"
	"time"

	"github.com/caddy-inference/caddy-inference/enginesim"

	"github.com/caddy-inference/caddy-inference/bench/engines"
)

const (
	engineCount = 4

	// eventGap is the time between two events of a stream. It is long enough for
	// every event to pass on its own, as they do in life.
	eventGap = 5 * time.Millisecond
)

// fleet is the engines that are measured with. They take no time for a prompt.
type fleet struct{ engines.Fleet }

// startEngines starts engines at an address and the ports after it.
func startEngines(first string) (fleet, error) {
	options := enginesim.DefaultOptions()
	options.PrefillRate = 1e12 // a rate of 0 would make streams instant, too
	options.DecodeBase, options.DecodePerRunning = eventGap, 0
	f, err := engines.Start(engineCount, first, options)
	return fleet{f}, err
}

// cancelled is how many clients the engines have seen leave.
func (f fleet) cancelled() (n int) {
	for _, e := range f.Fleet {
		n += int(e.Server.Stats().Cancelled)
	}
	return n
}

// open is how many requests the engines are at.
func (f fleet) open() (n int) {
	for _, e := range f.Fleet {
		n += int(e.Server.Stats().Open)
	}
	return n
}

// settle waits until the engines have nothing to do, or for as long as an answer
// may take.
func (f fleet) settle(ctx context.Context) {
	end := time.Now().Add(patience)
	for f.open() > 0 && ctx.Err() == nil && time.Now().Before(end) {
		time.Sleep(time.Millisecond)
	}
}
