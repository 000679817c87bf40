package kvindex

import "math/bits"

const (
	// growBytes is the most that the tables grow by at a time.
	growBytes = 3 * (maxLines*lineBytes + segmentOverhead)

	// evictWork bounds the search for a block that was not used lately.
	evictWork = 1 << 16

	// ageWork is how many blocks the search passes ahead of time, for each
	// block that is stored when less than an eighth of the limit is left: it
	// has been around once or more before the first must go.
	ageWork = 32
)

// room makes room for a block and extra bytes, at the expense of others if the
// limit is near, and reports whether there is any.
func (x *Index) room(extra int64) bool {
	victims := 1
	switch bytes := x.bytes() + x.need(extra); {
	case bytes <= x.limit-x.limit/8:
		return true
	case bytes <= x.limit-x.limit/32:
		x.age()
		return true
	case bytes > x.limit-x.limit/64:
		// One for one does not do where tables grew or pages are half empty.
		victims = 8
	}
	for range victims {
		x.evict()
	}
	return x.bytes()+x.need(extra) <= x.limit
}

// batchBytes is the most that a batch of blocks takes besides directories.
const batchBytes = pageBytes + wideBytes + pageBlocks*wordsBytes + maxBatch*growBytes

// roomForBatch reports whether there is room for a batch of blocks, with no
// need to look at each.
func (x *Index) roomForBatch() bool {
	return x.bytes()+batchBytes <= x.limit-x.limit/8
}

func (x *Index) need(extra int64) int64 {
	if x.slab.open == 0 {
		extra += pageBytes
	}
	return extra + growBytes
}

// evict forgets a block that nothing follows. It goes around all blocks, and
// takes the first that was neither stored nor hit since it last came by; what
// that block followed is next, so that a whole prompt goes, end first.
// It reports whether there was one.
func (x *Index) evict() bool {
	end := x.end()
	for range min(evictWork, 2*end) {
		if id, unused := x.pass(end); unused && x.slab.at(id).child == 0 {
			x.expel(id)
			return true
		}
	}
	return x.evictAny(end)
}

// age lets the search pass some blocks.
func (x *Index) age() {
	end := x.end()
	for range min(ageWork, end) {
		x.pass(end)
	}
}

// end is the number behind the last block.
func (x *Index) end() uint32 {
	return uint32(len(x.slab.states)) * pageBlocks //nolint:gosec // bounded by maxBlocks
}

// pass passes a block, and reports whether it was not used since the last time
// and may go.
func (x *Index) pass(end uint32) (id uint32, unused bool) {
	id = x.hand % end
	x.hand = id + 1
	b := x.slab.look(id)
	if b == nil {
		x.hand = (id/pageBlocks + 1) * pageBlocks
		return id, false
	}
	if b.key.Load() == 0 || id == x.pinned {
		return id, false
	}
	if b.idle.Load() != 0 {
		return id, true
	}
	b.idle.Store(1)
	return id, false
}

// evictAny forgets the next block that nothing follows, used or not.
func (x *Index) evictAny(end uint32) bool {
	for range end {
		id := x.hand % end
		x.hand = id + 1
		b := x.slab.look(id)
		if b == nil || b.key.Load() == 0 {
			continue
		}
		for b.child != 0 {
			id = b.child
			b = x.slab.at(id)
		}
		if id != x.pinned {
			x.expel(id)
			return true
		}
	}
	return false
}

// expel takes a block that nothing follows from everyone and lets it go.
func (x *Index) expel(id uint32) {
	x.counts.Evicted++
	if parent := x.slab.at(id).parent; parent != 0 {
		x.hand = parent
	}
	for i := 0; i*64 < len(x.lanes); i++ {
		words := x.slab.words(id, i)
		if words == nil {
			continue
		}
		for held := words.held; held != 0; held &= held - 1 {
			l := lane(i*64 + bits.TrailingZeros64(held)) //nolint:gosec // bounded by maxLanes
			x.single(id, l)
			if w := x.lanes[l].owner; w != nil {
				x.lanes[l].held--
				x.uncall(w, id)
			}
		}
		words.rooted.Store(0)
		words.held = 0
	}
	x.prune(id)
}

// blank clears what may be left in the words of a block that nobody holds.
func (x *Index) blank(id uint32) {
	for i := 0; i*64 < len(x.lanes); i++ {
		if w := x.slab.words(id, i); w != nil && w.rooted.Load() != 0 {
			w.rooted.Store(0)
		}
	}
}
