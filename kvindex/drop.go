package kvindex

import "slices"

// Dropped is an event: an engine removed blocks from its cache. Events that
// follow each other and differ in names only may be joined, which is faster.
type Dropped struct {
	Names []uint64
	Tier  Tier
	Group int
}

// Drop applies an event. A block of which the worker stored several copies
// loses one.
func (x *Index) Drop(w Worker, e *Dropped) Applied {
	x.mu.Lock()
	defer x.mu.Unlock()
	wk := x.worker(w)
	if wk == nil {
		return Applied{Unknown: len(e.Names)}
	}
	x.tendSome()
	a := x.drop(wk, e)
	x.count(wk, a)
	return a
}

func (x *Index) drop(w *worker, e *Dropped) (a Applied) {
	if w.blind != "" {
		return Applied{Refused: len(e.Names)}
	}
	g := w.group(e.Group)
	if g == nil || e.Tier >= tiers || g.lanes[e.Tier] == noLane {
		return Applied{Unknown: len(e.Names)}
	}
	for names := e.Names; len(names) > 0; {
		going := x.going(w, names[:min(maxBatch, len(names))])
		names = names[len(going):]
		for i := range going {
			if !x.dropOne(w, g, e.Tier, &going[i]) {
				a.Unknown++
			}
		}
	}
	return a
}

// dropOne takes one copy of a block, and reports whether there was one.
func (x *Index) dropOne(w *worker, g *group, t Tier, c *mention) bool {
	id := x.mentioned(w, c)
	if id == 0 {
		return t == Device && x.unpostpone(w, g, c.name)
	}
	l := g.lanes[t]
	if !x.has(id, l) {
		return false
	}
	if x.unrepeat(id, l) {
		return true
	}
	x.unset(id, l)
	x.part(w, g, id, t)
	if !x.holds(w, id) {
		x.uncall(w, id)
		x.prune(id)
	}
	return true
}

// mentioned returns the block that the worker holds and calls by a name, or 0.
func (x *Index) mentioned(w *worker, c *mention) uint32 {
	if c.id != 0 && w.dialect == nil {
		if b := x.slab.look(c.id); b != nil && b.name == c.name && x.holds(w, c.id) {
			return c.id
		}
	}
	return x.named(w, c.hash, c.name)
}

// abandon takes a block from all lanes of a worker, copies and all.
func (x *Index) abandon(w *worker, id uint32) {
	for _, l := range w.lanes {
		x.single(id, l)
		x.unset(id, l)
		if !slices.Contains(w.full[:], l) {
			x.unroot(id, l)
		}
	}
	x.reroot(w, id)
	x.uncall(w, id)
	x.prune(id)
}
