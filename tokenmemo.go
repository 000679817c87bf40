package inference

import (
	"container/list"
	"slices"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/caddy-inference/caddy-inference/radix"
)

const (
	// maxTokenMemo is how much memory the memo of token ids may take, in bytes: that of
	// a thousand prompts of 16,384 tokens.
	maxTokenMemo = 64 << 20

	// memoShards keeps requests from waiting for each other.
	memoShards = 16

	// memoEntryBytes is what an entry takes beside its ids.
	memoEntryBytes = 256
)

// tokenMemo remembers the token ids of prompts that were used last, by a fingerprint of
// the prompt. There is one for the process, as its limit is; what it knows is good for
// requests to the engine that said it, and to others of the same pool.
type tokenMemo struct {
	shards [memoShards]memoShard
}

type memoShard struct {
	mu     sync.Mutex
	places map[xxh3.Uint128]*list.Element
	recent list.List // of *memoEntry, the last used first
	bytes  int
	limit  int
}

// memoEntry is a prompt's ids. An engine that was restarted may have another tokenizer
// than before; then it has another handle in the tree, too.
type memoEntry struct {
	key    xxh3.Uint128
	ids    []uint32
	engine *worker
	handle *radix.Worker
}

func (e *memoEntry) bytes() int { return memoEntryBytes + 4*cap(e.ids) }

func newTokenMemo(limit int) *tokenMemo {
	m := new(tokenMemo)
	for i := range m.shards {
		m.shards[i].places = make(map[xxh3.Uint128]*list.Element)
		m.shards[i].limit = limit / memoShards
	}
	return m
}

func (m *tokenMemo) shard(key xxh3.Uint128) *memoShard { return &m.shards[key.Lo%memoShards] }

// get returns the ids of a prompt as one of the workers has said them, nil if none has.
// They are not to be changed.
func (m *tokenMemo) get(key xxh3.Uint128, workers []*worker) []uint32 {
	s := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	place := s.places[key]
	if place == nil {
		return nil
	}
	e := place.Value.(*memoEntry)
	if e.handle != e.engine.prefix.Load() {
		s.drop(place)
		return nil
	}
	if !slices.ContainsFunc(workers, func(w *worker) bool { return w.base == e.engine }) {
		return nil
	}
	s.recent.MoveToFront(place)
	return e.ids
}

// put remembers what an engine has said, which was asked when it had that handle. The ids
// are the memo's from now on.
func (m *tokenMemo) put(key xxh3.Uint128, ids []uint32, engine *worker, handle *radix.Worker) {
	e := &memoEntry{key, ids, engine, handle}
	s := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if place := s.places[key]; place != nil {
		s.drop(place)
	}
	if e.bytes() > s.limit {
		return
	}
	s.places[key] = s.recent.PushFront(e)
	s.bytes += e.bytes()
	for s.bytes > s.limit {
		s.drop(s.recent.Back())
	}
}

// drop forgets an entry. s.mu is held.
func (s *memoShard) drop(place *list.Element) {
	e := s.recent.Remove(place).(*memoEntry)
	delete(s.places, e.key)
	s.bytes -= e.bytes()
}

// bytes returns the memory that is taken.
func (m *tokenMemo) bytes() (n int) {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		n += s.bytes
		s.mu.Unlock()
	}
	return n
}
