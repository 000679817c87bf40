package inference

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultTimeScale = 1.0
	minTimeScale     = 0.01
	maxTimeScale     = 1000.0
)

// clock tells the time by which the plugin keeps what it learns. That is the
// machine's, unless a config sets time_scale: then it passes so many times faster.
// It never goes back, as times of the same process are compared, and does not jump
// when another config sets another scale.
// What concerns the network, such as a timeout, is no matter for it.
type clock struct {
	mu   sync.Mutex // held while the scale changes
	pace atomic.Pointer[pace]
}

// pace is how fast a clock goes, and since when. nil is one that changes just now.
type pace struct {
	scale float64
	since time.Time // on the machine's clock
	then  time.Time // what the clock told at that time; zero if it has always told the machine's
}

func newClock() *clock {
	c := new(clock)
	c.pace.Store(&pace{scale: 1})
	return c
}

// now returns the time.
func (c *clock) now() time.Time {
	for {
		p := c.pace.Load()
		if p == nil {
			runtime.Gosched()
			continue
		}
		now := p.at(time.Now())
		if c.pace.Load() == p { // else another pace may have begun before that was read
			return now
		}
	}
}

// at returns what the clock tells at a time of the machine's.
func (p *pace) at(machine time.Time) time.Time {
	if p.then.IsZero() {
		return machine
	}
	return p.then.Add(nanoseconds(math.Round(float64(machine.Sub(p.since)) * p.scale)))
}

// real returns how long d of the clock's time takes, to wait for.
func (c *clock) real(d time.Duration) time.Duration {
	for {
		if p := c.pace.Load(); p != nil {
			return nanoseconds(math.Ceil(float64(d) / p.scale))
		}
		runtime.Gosched()
	}
}

// nanoseconds returns n of them, or 146 years if that is less: what a duration can
// hold twice.
func nanoseconds(n float64) time.Duration { return time.Duration(min(n, math.MaxInt64/2)) }

// setScale sets how many times faster than the machine's clock this one goes from
// now on. What is waited for already takes as long as it was said to.
func (c *clock) setScale(scale float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.pace.Load()
	if before.scale == scale {
		return
	}
	c.pace.Store(nil)
	now := time.Now()
	c.pace.Store(&pace{scale: scale, since: now, then: before.at(now)})
}
