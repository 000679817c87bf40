package enginesim

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

var (
	errQueueFull = errors.New("the queue of waiting requests is full")
	errGone      = errors.New("the client went away")
	errStopped   = errors.New("the engine stopped")
)

// engine is one life of a simulated engine, from start to stop: its queue, its
// cache and its counters. It runs no goroutine of its own; each sequence moves
// in the goroutine of the request it belongs to.
type engine struct {
	opts    Options
	started time.Time
	stopped chan struct{} // closed when it stops
	stop    sync.Once
	told    func(Prefill) // called at every first token, without the lock

	mu         sync.Mutex // guards all below
	cache      *blockCache
	waiting    list.List // of *sequence, in order of arrival
	prefilling *sequence
	freeAt     time.Time // when the last prefill ended, by the schedule
	running    int       // sequences in prefill and decode
	counts     counters
	events     *recorder // nil if nobody is told what becomes of the cache
}

// sequence is one prompt on its way to one answer. Submit puts it into the
// queue; then run must be called, or abandon.
type sequence struct {
	engine    *engine
	space     namespace
	prompt    int      // tokens of its prompt
	tail      []uint32 // computed tokens behind the last full block
	media     []medium // in its prompt
	maxTokens int      // of the answer
	seed      uint64   // what the answer depends on

	promptIDs, answerIDs []uint32 // kept only if there are events, which tell them

	arrived time.Time
	place   *list.Element // while it waits
	turn    chan struct{} // closed when its prefill starts; nil if it never waited

	lease     lease
	cached    int       // prompt tokens found in the cache
	prefillAt time.Time // when its prefill started
	nextAt    time.Time // when its next tokens are due; those of the last event, once it is out
	due       int       // how many they are
	timer     *time.Timer

	made   int    // tokens of the answer so far
	newest uint32 // the last of them, which the next step computes
	text   []byte // of the newest event, as are ids
	ids    []uint32
}

// delta is what an answer grows by in one event: its first token, or up to
// StreamInterval more. Its slices are used again for the next one.
type delta struct {
	text []byte
	ids  []uint32
	pos  int // tokens before it
	last bool
}

func newEngine(opts Options) *engine {
	e := &engine{opts: opts, started: time.Now(), stopped: make(chan struct{}), told: func(Prefill) {}}
	e.cache = newBlockCache(opts.BlockSize, opts.blocks())
	e.cache.stored = func(l *lease, from, to int) {
		e.counts.blocksStored += to - from
		if e.events != nil {
			e.events.stored(l, from, to)
		}
	}
	e.cache.removed = func(hash uint64) {
		e.counts.blocksRemoved++
		if e.events != nil {
			e.events.removed(hash)
		}
	}
	e.counts.ttft.bounds = ttftBounds
	return e
}

// close ends the engine: all its sequences end with errStopped.
func (e *engine) close() { e.stop.Do(func() { close(e.stopped) }) }

// publish has all that becomes of the cache from now on published.
func (e *engine) publish(p *publisher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = newRecorder(p, e.opts.radix())
}

// silence ends what publish began, for good.
func (e *engine) silence() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = nil
}

// stepDone publishes what a step has done to the cache. e.mu is held.
func (e *engine) stepDone() {
	if e.events != nil {
		e.events.flush()
	}
}

// submit queues a sequence. choice tells apart answers to the same prompt.
func (e *engine) submit(p prompt, space namespace, maxTokens, choice int) (*sequence, error) {
	size := e.opts.BlockSize
	s := &sequence{engine: e, space: space, prompt: len(p.ids), maxTokens: maxTokens, media: p.media}
	s.seed = mix(space.root, uint64(choice)) //nolint:gosec // an index
	s.lease.holder = s
	s.lease.hashes = p.appendChain(make([]uint64, 0, (len(p.ids)+maxTokens)/size), space.root, size)
	s.tail = append(make([]uint32, 0, size), p.ids[len(s.lease.hashes)*size:]...)
	s.seed = chain(mix(s.seed, s.lastHash()), s.tail)
	if e.opts.Events != nil {
		s.promptIDs = p.ids
	}

	s.arrived = time.Now() // before the lock: who waits for it has come already
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting.Len() >= maxQueued {
		return nil, errQueueFull
	}
	s.place = e.waiting.PushBack(s)
	e.advance(s.arrived)
	if s.place != nil {
		s.turn = make(chan struct{})
	}
	return s, nil
}

