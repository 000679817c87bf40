package enginesim

import (
	"container/list"
	"context"
	"errors"
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

	mu         sync.Mutex // guards all below
	cache      *blockCache
	waiting    list.List // of *sequence, in order of arrival
	prefilling *sequence
	running    int // sequences in prefill and decode
	counts     counters
}

// sequence is one prompt on its way to one answer. Submit puts it into the
// queue; then run must be called, or abandon.
type sequence struct {
	engine    *engine
	root      uint64   // parent hash of its first block
	prompt    int      // tokens of its prompt
	tail      []uint32 // computed tokens behind the last full block
	maxTokens int      // of the answer
	seed      uint64   // what the answer depends on

	arrived time.Time
	place   *list.Element // while it waits
	turn    chan struct{} // closed when its prefill starts; nil if it never waited

	lease     lease
	cached    int       // prompt tokens found in the cache
	prefillAt time.Time // when its prefill started
	nextAt    time.Time // when its next token is due
	timer     *time.Timer
}

// token is one step of an answer.
type token struct {
	text string
	id   uint32
	pos  int // tokens before it
	last bool
}

func newEngine(opts Options) *engine {
	e := &engine{opts: opts, started: time.Now(), stopped: make(chan struct{})}
	e.cache = newBlockCache(opts.BlockSize, opts.blocks())
	e.cache.stored = func(_ *lease, from, to int) { e.counts.blocksStored += to - from }
	e.cache.removed = func(uint64) { e.counts.blocksRemoved++ }
	e.counts.ttft.bounds = ttftBounds
	return e
}

// close ends the engine: all its sequences end with errStopped.
func (e *engine) close() { e.stop.Do(func() { close(e.stopped) }) }

// submit queues a sequence. root tells apart prompts that must not share blocks
// though their tokens are equal; choice tells apart answers to the same prompt.
func (e *engine) submit(ids []uint32, root uint64, maxTokens, choice int) (*sequence, error) {
	size := e.opts.BlockSize
	s := &sequence{engine: e, root: root, prompt: len(ids), maxTokens: maxTokens, seed: mix(root, uint64(choice))} //nolint:gosec // an index
	s.lease.hashes = appendChain(make([]uint64, 0, (len(ids)+maxTokens)/size), root, ids, size)
	s.tail = append(make([]uint32, 0, size), ids[len(s.lease.hashes)*size:]...)
	s.seed = chain(mix(s.seed, s.lastHash()), s.tail)

	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting.Len() >= maxQueued {
		return nil, errQueueFull
	}
	s.arrived = time.Now()
	s.place = e.waiting.PushBack(s)
	e.advance(s.arrived)
	if s.place != nil {
		s.turn = make(chan struct{})
	}
	return s, nil
}

// advance starts the next prefill, if there is one and its blocks can be had. at
// is when prefill became free. e.mu is held.
func (e *engine) advance(at time.Time) {
	front := e.waiting.Front()
	if front == nil || e.prefilling != nil {
		return
	}
	s := front.Value.(*sequence)
	if !e.cache.open(&s.lease, s.prompt, s.prompt+s.maxTokens-1) {
		return
	}
	e.waiting.Remove(front)
	s.place = nil
	e.prefilling = s
	e.running++
	s.cached = s.lease.filled * e.opts.BlockSize
	s.prefillAt = at
	if s.arrived.After(at) {
		s.prefillAt = s.arrived
	}
	s.nextAt = s.prefillAt.Add(e.opts.prefillTime(s.prompt - s.cached))
	e.counts.cacheQueries += s.prompt
	e.counts.cacheHits += s.cached
	if s.turn != nil {
		close(s.turn)
	}
}

// run takes the sequence through queue, prefill and decode, and calls emit with
// each token at its time. It ends early when ctx ends (errGone), the engine
// stops (errStopped) or emit returns an error, which it then returns.
func (s *sequence) run(ctx context.Context, emit func(token) error) error {
	err := s.steps(ctx, emit)
	s.leave(err)
	return err
}

func (s *sequence) steps(ctx context.Context, emit func(token) error) error {
	if err := s.awaitTurn(ctx); err != nil {
		return err
	}
	if err := s.wait(s.nextAt, ctx.Done()); err != nil {
		return err
	}
	s.prefilled()
	var id uint32
	for pos := range s.maxTokens {
		if pos > 0 {
			if err := s.wait(s.nextAt, nil); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return errGone
			}
			s.decoded(pos, id)
		}
		var text string
		text, id = word(s.seed, pos)
		if err := emit(token{text: text, id: id, pos: pos, last: pos == s.maxTokens-1}); err != nil {
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

// prefilled ends the sequence's prefill: its prompt is in the cache, its first
// token is there, and the next prompt's turn has come.
func (s *sequence) prefilled() {
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cache.fill(&s.lease, s.prompt)
	e.prefilling = nil
	e.advance(s.nextAt)
	e.counts.promptTokens += s.prompt
	e.counts.cachedTokens += s.cached
	e.counts.generationTokens++
	e.counts.ttft.observe(time.Since(s.arrived).Seconds())
	s.nextAt = s.nextAt.Add(e.opts.tokenTime(e.running))
}

// decoded accounts for the step that made the token at pos: it computed the
// token before, previous, which may have filled a block.
func (s *sequence) decoded(pos int, previous uint32) {
	s.tail = append(s.tail, previous)
	if len(s.tail) == s.engine.opts.BlockSize {
		s.lease.hashes = append(s.lease.hashes, chain(s.lastHash(), s.tail))
		s.tail = s.tail[:0]
	}
	computed := s.prompt + pos
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cache.fill(&s.lease, computed)
	e.counts.generationTokens++
	s.nextAt = s.nextAt.Add(e.opts.tokenTime(e.running))
}

// lastHash is the parent of the next block.
func (s *sequence) lastHash() uint64 {
	if n := len(s.lease.hashes); n > 0 {
		return s.lease.hashes[n-1]
	}
	return s.root
}

// leave takes the sequence out of whatever it is in. What a broken-off prefill
// has done so far stays in the cache.
func (s *sequence) leave(err error) {
	if s.timer != nil {
		s.timer.Stop()
	}
	now := time.Now()
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.place != nil {
		e.waiting.Remove(s.place)
		s.place = nil
		e.advance(now) // it may have been the one that waited for room
		return
	}
	if e.prefilling == s {
		done := min(e.opts.prefilledIn(now.Sub(s.prefillAt)), s.prompt-s.cached)
		e.cache.fill(&s.lease, s.cached+done)
		e.prefilling = nil
	}
	e.cache.close(&s.lease)
	e.running--
	if err == nil {
		e.counts.finished++
	}
	e.advance(now)
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
	return e.cache.reset()
}
