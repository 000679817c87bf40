package kvindex

import "sync/atomic"

// block is a run of tokens at a place in a chain. Lookups read key, idle and
// what is rooted while events change them; the rest belongs to whoever has the
// index's lock. 64 bytes: it has a cache line of its own.
//
// A lookup that reads a block makes sure that it was the same one all the
// while: its key must be what it was, and the index's epoch too, which is a new
// one before a block begins where another ended in this one. That spares a
// number in each block: an atomic store takes longer than all else that an
// event does to a block.
type block struct {
	key   atomic.Uint64 // 0 while the block is free
	words words         // of the lanes below 64
	name  uint64        // what most of its holders call it, or 0
	ended uint64        // the epoch in which the last block in this place ended

	parent     uint32 // 0: it is the first of a prompt
	child      uint32 // the first of its children; they are a list
	next, prev uint32 // among its parent's children; next among the free

	idle  atomic.Uint32 // not 0: neither stored nor hit since the eviction came by
	flags uint32
}

// words are a block's bits for 64 lanes: who holds the block, and who is seen
// by lookups to do so. Of lanes of full attention those are seen that hold it
// and all before it.
type words struct {
	held   uint64
	rooted atomic.Uint64
}

const repeated = 1 // in flags: some lane may hold more than one copy

// touch keeps a block from being evicted soon.
func (b *block) touch() {
	if b.idle.Load() != 0 {
		b.idle.Store(0)
	}
}

// end makes the block a free one. Its words must be all zero.
func (b *block) end(epoch uint64) {
	b.key.Store(0)
	b.touch()
	b.name, b.parent, b.child, b.prev, b.flags, b.ended = 0, 0, 0, 0, 0, epoch
}