// advance starts the next prefill, if there is one and its blocks can be had. at
// is when what it may have waited for came about by the schedule, however late
// that was noticed: so a late timer delays nobody else. e.mu is held.
func (e *engine) advance(at time.Time) {
	front := e.waiting.Front()
	if front == nil || e.prefilling != nil {
		return
	}
	s := front.Value.(*sequence)
	most := s.prompt + s.maxTokens - 1
	if e.opts.PromptsOnly {
		most = s.prompt
	}
	if !e.cache.open(&s.lease, s.prompt, most) {
		return
	}
	e.waiting.Remove(front)
	s.place = nil
	e.prefilling = s
	e.running++
	s.cached = s.lease.filled * e.opts.BlockSize
	s.prefillAt = latest(at, e.freeAt, s.arrived)
	s.nextAt = s.prefillAt.Add(e.opts.prefillTime(s.prompt - s.cached))
	e.counts.cacheQueries += s.prompt
	e.counts.cacheHits += s.cached
	if s.turn != nil {
		close(s.turn)
	}
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// run takes the sequence through queue, prefill and decode, and calls emit with
// the tokens of each event at its time. It ends early when ctx ends (errGone), the
// engine stops (errStopped) or emit returns an error, which it then returns.
func (s *sequence) run(ctx context.Context, emit func(delta) error) error {
	err := s.steps(ctx, emit)
	s.leave(err)
	return err
}

func (s *sequence) steps(ctx context.Context, emit func(delta) error) error {
	if err := s.awaitTurn(ctx); err != nil {
		return err
	}
	if err := s.wait(s.nextAt, ctx.Done()); err != nil {
		return err
	}
	first := s.grow(1)
	s.engine.told(s.prefilled())
	if err := emit(first); err != nil {
		return err
	}
	for s.made < s.maxTokens {
		if err := s.wait(s.nextAt, nil); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return errGone
		}
		more := s.grow(s.due)
		s.decoded()
		if err := emit(more); err != nil {
			return err
		}
	}
	return nil
}

// abandon takes a sequence that will not run out of the engine.
func (s *sequence) abandon() { s.leave(errGone) }

func abandonAll(sequences []*sequence) {
	for _, s := range sequences {
		s.abandon()
	}
}

func (s *sequence) awaitTurn(ctx context.Context) error {
	if s.turn == nil {
		return nil
	}
	select {
	case <-s.turn:
		return nil
	case <-ctx.Done():
		return errGone
	case <-s.engine.stopped:
		return errStopped
	}
}

// grow makes the next n tokens of the answer. The step that makes a token computes
// the one before, which may fill a block.
func (s *sequence) grow(n int) delta {
	s.text, s.ids = s.text[:0], s.ids[:0]
	for range n {
		if s.made > 0 {
			s.compute(s.newest)
		}
		var text string
		text, s.newest = word(s.seed, s.made)
		s.text = append(s.text, text...)
		s.ids = append(s.ids, s.newest)
		s.made++
	}
	return delta{text: s.text, ids: s.ids, pos: s.made - n, last: s.made == s.maxTokens}
}

// compute appends a token to those whose keys and values are known.
func (s *sequence) compute(id uint32) {
	s.tail = append(s.tail, id)
	if s.engine.opts.Events != nil {
		s.answerIDs = append(s.answerIDs, id)
	}
	if size := s.engine.opts.BlockSize; len(s.tail) == size {
		parent := fold(s.lastHash(), s.media, len(s.lease.hashes)*size, size)
		s.lease.hashes = append(s.lease.hashes, chain(parent, s.tail))
		s.tail = s.tail[:0]
	}
}

