package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/caddy-inference/caddy-inference/enginesim"

	"github.com/caddy-inference/caddy-inference/bench/engines"
	"github.com/caddy-inference/caddy-inference/bench/router"
	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// player replays one scenario through one router.
type player struct {
	scenario scenario
	trace    []trace.Request
	router   router.Router
	speed    float64
	api      api
	model    string
	listen   string // where the first engine listens; none is started if empty
}

// recording is what was seen while a trace was played. Times are real ones, as on
// a clock on the wall: Speed tells how much faster than in life it all was.
type recording struct {
	answers  []answer              // by request
	prefills [][]enginesim.Prefill // by engine
	start    time.Time
	took     time.Duration
	usage    router.Usage // of all routers together
	known    bool         // usage is
}

// settle is how long a router has to get to know its engines, in real time.
const settle = time.Second

// play plays the trace to its last answer.
func (p *player) play(ctx context.Context) (rec *recording, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var es prefilling
	if p.listen != "" {
		es, err = startEngines(p.scenario.Engines, p.listen, p.scenario.engine(p.speed, p.model))
		if err != nil {
			return nil, err
		}
		defer es.fleet.Close()
	}
	fleet := router.Fleet{Engines: es.fleet.Addresses(), Speed: p.speed, Retry: p.scenario.Restart}
	var routers []*router.Instance
	for range p.scenario.Routers {
		instance, err := p.router.Start(ctx, fleet)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, instance.Stop()) }()
		routers = append(routers, instance)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(settle):
	}
	before, err := usage(routers)
	if err != nil && !errors.Is(err, router.ErrUnknown) {
		return nil, err
	}
	rec = &recording{answers: make([]answer, len(p.trace)), known: err == nil}
	if err := p.send(ctx, rec, es.fleet, routers); err != nil {
		return nil, err
	}
	if rec.known {
		if rec.usage, err = usage(routers); err != nil {
			return nil, err
		}
		rec.usage.CPU -= before.CPU
	}
	rec.prefills = es.seen()
	return rec, nil
}

// patience is how long an answer may take, in simulated time, and a minute of real
// time more.
const patience = time.Hour

// send sends every request at its time, whatever has become of those before, and
// waits for all answers.
func (p *player) send(ctx context.Context, rec *recording, es engines.Fleet, routers []*router.Instance) error {
	c := newClient(p.api, p.model)
	defer c.close()
	var sent sync.WaitGroup
	defer sent.Wait() // if it is broken off, too
	var restart error
	half := slices.IndexFunc(p.trace, func(r trace.Request) bool { return r.At >= p.trace[len(p.trace)-1].At/2 })
	timer := time.NewTimer(0)
	defer timer.Stop()
	rec.start = time.Now()
	for i := range p.trace {
		r := &p.trace[i]
		due := rec.start.Add(p.real(r.At))
		timer.Reset(time.Until(due))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		if i == half && p.scenario.Restart && len(es) > 0 {
			sent.Go(func() { restart = es[0].Restart(ctx, p.real(restartTakes)) })
		}
		url := routers[i%len(routers)].URL
		sent.Go(func() {
			ctx, cancel := context.WithDeadline(ctx, due.Add(p.real(patience)+time.Minute))
			defer cancel()
			rec.answers[i] = c.send(ctx, url, r, due)
		})
	}
	sent.Wait()
	rec.took = time.Since(rec.start)
	if restart != nil {
		return fmt.Errorf("restarting an engine: %w", restart)
	}
	return ctx.Err()
}

// real is how long a simulated duration takes.
func (p *player) real(d time.Duration) time.Duration {
	return time.Duration(float64(d) / p.speed)
}

// usage adds up what routers have taken.
func usage(routers []*router.Instance) (total router.Usage, err error) {
	for _, r := range routers {
		u, err := r.Usage()
		if err != nil {
			return router.Usage{}, err
		}
		total.CPU += u.CPU
		total.RSS += u.RSS
		total.PeakRSS += u.PeakRSS
	}
	return total, nil
}
