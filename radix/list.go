package radix

// everyone is the slot of the list that all nodes are in.
const everyone = -1

const linkBytes = 12

// link is a node's place in a list.
type link struct {
	newer, older uint32
	below        uint32 // children of the node that are in the same list
}

// list orders nodes by when a prompt last passed through them: each worker
// has one of what it holds, and one has all nodes. An ancestor is always newer
// than what is below it, so that the oldest node of a list has no child in it.
type list struct {
	slot           int // whose it is
	newest, oldest uint32
}

// placed reports whether a node of the list stands right behind newer, or first
// if newer is 0.
func (t *Tree) placed(l *list, n *node, id, newer uint32) bool {
	if newer == 0 {
		return l.newest == id
	}
	return t.crowds.link(n, l.slot).newer == newer
}

// enlist puts a node that is not in the list right behind newer, or first if
// newer is 0.
func (t *Tree) enlist(l *list, n *node, id, newer uint32) {
	at := t.crowds.link(n, l.slot)
	at.newer = newer
	if newer == 0 {
		at.older, l.newest = l.newest, id
	} else {
		before := t.crowds.link(t.nodes.at(newer), l.slot)
		at.older, before.older = before.older, id
	}
	if at.older == 0 {
		l.oldest = id
		return
	}
	t.crowds.link(t.nodes.at(at.older), l.slot).newer = id
}

// unlist takes a node out of the list. Its link keeps what it has below.
func (t *Tree) unlist(l *list, n *node) {
	at := t.crowds.link(n, l.slot)
	if at.newer == 0 {
		l.newest = at.older
	} else {
		t.crowds.link(t.nodes.at(at.newer), l.slot).older = at.older
	}
	if at.older == 0 {
		l.oldest = at.newer
	} else {
		t.crowds.link(t.nodes.at(at.older), l.slot).newer = at.newer
	}
}

// place moves a node of the list right behind newer.
func (t *Tree) place(l *list, n *node, id, newer uint32) {
	if t.placed(l, n, id, newer) {
		return
	}
	t.unlist(l, n)
	t.enlist(l, n, id, newer)
}
