package kvindex

// The level of a block for a worker is the slowest tier that it and those
// before it are in, each counted where it is fastest, or unrooted if one of
// them is nowhere. It is kept as a rooted bit in the lane of that tier, for
// groups of full attention. (For groups with windows the bit says that the block
// is held, no more.) A change travels down to the blocks that follow,
// as far as it changes something.

// join is called when a group began to hold a block.
func (x *Index) join(w *worker, g *group, id uint32, t Tier) {
	if w.kind(g.sliding) > 1 {
		for _, other := range w.groups {
			if other.sliding == g.sliding && !x.has(id, other.lanes[t]) {
				return
			}
		}
		if g.sliding && t != Device {
			return
		}
		l := x.united(w, g.sliding, t)
		if l == noLane || !x.set(id, l) {
			return
		}
	}
	switch {
	case !g.sliding:
		x.reroot(w, id)
	case t == Device && w.slide != noLane:
		x.root(id, w.slide)
	}
}

// part is called when a group ceased to hold a block.
func (x *Index) part(w *worker, g *group, id uint32, t Tier) {
	if g.sliding {
		x.partSliding(w, g, id, t)
		return
	}
	if l := w.full[t]; l != g.lanes[t] {
		x.unroot(id, g.lanes[t]) // it may have been the only group once
		if l != noLane {
			x.unset(id, l)
		}
	}
	x.reroot(w, id)
}

func (x *Index) partSliding(w *worker, g *group, id uint32, t Tier) {
	if t != Device {
		return
	}
	x.unroot(id, g.lanes[t])
	if w.slide != noLane {
		x.unset(id, w.slide)
		x.unroot(id, w.slide)
	}
}

// level returns a block's level as it was last settled.
func (x *Index) level(w *worker, id uint32) Tier {
	if id == 0 {
		return Device
	}
	for t, l := range w.full {
		if x.roots(id, l) {
			return Tier(t)
		}
	}
	return unrooted
}

// fastest returns the fastest tier that has the block.
func (x *Index) fastest(w *worker, id uint32) Tier {
	for t, l := range w.full {
		if x.has(id, l) {
			return Tier(t)
		}
	}
	return unrooted
}

// reroot settles a block's level and that of all that follow.
func (x *Index) reroot(w *worker, top uint32) {
	if !x.relevel(w, top) {
		return
	}
	id := x.slab.at(top).child
	for id != 0 && id != top {
		b := x.slab.at(id)
		if x.relevel(w, id) && b.child != 0 {
			id = b.child
			continue
		}
		for id != top && b.next == 0 {
			id = b.parent
			b = x.slab.at(id)
		}
		if id != top {
			id = b.next
		}
	}
}

// relevel settles one block's level, and reports whether it changed.
func (x *Index) relevel(w *worker, id uint32) bool {
	if w.plain {
		return x.relevelPlain(w.full[Device], id)
	}
	above := x.level(w, x.slab.at(id).parent)
	want, is := max(above, x.fastest(w, id)), x.level(w, id)
	if want == is {
		return false
	}
	if is != unrooted {
		x.unroot(id, w.full[is])
	}
	if want != unrooted {
		x.root(id, w.full[want])
	}
	return true
}

// relevelPlain does the same for a worker that keeps blocks on its device only,
// as most do.
func (x *Index) relevelPlain(l lane, id uint32) bool {
	b := x.slab.at(id)
	w, above := &b.words, true
	if l.word() != 0 {
		if w = x.slab.words(id, l.word()); w == nil {
			return false
		}
	}
	held, rooted := w.held&l.bit() != 0, w.rooted.Load()
	if held && b.parent != 0 {
		above = x.roots(b.parent, l)
	}
	is := rooted&l.bit() != 0
	if is == (held && above) {
		return false
	}
	w.rooted.Store(rooted ^ l.bit())
	return true
}
