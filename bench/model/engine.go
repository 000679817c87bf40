package model

import (
	"time"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// job is a request on its engine.
type job struct {
	*trace.Request
	luck     float64 // how long its prefill takes, as a factor; see Options.Noise
	decision Decision
	cached   int // tokens of the prompt that were found in the cache
}

// engine is one engine.
type engine struct {
	replay  *replay
	rate    float64 // uncached tokens of prompts that it prefills a second
	cache   *blocks
	queue   []*job // that wait for their prefill
	busy    bool   // a prefill is under way
	running int    // answers under way
	work    int    // tokens prefilled so far
}

func (e *engine) arrive(j *job, now time.Duration) {
	e.queue = append(e.queue, j)
	e.next(now)
}

// next begins the oldest prefill if none is under way.
func (e *engine) next(now time.Duration) {
	if e.busy || len(e.queue) == 0 {
		return
	}
	j := e.queue[0]
	e.queue = e.queue[1:]
	e.busy = true
	j.cached = j.Cached(e.cache.holds)
	uncached := j.Input - j.cached
	e.work += uncached
	took := time.Duration(float64(uncached) / e.rate * j.luck * float64(time.Second))
	e.replay.agenda.at(now+took, func(now time.Duration) { e.firstToken(j, now) })
}

// firstToken ends a prefill and begins to answer.
func (e *engine) firstToken(j *job, now time.Duration) {
	e.cache.store(j.Blocks)
	e.replay.tally.add(j, now-j.At)
	if told := j.decision.FirstToken; told != nil {
		told(j.Input-j.cached, instant(now))
	}
	e.running++
	each := e.replay.DecodeBase + time.Duration(e.running)*e.replay.DecodePerRunning
	e.replay.agenda.at(now+time.Duration(j.Output)*each, func(now time.Duration) { e.end(j, now) })
	e.busy = false
	e.next(now)
}

func (e *engine) end(j *job, now time.Duration) {
	e.running--
	if told := j.decision.End; told != nil {
		told(instant(now))
	}
}
