package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// plan is how cells are measured.
type plan struct {
	rows    rows
	engines fleet
	slice   time.Duration
	seconds float64       // for each row in each cell
	random  *rand.Rand    // draws the order of rounds
	serial  atomic.Uint32 // of prompts
}

// crew is the clients of one row in one cell.
type crew struct {
	*row
	cell    cell
	clients []*client
}

// sample is what a row did in one slice of time. What is not known is NaN.
type sample struct {
	Requests int     // that went well
	Events   int     // of streams
	Seconds  float64 // the slice took
	P50, P99 float64 // in µs: of the answers, or of the first events of streams; unknown if none went well
	CPU      float64 // seconds that the router took; unknown if it runs elsewhere, or is none
	Errors   int
	Failure  string // the first one
}

// measure measures a cell and returns the samples of every row, by round.
func (p *plan) measure(ctx context.Context, c cell) (samples [][]sample, err error) {
	crews := make([]*crew, len(p.rows))
	for i, r := range p.rows {
		crews[i] = p.newCrew(r, c)
		defer crews[i].close()
	}
	if c.Load == answers { // the others have nothing to gain
		if err := p.warmUp(ctx, crews); err != nil {
			return nil, err
		}
	}
	samples = make([][]sample, len(crews))
	order := orders{rows: len(crews), random: p.random}
	for range p.rounds(c) {
		for _, which := range order.next() {
			s, err := p.sample(ctx, crews[which])
			if err != nil {
				return nil, err
			}
			samples[which] = append(samples[which], s)
		}
	}
	if c.Load == leaving {
		revisit(crews, samples)
	}
	return samples, nil
}

// warmUp gives every crew a slice to open connections and to fill caches.
func (p *plan) warmUp(ctx context.Context, crews []*crew) error {
	for _, w := range crews {
		s, err := p.sample(ctx, w)
		if err != nil {
			return err
		}
		if s.Errors > 0 {
			return fmt.Errorf("%s: %d requests went wrong before anything was measured; the first: %s", w.name, s.Errors, s.Failure)
		}
	}
	return nil
}

// rounds is how many slices the cell's time is cut into.
func (p *plan) rounds(c cell) int {
	slice := p.slice.Seconds()
	if c.Load == streams {
		slice = max(slice, (streamTokens * eventGap).Seconds())
	}
	return max(1, int(p.seconds/slice))
}

func (p *plan) newCrew(r *row, c cell) *crew {
	w := &crew{row: r, cell: c}
	for i, next := range c.sources(r.addresses[0], &p.serial) {
		w.clients = append(w.clients, newClient(i, r.addresses, next, c.API))
	}
	return w
}

func (w *crew) close() {
	for _, c := range w.clients {
		c.close()
	}
}

// sample lets a crew work for one slice.
func (p *plan) sample(ctx context.Context, w *crew) (sample, error) {
	seen := p.engines.cancelled()
	before, err := w.usage()
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w", w.name, err)
	}
	start := time.Now()
	w.work(ctx, start.Add(p.slice))
	s := w.sum(time.Since(start))
	if w.cell.Load == leaving {
		p.engines.settle(ctx)
		s.expect(p.engines.cancelled() - seen)
	}
	if err := ctx.Err(); err != nil { // which ends the routers, too
		return sample{}, err
	}
	after, err := w.usage()
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w", w.name, err)
	}
	s.CPU = processorTime(before, after)
	return s, nil
}

// work lets all clients do what the cell says, and waits for them.
func (w *crew) work(ctx context.Context, until time.Time) {
	var working sync.WaitGroup
	for i, c := range w.clients {
		c.tally = tally{times: c.tally.times[:0]}
		working.Go(func() {
			switch w.cell.Load {
			case answers:
				c.takeAnswers(ctx, until)
			case streams:
				// Events of different streams come at different moments, not together.
				time.Sleep(eventGap * time.Duration(i) / time.Duration(len(w.clients)))
				c.takeStream()
			case leaving:
				for range leaves {
					c.leave()
				}
			}
		})
	}
	working.Wait()
}

// sum adds up what the clients saw.
func (w *crew) sum(took time.Duration) sample {
	s := sample{Seconds: took.Seconds()}
	var times []float64
	for _, c := range w.clients {
		times = append(times, c.tally.times...)
		s.Events += c.tally.events
		s.Errors += c.tally.errors
		if c.tally.failure != nil && s.Failure == "" {
			s.Failure = c.tally.failure.Error()
		}
	}
	s.Requests = len(times)
	s.P50, s.P99 = quantile(times, 0.5), quantile(times, 0.99)
	return s
}

// expect says how many of the clients that left were seen to do so by an engine.
func (s *sample) expect(seen int) {
	if missed := s.Requests - seen; missed > 0 {
		s.Errors += missed
		s.Failure = fmt.Sprintf("%d of %d clients left unseen by the engines", missed, s.Requests)
	}
}

// fail counts an error, if there is one.
func (s *sample) fail(err error) {
	if err != nil {
		s.Errors++
		s.Failure = err.Error()
	}
}

// revisit sees that all rows go on to serve after their clients have left. It is no
// part of the measurement, so they are asked together.
func revisit(crews []*crew, samples [][]sample) {
	var working sync.WaitGroup
	for i, w := range crews {
		last := &samples[i][len(samples[i])-1]
		working.Go(func() { last.fail(w.serves()) })
	}
	working.Wait()
}

// serves reports whether the row goes on to serve after its clients have left.
func (w *crew) serves() error {
	c := newClient(0, w.addresses, w.clients[0].next, w.cell.API)
	defer c.close()
	c.takeStream()
	return c.tally.failure
}
