package kvindex

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// DefaultMaxBytes is the memory limit if none is given.
const DefaultMaxBytes = 1 << 30

// Options configure an Index.
type Options struct {
	// MaxBytes limits the memory, in bytes. At the limit the index forgets
	// blocks, and then knows less than it was told. 0 is [DefaultMaxBytes].
	MaxBytes int64

	// Seed makes the hashes. 0 chooses one at random, so that nobody outside
	// can find prompts that collide.
	Seed uint64
}

// Index knows which worker holds which blocks. All methods may be called by
// any number of goroutines. Events are applied one at a time; a lookup takes
// no lock and waits for none of them.
type Index struct {
	hash hasher

	// What lookups read.
	slab   *slab
	blocks *table        // by key
	epoch  atomic.Uint64 // see block
	view   atomic.Pointer[view]
	reuses atomic.Uint64 // of lanes

	expected expectations

	// mu is held by whoever changes anything but the expectations.
	mu       sync.Mutex
	names    *table // blocks by their common name
	dialects int64  // bytes
	limit    int64
	workers  []*worker // by slot
	free     []int     // slots
	caches   uint64    // given out, see worker.cache
	lanes    []laneState
	idle     []lane // free to be given out
	retired  []lane // held by nobody any more, to be swept
	sweep    sweep
	copies   copies
	waiting  int // names, see pending
	batch    [maxBatch]mention
	ample    bool   // there is room for all of the batch
	hand     uint32 // where the eviction is
	pinned   uint32 // the block that is about to get a child
	counts   Counts
	wake     chan struct{}
}

// New returns an empty index.
func New(o Options) *Index {
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	for o.Seed == 0 {
		o.Seed = rand.Uint64() //nolint:gosec // no secret is drawn from it, and a collision costs a detour
	}
	x := &Index{
		hash:   newHasher(o.Seed),
		slab:   newSlab(),
		blocks: newSharedTable(loose),
		names:  newTable(loose),
		limit:  o.MaxBytes,
		wake:   make(chan struct{}, 1),
	}
	x.copies.extra = map[holder]uint8{}
	x.expected.until = map[expectation]int64{}
	x.epoch.Store(1)
	x.publish()
	return x
}

// find returns the block with a key, or 0. It is for lookups, which do not
// have the lock.
func (x *Index) find(key uint64) uint32 {
	lines := x.blocks.of(key).lines
	at := home(key, len(lines))
	for range lines {
		l, slot := &lines[at], uint64(0)
		for i := range l.slots {
			slot = atomic.LoadUint64(&l.slots[i])
			if (slot^key)>>keptBits == 0 && slot&idMask != 0 && x.is(uint32(slot&idMask), key) {
				return uint32(slot & idMask)
			}
		}
		if slot&passed == 0 {
			return 0
		}
		at = (at + 1) % len(lines)
	}
	return 0
}

// is reports whether a block that may have ended has a key.
func (x *Index) is(id uint32, key uint64) bool {
	b := x.slab.look(id)
	return b != nil && b.key.Load() == key
}

// have returns the block with a key, or 0. It is for events, which do.
func (x *Index) have(key uint64) uint32 {
	for p := x.blocks.seek(key); ; {
		id := p.next()
		if id == 0 || x.slab.at(id).key.Load() == key {
			return id
		}
	}
}

// create makes a block that follows parent, or is the first of a prompt if
// that is 0. It returns 0 if there is no room.
func (x *Index) create(key uint64, parent uint32) uint32 {
	x.pinned = parent
	if !x.ample && !x.room(0) {
		return 0
	}
	id := x.slab.alloc()
	if id == 0 {
		return 0
	}
	b := x.slab.at(id)
	if epoch := x.epoch.Load(); b.ended == epoch {
		x.epoch.Store(epoch + 1)
	}
	b.key.Store(key)
	if parent != 0 {
		above := x.slab.at(parent)
		b.parent, b.next = parent, above.child
		if b.next != 0 {
			x.slab.at(b.next).prev = id
		}
		above.child = id
	}
	x.blocks.add(key, id)
	return id
}

// prune lets go a block that nobody holds and nothing follows, and then its
// parent if that is all that kept it.
func (x *Index) prune(id uint32) {
	for id != 0 && id != x.pinned {
		b := x.slab.at(id)
		if b.child != 0 || x.heldByAny(id) {
			return
		}
		parent := b.parent
		x.unlink(b)
		x.blank(id)
		x.blocks.remove(b.key.Load(), id)
		if b.name != 0 {
			x.names.remove(x.hash.name(b.name), id)
		}
		b.end(x.epoch.Load())
		x.slab.release(id)
		id = parent
	}
}

// unlink takes a block out of its parent's children.
func (x *Index) unlink(b *block) {
	if b.next != 0 {
		x.slab.at(b.next).prev = b.prev
	}
	switch {
	case b.prev != 0:
		x.slab.at(b.prev).next = b.next
	case b.parent != 0:
		x.slab.at(b.parent).child = b.next
	}
}

func (x *Index) heldByAny(id uint32) bool {
	for i := 0; i*64 < len(x.lanes); i++ {
		if w := x.slab.words(id, i); w != nil && w.held != 0 {
			return true
		}
	}
	return false
}
