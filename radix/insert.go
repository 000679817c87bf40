package radix

// insertWork bounds what one Insert evicts to make room, in the units of
// Tend. What finds no room by then is not stored.
const insertWork = 4096

// Insert notes that the worker was sent the prompt and will hold all of it.
// If the memory limit is reached it evicts about as much as it adds. Of a
// prompt larger than the limit, or than the worker's capacity, it stores the
// head.
func (t *Tree) Insert(w Worker, k Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.worker(w)
	if s == nil {
		return
	}
	chunks := k.Chunks
	if s.capacity > 0 && int64(k.covers()) > s.capacity {
		chunks = chunks[:s.capacity/ChunkBytes]
	}
	if len(chunks) == 0 {
		return
	}
	t.work = 0
	id, stored := t.pass(s, k.root(), chunks)
	if stored < len(chunks) {
		t.branch(id)
	}
	t.grow(s, k, id, chunks[stored:])
	for s.over() && t.work < insertWork {
		t.trim(s)
	}
	if s.over() {
		t.enqueue(s)
	}
	t.room(0, 0)
	if t.crowded() {
		t.signal()
	}
}

// pass walks down as far as the prompt is stored, makes the worker a holder
// of all of it and all of it the newest. It returns the last node and how
// many chunks were stored.
func (t *Tree) pass(s *worker, first uint64, chunks []uint64) (last uint32, stored int) {
	for stored < len(chunks) {
		if stored > 0 {
			first = chunks[stored]
		}
		id := t.index.find(last, first)
		if id == 0 {
			break
		}
		n := t.nodes.at(id)
		same := t.edges.common(n, chunks[stored+1:])
		if same < int(n.rest) {
			id = t.split(id, 1+same)
			n = t.nodes.at(id)
		}
		t.place(&t.all, n, id, last)
		if t.crowds.holds(n, s.list.slot) {
			t.place(&s.list, n, id, last)
		} else {
			t.hold(s, n, id, last)
		}
		last = id
		stored += 1 + same
	}
	return last, stored
}

// branch notes that a prompt which was not stored goes on from a node: all that
// leads there has one more use. A prompt that is sent again is no new one.
func (t *Tree) branch(id uint32) {
	for id != 0 {
		n := t.nodes.at(id)
		n.uses = min(n.uses+1, 2)
		id = n.parent
	}
}

// grow adds the part of the prompt that was not stored below parent, as far
// as there is room.
func (t *Tree) grow(s *worker, k Key, parent uint32, chunks []uint64) {
	for len(chunks) > 0 {
		edge := chunks[:min(maxEdge, len(chunks))]
		if !t.room(len(edge), parent) {
			return
		}
		id := t.nodes.alloc()
		n := t.nodes.at(id)
		n.first, n.parent, n.uses = edge[0], parent, 1
		if parent == 0 {
			n.first, n.missing = k.root(), k.missing()
		}
		t.edges.store(id, edge[1:])
		t.index.add(id)
		t.adopt(parent)
		t.enlist(&t.all, n, id, parent)
		t.hold(s, n, id, parent)
		parent, chunks = id, chunks[len(edge):]
	}
}

// adopt counts a new child.
func (t *Tree) adopt(parent uint32) {
	if parent != 0 {
		t.nodes.at(parent).all.below++
	}
}

// hold makes the worker a holder of a node whose parent it holds, and puts it
// behind the parent in its list.
func (t *Tree) hold(s *worker, n *node, id, parent uint32) {
	t.crowds.join(id, s.list.slot)
	s.held += int64(n.bytes())
	if parent != 0 {
		t.crowds.link(t.nodes.at(parent), s.list.slot).below++
	}
	t.enlist(&s.list, n, id, parent)
}
