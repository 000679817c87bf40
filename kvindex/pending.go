package kvindex

// maxPending is how many names wait to be known at a time, of all workers.
const maxPending = 1 << 15

const pendingBytes = 40

// pending has the names under which groups with windows hold blocks on the
// device that no group has told the tokens of yet, with a bit for each group.
type pending struct {
	groups map[uint64]uint64
}

// postpone remembers that a group holds what a name will stand for.
func (x *Index) postpone(w *worker, g *group, name uint64) bool {
	p := &w.pending
	if p.groups[name] == 0 {
		if x.waiting >= maxPending {
			return false
		}
		x.waiting++
	}
	if p.groups == nil {
		p.groups = map[uint64]uint64{}
	}
	p.groups[name] |= 1 << w.rank(g)
	return true
}

// adopt gives a block whose name has become known to the groups that wait.
func (x *Index) adopt(w *worker, id uint32, name uint64) {
	if len(w.pending.groups) == 0 {
		return
	}
	waiting := w.pending.groups[name]
	if waiting == 0 {
		return
	}
	delete(w.pending.groups, name)
	x.waiting--
	for i, g := range w.groups {
		if waiting>>i&1 != 0 && g.lanes[Device] != noLane && x.set(id, g.lanes[Device]) {
			x.join(w, g, id, Device)
		}
	}
}

// unpostpone forgets that a group waits for a name, and reports whether it did.
func (x *Index) unpostpone(w *worker, g *group, name uint64) bool {
	waiting := w.pending.groups[name]
	bit := uint64(1) << w.rank(g)
	if waiting&bit == 0 {
		return false
	}
	if waiting &^= bit; waiting == 0 {
		delete(w.pending.groups, name)
		x.waiting--
	} else {
		w.pending.groups[name] = waiting
	}
	return true
}

// rank returns the group's place among the worker's.
func (w *worker) rank(g *group) int {
	for i := range w.groups {
		if w.groups[i] == g {
			return i
		}
	}
	return 0
}
