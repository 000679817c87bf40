package enginesim

// eventKind is what an event says.
type eventKind uint8

const (
	blocksStored eventKind = iota
	blocksRemoved
	allCleared
)

// event is what became of blocks, before it is put into an engine's words.
type event struct {
	kind   eventKind
	hashes []uint64
	parent uint64 // of the first of the hashes, if child
	child  bool
	tokens []uint32 // of all blocks stored
	keys   [][]any  // what sets a block apart beside its tokens, for each block
	space  namespace
}

// namespace is what sets prompts apart though their tokens are equal.
type namespace struct {
	root      uint64 // the parent hash of a first block
	adapter   string // empty for the base model
	adapterID int    // from 1
	salt      string
}

// recorder keeps what happens to an engine's cache until the step is done that it
// happened in, and hands it to a publisher. It belongs to an engine, under its lock.
type recorder struct {
	publisher *publisher
	radix     bool // blocks there is a copy of already are no news
	copies    map[uint64]int
	pending   []event
}

func newRecorder(p *publisher, radix bool) *recorder {
	r := &recorder{publisher: p, radix: radix, copies: make(map[uint64]int)}
	if radix { // SGLang's first event ever, as its tree is built by a reset
		r.cleared()
	}
	return r
}

// stored notes that blocks [from, to) of a lease are in the cache.
func (r *recorder) stored(l *lease, from, to int) {
	if !r.radix {
		r.store(l, from, to)
		return
	}
	start := from
	for i := from; i < to; i++ {
		r.copies[l.hashes[i]]++
		if r.copies[l.hashes[i]] > 1 {
			r.store(l, start, i)
			start = i + 1
		}
	}
	r.store(l, start, to)
}

func (r *recorder) store(l *lease, from, to int) {
	if from == to {
		return
	}
	e := event{kind: blocksStored, hashes: l.hashes[from:to], space: l.holder.space}
	if from > 0 {
		e.parent, e.child = l.hashes[from-1], true
	}
	size := l.holder.engine.opts.BlockSize
	e.tokens = l.holder.tokens(from*size, to*size)
	for i := from; i < to; i++ {
		e.keys = append(e.keys, l.holder.keys(i))
	}
	r.pending = append(r.pending, e)
}

// removed notes that a copy of a block is lost.
func (r *recorder) removed(hash uint64) {
	if !r.radix {
		r.pending = append(r.pending, event{kind: blocksRemoved, hashes: []uint64{hash}})
		return
	}
	r.copies[hash]--
	if r.copies[hash] > 0 {
		return
	}
	delete(r.copies, hash)
	if n := len(r.pending); n > 0 && r.pending[n-1].kind == blocksRemoved {
		r.pending[n-1].hashes = append(r.pending[n-1].hashes, hash)
		return
	}
	r.pending = append(r.pending, event{kind: blocksRemoved, hashes: []uint64{hash}})
}

// cleared notes a reset. vLLM tells it with the next step, SGLang at once.
func (r *recorder) cleared() {
	r.pending = append(r.pending, event{kind: allCleared})
	clear(r.copies)
	if r.radix {
		r.flush()
	}
}

// flush publishes what the step has brought, if anything.
func (r *recorder) flush() {
	if len(r.pending) == 0 {
		return
	}
	r.publisher.publish(r.pending)
	clear(r.pending)
	r.pending = r.pending[:0]
}

// tokens are the ids at [from, to) of the sequence's prompt and answer.
func (s *sequence) tokens(from, to int) []uint32 {
	ids := make([]uint32, 0, to-from)
	if from < s.prompt {
		ids = append(ids, s.promptIDs[from:min(to, s.prompt)]...)
	}
	if to > s.prompt {
		ids = append(ids, s.answerIDs[max(from-s.prompt, 0):to-s.prompt]...)
	}
	return ids
}

// keys is what sets block i apart beside its tokens, in vLLM's order: adapter, media,
// salt. A medium is told with where it begins, seen from the block; the chain carries
// the salt from the first block on.
func (s *sequence) keys(i int) []any {
	var keys []any
	if s.space.adapter != "" {
		keys = append(keys, s.space.adapter)
	}
	size := s.engine.opts.BlockSize
	for _, m := range s.media {
		if m.within(i*size, size) {
			keys = append(keys, []any{m.identifier, m.at - i*size})
		}
	}
	if i == 0 && s.space.salt != "" {
		keys = append(keys, s.space.salt)
	}
	return keys
}
