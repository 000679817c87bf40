package radix

// evict lets go of the oldest node of all, which has no children.
func (t *Tree) evict() {
	id := t.all.oldest
	n := t.nodes.at(id)
	for slot := range n.slots {
		s := &t.workers[slot]
		t.unlist(&s.list, n)
		s.held -= int64(n.bytes())
		if n.parent != 0 {
			t.nodes.at(n.parent).link(slot).below--
		}
		t.work++
	}
	t.evicted++
	t.discard(id)
}

// drop takes the worker from a node of which it holds no child.
func (t *Tree) drop(s *worker, id uint32) {
	n := t.nodes.at(id)
	slot := s.list.slot
	t.unlist(&s.list, n)
	s.held -= int64(n.bytes())
	if n.parent != 0 {
		t.nodes.at(n.parent).link(slot).below--
	}
	t.crowd -= n.crowd.bytes()
	n.leave(slot)
	t.crowd += n.crowd.bytes()
	t.work++
	if n.count() == 0 {
		t.discard(id)
	}
}

// discard frees a node that has no children and is in no worker's list.
func (t *Tree) discard(id uint32) {
	n := t.nodes.at(id)
	t.unlist(&t.all, n)
	t.index.remove(id)
	if n.parent != 0 {
		t.nodes.at(n.parent).all.below--
	}
	t.edges -= int64(cap(n.rest)) * 8
	t.crowd -= n.crowd.bytes()
	t.nodes.release(id)
	t.work++
}

// trim takes from what the worker holds and was sent least recently, no more
// than brings it back to its capacity. Engines free a prompt from its end.
func (t *Tree) trim(s *worker) {
	id := s.list.oldest
	n := t.nodes.at(id)
	chunks := int((s.held - s.capacity + ChunkBytes - 1) / ChunkBytes)
	if chunks >= n.size() {
		t.drop(s, id)
		return
	}
	if n.count() > 1 {
		t.split(id, n.size()-chunks)
		t.drop(s, id)
		return
	}
	s.held -= int64(chunks) * ChunkBytes
	t.shorten(n, n.size()-chunks)
	t.work++
}

// shorten cuts an edge that nothing hangs below. It moves to smaller memory
// only now and then, as it may be cut chunk by chunk.
func (t *Tree) shorten(n *node, size int) {
	rest := n.rest[:size-1]
	if len(rest) <= cap(rest)*3/4 {
		rest = own(rest)
		t.work += len(rest) / copyWork
	}
	t.setRest(n, rest)
}

// room makes sure that cost more bytes fit under the limit, if need be by
// evicting. It fails if that would take too long, or the node kept: the last
// that the current prompt passed, and so the oldest of its path.
func (t *Tree) room(cost int64, kept uint32) bool {
	for t.bytes()+cost > t.limit {
		if t.all.oldest == 0 || t.all.oldest == kept || t.work >= insertWork {
			return false
		}
		t.evict()
	}
	return true
}