// prefilled ends the sequence's prefill: its prompt is in the cache, its first
// token is there, and the next prompt's turn has come.
func (s *sequence) prefilled() Prefill {
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cache.fill(&s.lease, s.prompt)
	if e.opts.PromptsOnly {
		e.cache.close(&s.lease)
	}
	e.stepDone()
	e.prefilling = nil
	e.freeAt = s.nextAt
	e.advance(s.nextAt)
	e.counts.promptTokens += s.prompt
	e.counts.cachedTokens += s.cached
	e.counts.generationTokens++
	e.counts.ttft.observe(time.Since(s.arrived).Seconds())
	told := Prefill{Arrived: s.arrived, Prompt: s.prompt, Cached: s.cached, Wait: e.opts.simulated(s.nextAt.Sub(s.arrived))}
	s.plan()
	return told
}

// decoded accounts for the steps whose tokens were due.
func (s *sequence) decoded() {
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	e.keep(s)
	e.stepDone()
	e.counts.generationTokens += s.due
	s.plan()
}

// keep accounts for the tokens of an answer that are computed. A cache that is a tree
// gets them when the answer ends.
func (e *engine) keep(s *sequence) {
	switch {
	case e.opts.PromptsOnly:
	case e.opts.radix():
		e.cache.hold(&s.lease, s.prompt+s.made-1)
	default:
		e.cache.fill(&s.lease, s.prompt+s.made-1)
	}
}

// plan sets how many tokens come next, and when. The steps up to there all take
// what they take with as many sequences as run now, so an interval sees others
// come and go only as it ends; over an answer that evens out. e.mu is held.
func (s *sequence) plan() {
	e := s.engine
	s.due = min(e.opts.StreamInterval, s.maxTokens-s.made)
	s.nextAt = s.nextAt.Add(time.Duration(s.due) * e.opts.tokenTime(e.running))
}

// lastHash is the parent of the next block.
func (s *sequence) lastHash() uint64 {
	if n := len(s.lease.hashes); n > 0 {
		return s.lease.hashes[n-1]
	}
	return s.space.root
}

// leave takes the sequence out of whatever it is in. What a broken-off prefill
// has done so far stays in the cache. What waits for the sequence goes on from when
// it was due to end, or from now if it did not come to its end.
func (s *sequence) leave(err error) {
	if s.timer != nil {
		s.timer.Stop()
	}
	at := time.Now()
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.place != nil {
		e.waiting.Remove(s.place)
		s.place = nil
		e.advance(at) // it may have been the one that waited for room
		return
	}
	if e.prefilling == s {
		done := min(e.opts.prefilledIn(at.Sub(s.prefillAt)), s.prompt-s.cached)
		e.cache.fill(&s.lease, s.cached+done)
		e.prefilling = nil
		if at.After(s.nextAt) {
			at = s.nextAt
		}
		e.freeAt = at
	}
	if e.opts.radix() && s.made > 0 && !e.opts.PromptsOnly {
		e.cache.fill(&s.lease, s.prompt+s.made-1)
	}
	e.cache.close(&s.lease)
	e.stepDone()
	e.running--
	if err == nil {
		e.counts.finished++
		at = s.nextAt // however long its client took to take the last token
	}
	e.advance(at)
}

// wait returns at until, or earlier with the reason why.
func (s *sequence) wait(until time.Time, gone <-chan struct{}) error {
	delay := time.Until(until)
	if delay <= 0 {
		select {
		case <-gone:
			return errGone
		case <-s.engine.stopped:
			return errStopped
		default:
			return nil
		}
	}
	if s.timer == nil {
		s.timer = time.NewTimer(delay)
	} else {
		s.timer.Reset(delay)
	}
	select {
	case <-s.timer.C:
		return nil
	case <-gone:
		return errGone
	case <-s.engine.stopped:
		return errStopped
	}
}

// resetCache forgets all cached prefixes unless a sequence holds blocks.
func (e *engine) resetCache() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.cache.reset() {
		return false
	}
	if e.events != nil {
		e.events.cleared()
	}
	return true
}
