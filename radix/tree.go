package radix

import (
	"sync"
	"sync/atomic"
)

// DefaultMaxBytes is the memory limit of a tree that is given none.
const DefaultMaxBytes = 256 << 20

// DefaultRewrite is a Rewrite, in bytes, with room for what templates and agents
// close a prompt with: with 512 bytes or none agents wait 7 to 13 % longer, more than
// this changes nothing (docs/constants.md). A tree that is given no Rewrite allows for none.
const DefaultRewrite = 2 << 10

// Options are the settings of a [Tree].
type Options struct {
	// MaxBytes limits the tree's memory, all overhead included. 0 means
	// DefaultMaxBytes.
	MaxBytes int64

	// Rewrite is the length in bytes, at the end of a stored prompt, in which
	// the next turn of the conversation may differ from it and still be taken
	// for one that extends it. Chat templates and agents write the end of a
	// prompt anew: they close it, or take back a reminder.
	Rewrite int
}

// Tree knows which worker was sent which prompts. Its methods may be called
// from any goroutine; matches do not wait for each other.
type Tree struct {
	wake chan struct{} // tells Run that there is something to tend

	// mu guards all below. What Tend does under it is bounded by tendWork,
	// and what Insert does beyond the length of its key by insertWork.
	mu      sync.RWMutex
	nodes   slab
	edges   edges
	crowds  crowds
	index   index
	all     list // all nodes
	rewrite int  // chunks that a next turn may leave unmatched
	limit   int64

	workers     []worker // by slot
	generations []uint32 // by slot; odd while the slot is taken
	live        []uint64 // bits of the slots that are taken
	free        []int    // slots without owner
	queue       []int    // slots that Tend has to see to

	work    int    // what the current step has done, in units of Tend
	evicted uint64 // nodes let go for want of memory

	retractions atomic.Uint64
}

// New returns an empty tree.
func New(o Options) *Tree {
	t := &Tree{
		wake: make(chan struct{}, 1),
		all:  list{slot: everyone},
	}
	t.index = newIndex(&t.nodes)
	t.edges.nodes = &t.nodes
	t.crowds = newCrowds(&t.nodes)
	t.limit = limit(o.MaxBytes)
	t.rewrite = (o.Rewrite + ChunkBytes - 1) / ChunkBytes
	return t
}

func limit(bytes int64) int64 {
	if bytes <= 0 {
		return DefaultMaxBytes
	}
	return bytes
}

// SetMaxBytes changes the memory limit. If the tree is larger, Tend makes it
// smaller step by step. 0 means DefaultMaxBytes.
func (t *Tree) SetMaxBytes(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = limit(bytes)
	t.signal()
}

// Stats describes a tree at one moment.
type Stats struct {
	Bytes    int64  // memory in use, all overhead included
	MaxBytes int64  // its limit
	Nodes    int    // edges in the tree
	Workers  int    // workers added and not removed
	Held     int64  // bytes of prompt held, summed over the workers
	Evicted  uint64 // nodes let go so far to stay within the limit
}

// Stats returns the tree's figures.
func (t *Tree) Stats() Stats {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := Stats{
		Bytes:    t.bytes(),
		MaxBytes: t.limit,
		Nodes:    t.nodes.live,
		Evicted:  t.evicted,
	}
	for slot := range t.workers {
		if t.alive(slot) {
			s.Workers++
			s.Held += t.workers[slot].held
		}
	}
	return s
}

// bytes returns the memory in use, all overhead included.
func (t *Tree) bytes() int64 {
	return t.nodes.bytes() + t.index.bytes() + t.edges.bytes() + t.crowds.bytes() + int64(cap(t.workers))*workerBytes
}

// used returns the memory in use without that of free nodes and blocks, which the next
// prompts take.
func (t *Tree) used() int64 {
	return t.bytes() - int64(t.nodes.vacant())*nodeBytes - int64(t.edges.vacant)*blockBytes
}
