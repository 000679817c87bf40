package kvindex

import "slices"

// maxBlockSize bounds the block size an event may claim, in tokens.
const maxBlockSize = 1 << 16

// Stored is an event: an engine put consecutive blocks of a prompt into its
// cache. The index keeps nothing of its slices.
type Stored struct {
	// Root says that the first of Tokens is the first of a prompt. Otherwise
	// the block named Parent comes before them.
	Root   bool
	Parent uint64

	// Names are the engine's names for the blocks, see [NameOf].
	Names []uint64

	// Tokens are the blocks' tokens, BlockSize for each.
	Tokens    []uint32
	BlockSize int
	Units     Units

	Tier Tier

	// Adapter and Salt are read at the root: what follows inherits them.
	Adapter string
	Salt    string

	// Media has the items that touch each block, in the order of the event;
	// it may be shorter than Names. Anything else that the engine mixes into a
	// block and that no prompt can show (as embeddings) belongs here too, as an
	// item with an identifier that no prompt has.
	Media [][]MediaKey

	// Group, Kind and Window are the cache group, what it is called, and how
	// many tokens its window has if it has one. Engines that do not say have
	// one group of full attention.
	Group  int
	Kind   string
	Window int
}

// Applied says what became of an event, in blocks.
type Applied struct {
	// Credited are the blocks now held, or held once more.
	Credited int

	// Orphans were not credited because the worker is not known to hold what
	// comes before them: events were lost, and a replay may bring them.
	Orphans int

	// Unknown are removals of what the worker is not known to hold.
	Unknown int

	// Refused were not credited for want of memory, because the event makes no
	// sense, because the worker holds the block under another name, or
	// because of what [Holding.Blind] says.
	Refused int
}

// Store applies an event. A block that the worker holds already gets one more
// copy.
func (x *Index) Store(w Worker, e *Stored) Applied {
	x.mu.Lock()
	defer x.mu.Unlock()
	wk := x.worker(w)
	if wk == nil {
		return Applied{Refused: len(e.Names)}
	}
	x.tendSome()
	a := x.store(wk, e)
	x.count(wk, a)
	return a
}

func (x *Index) store(w *worker, e *Stored) Applied {
	none := Applied{Refused: len(e.Names)}
	if e.BlockSize <= 0 || e.BlockSize > maxBlockSize || e.Tier >= tiers {
		return none
	}
	whole := len(e.Tokens) == len(e.Names)*e.BlockSize
	if !whole && e.Kind != SlidingWindow {
		return none
	}
	if !e.Root && slices.Contains(e.Names, e.Parent) {
		return none
	}
	g := x.groupOf(w, e)
	if g == nil {
		return none
	}
	l := x.laneOf(w, g, e.Tier)
	if l == noLane {
		return none
	}
	if !whole {
		return x.storeNamed(w, g, l, e)
	}
	if e.Root {
		return x.storeChain(w, g, l, e, 0, x.hash.root(e.BlockSize, e.Adapter, e.Salt, e.Units))
	}
	parent := x.called(w, canonical(e.Parent))
	if parent == 0 {
		return Applied{Orphans: len(e.Names)}
	}
	return x.storeChain(w, g, l, e, parent, x.slab.at(parent).key.Load())
}

// storeChain applies an event that has a name for each block.
func (x *Index) storeChain(w *worker, g *group, l lane, e *Stored, parent uint32, key uint64) (a Applied) {
	for from := 0; from < len(e.Names); from += maxBatch {
		coming := x.coming(w, e, from, key)
		for i := range coming {
			c := &coming[i]
			id := x.arrive(c, parent)
			if id == 0 {
				a.Refused += len(e.Names) - from - i
				x.settle(parent)
				return a
			}
			parent, key, x.pinned = id, c.key, id
			if x.take(w, g, l, id, c, e.Tier) {
				a.Credited++
			} else {
				a.Refused++
			}
		}
	}
	x.settle(parent)
	return a
}

// settle lets go the last block of an event if nobody got to hold it.
func (x *Index) settle(last uint32) {
	x.pinned, x.ample = 0, false
	x.prune(last)
}

// arrive returns the block that is coming, making it if need be, or 0 if there
// is no room.
func (x *Index) arrive(c *mention, parent uint32) uint32 {
	if c.id != 0 && x.is(c.id, c.key) {
		return c.id
	}
	return x.create(c.key, parent) // it is new, or was evicted for those before
}

// take makes a lane hold a block under a name, and reports whether it does.
func (x *Index) take(w *worker, g *group, l lane, id uint32, c *mention, t Tier) bool {
	if w.dialect != nil || x.slab.at(id).name != c.name {
		if !x.agree(w, id, c.hash, c.name) {
			return false
		}
	}
	x.hold(w, g, l, id, t)
	x.adopt(w, id, c.name)
	return true
}

// agree sees to it that a name means a block to a worker, and reports whether
// it will once the worker holds the block.
func (x *Index) agree(w *worker, id uint32, hash, name uint64) bool {
	if w.dialect == nil && x.christen(id, hash, name) {
		return true // so nobody holds the block, nor has another by this name
	}
	if other := x.named(w, hash, name); other != 0 && other != id {
		// The worker uses the name anew, so what it was is gone.
		x.abandon(w, other)
	}
	if !x.holds(w, id) {
		return x.call(w, id, hash, name)
	}
	if x.nameOf(w, id) == name {
		return true
	}
	// Two names for one block: what tells them apart is not in the events.
	w.counts.Ambiguous++
	x.counts.Ambiguous++
	return false
}

// hold makes a lane hold a block whose name the worker has said.
func (x *Index) hold(w *worker, g *group, l lane, id uint32, t Tier) {
	x.slab.at(id).touch()
	if !x.set(id, l) {
		x.repeat(id, l)
		return
	}
	x.join(w, g, id, t)
}

// storeNamed applies an event of a group with a window, which has names for
// those blocks alone that the group holds: what they are is known by the
// names, or will be when the group of full attention tells of them.
func (x *Index) storeNamed(w *worker, g *group, l lane, e *Stored) (a Applied) {
	for _, name := range e.Names {
		name = canonical(name)
		if id := x.called(w, name); id != 0 {
			x.hold(w, g, l, id, e.Tier)
			a.Credited++
			continue
		}
		if x.postpone(w, g, name) {
			a.Credited++
		} else {
			a.Refused++
		}
	}
	return a
}
