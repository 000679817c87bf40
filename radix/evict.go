package radix

// evict lets go of the oldest node of all, which has no children.
func (t *Tree) evict() {
	id := t.all.oldest
	n := t.nodes.at(id)
	for slot := range t.crowds.slots(n) {
		s := &t.workers[slot]
		t.unlist(&s.list, n)
		s.held -= int64(n.bytes())
		if n.parent != 0 {
			t.crowds.link(t.nodes.at(n.parent), slot).below--
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
		t.crowds.link(t.nodes.at(n.parent), slot).below--
	}
	t.crowds.leave(id, slot)
	t.work++
	if t.crowds.count(n) == 0 {
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
	t.work += n.size() / copyWork
	t.edges.cut(id, 0)
	t.crowds.release(id)
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
	if t.crowds.count(n) > 1 {
		t.split(id, n.size()-chunks)
		t.drop(s, id)
		return
	}
	s.held -= int64(chunks) * ChunkBytes
	t.edges.cut(id, n.size()-chunks-1)
	t.work += 1 + chunks/copyWork
}

// room makes sure that a node with an edge of so many chunks fits under the limit, if
// need be by evicting; with none, that the limit is kept. It fails if that would take too
// long, or the node kept: the last that the current prompt passed, and so the oldest of
// its path.
func (t *Tree) room(chunks int, kept uint32) bool {
	for t.bytes()+t.cost(chunks) > t.limit {
		if t.work >= insertWork || t.all.oldest == kept || !t.yield(blocks(chunks)) {
			return false
		}
	}
	return true
}

// yield does the least that brings memory back, all but so many free blocks. It reports
// whether there was anything to do.
func (t *Tree) yield(spare int) bool {
	switch {
	case t.edges.gatherable(spare):
		t.gather()
	case t.all.oldest != 0:
		t.evict()
	default:
		return false
	}
	return true
}

// gather moves a block so that memory can be given back.
func (t *Tree) gather() {
	t.edges.gather()
	t.work++
}

// cost is about the memory that a node with an edge of so many chunks adds.
func (t *Tree) cost(chunks int) (bytes int64) {
	if chunks == 0 {
		return 0
	}
	if more := int64(blocks(chunks)) - int64(t.edges.vacant); more > 0 {
		bytes = (more + pageBlocks) * blockBytes
	}
	if t.nodes.open == 0 {
		bytes += pageBytes
	}
	return bytes
}
