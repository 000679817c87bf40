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
		going := x.foresee(w, names[:min(batch, len(names))])
		names = names[len(going):]
		for i := range going {
			if !x.dropOne(w, g, e.Tier, &going[i]) {
				a.Unknown++
			}
		}
	}
	return a
}

// foresee finds the next batch of blocks, and brings what is needed of them
// into the processor's cache, as prepare does.
func (x *Index) foresee(w *worker, names []uint64) []coming {
	going := x.coming[:len(names)]
	table := x.names
	if w.dialect != nil {
		table = w.dialect.table
	}
	var lines lines
	for i, name := range names {
		c := &going[i]
		c.name = canonical(name)
		c.hash = x.hash.name(c.name)
		lines[i] = table.line(c.hash)
	}
	lines.warm(len(going))
	for i := range going {
		c := &going[i]
		if c.id = lines[i].first(c.hash); c.id == 0 && lines[i].full() {
			p := table.seek(c.hash)
			c.id = p.next()
		}
	}
	n := 0
	for i := range going {
		if c := &going[i]; c.id != 0 {
			c.key = x.slab.at(c.id).key.Load()
			lines[n] = x.blocks.line(c.key)
			n++
		}
	}
	lines.warm(n)
	n = 0
	for i := range going {
		if c := &going[i]; c.id != 0 {
			if lines[n].first(c.key) == 0 {
				x.blocks.beyond(c.key)
			}
			n++
		}
	}
	return going
}

// dropOne takes one copy of a block, and reports whether there was one.
func (x *Index) dropOne(w *worker, g *group, t Tier, c *coming) bool {
	id := x.going(w, c)
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

// going returns the block that the worker holds and calls by a name, or 0.
func (x *Index) going(w *worker, c *coming) uint32 {
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
