package radix

import "math/bits"

// split cuts an edge after size chunks and returns the new node with the
// head of it, which takes the old one's place; the old one keeps its children
// and goes below. Both have memory of their own, so that neither keeps the
// whole edge alive.
func (t *Tree) split(id uint32, size int) uint32 {
	headID := t.nodes.alloc()
	head, tail := t.nodes.at(headID), t.nodes.at(id)
	head.first, head.parent, head.uses = tail.first, tail.parent, tail.uses
	t.index.replace(id, headID)

	rest := tail.rest
	t.setRest(head, own(rest[:size-1]))
	t.setRest(tail, own(rest[size:]))
	tail.first, tail.parent = rest[size-1], headID
	t.index.add(id)

	head.all = link{newer: tail.all.newer, below: 1}
	t.enlist(&t.all, head, headID, tail.all.newer)
	t.share(head, headID, tail)
	t.work += len(rest) / copyWork
	return headID
}

// share makes all holders of a node holders of its new parent as well. Each
// has the parent right before it in its list.
func (t *Tree) share(head *node, headID uint32, tail *node) {
	head.holders = tail.holders
	if tail.crowd != nil {
		head.crowd = &crowd{
			more:  append([]uint64(nil), tail.crowd.more...),
			links: make([]link, len(tail.crowd.links)),
		}
		t.crowd += head.crowd.bytes()
	}
	for slot := range tail.slots {
		head.link(slot).below = 1
		t.enlist(&t.workers[slot].list, head, headID, tail.link(slot).newer)
		t.work++
	}
}

// slots yields the slots of the node's holders.
func (n *node) slots(yield func(int) bool) {
	words := 1
	if n.crowd != nil {
		words += len(n.crowd.more)
	}
	for i := range words {
		for word := n.word(i); word != 0; word &= word - 1 {
			if !yield(i*64 + bits.TrailingZeros64(word)) {
				return
			}
		}
	}
}
