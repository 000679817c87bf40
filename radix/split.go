package radix

// split cuts an edge after size chunks and returns the new node with the
// head of it, which takes the old one's place; the old one keeps its children
// and goes below.
func (t *Tree) split(id uint32, size int) uint32 {
	headID := t.nodes.alloc()
	head, tail := t.nodes.at(headID), t.nodes.at(id)
	head.parent, head.uses = tail.parent, tail.uses
	t.index.replace(id, headID)
	t.work += int(tail.rest) / copyWork
	t.edges.divide(id, headID, size)
	tail.parent = headID
	t.index.add(id)

	head.all = link{newer: tail.all.newer, below: 1}
	t.enlist(&t.all, head, headID, tail.all.newer)
	t.share(id, headID)
	return headID
}

// share makes all holders of a node holders of its new parent as well. Each
// has the parent right before it in its list.
func (t *Tree) share(id, headID uint32) {
	head, tail := t.nodes.at(headID), t.nodes.at(id)
	t.crowds.copy(id, headID)
	for slot := range t.crowds.slots(tail) {
		t.crowds.link(head, slot).below = 1
		t.enlist(&t.workers[slot].list, head, headID, t.crowds.link(tail, slot).newer)
		t.work++
	}
}
