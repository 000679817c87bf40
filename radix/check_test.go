package radix

import (
	"math/bits"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// check verifies everything that must hold of a tree at rest, recounting it
// from the nodes.
func check(t testing.TB, tree *Tree) {
	t.Helper()
	tree.mu.RLock()
	defer tree.mu.RUnlock()
	c := checker{t: t, tree: tree, children: map[uint32]map[int]uint32{}}
	c.index()
	c.counts()
	c.list(&tree.all, len(c.nodes))
	held := 0
	for slot := range tree.workers {
		held += c.worker(slot)
	}
	links := 0
	for _, id := range c.nodes {
		links += tree.crowds.count(tree.nodes.at(id))
	}
	require.Equal(t, links, held, "links in the workers' lists")
	c.free()
	c.slab()
	c.slots()
}

type checker struct {
	t        testing.TB
	tree     *Tree
	nodes    []uint32
	children map[uint32]map[int]uint32 // by node and slot
}

// index walks the hash table: every node must be where it is looked for.
func (c *checker) index() {
	x := &c.tree.index
	require.GreaterOrEqual(c.t, x.buckets, x.level)
	require.Less(c.t, x.buckets, 2*x.level)
	require.Len(c.t, x.segments, int(x.buckets+segmentBuckets-1)/segmentBuckets)
	for b := range x.buckets {
		for id := *x.head(b); id != 0; id = c.tree.nodes.at(id).next {
			n := c.tree.nodes.at(id)
			require.Same(c.t, x.head(b), x.bucket(n.parent, n.first))
			require.Equal(c.t, id, x.find(n.parent, n.first), "two children with the same first fingerprint")
			c.nodes = append(c.nodes, id)
			c.node(n)
		}
	}
	require.Len(c.t, c.nodes, int(x.count))
	require.Len(c.t, c.nodes, c.tree.nodes.live)
	for b := x.buckets; b < uint64(len(x.segments)*segmentBuckets); b++ {
		require.Zero(c.t, *x.head(b), "a node in a bucket beyond the last")
	}
}

func (c *checker) node(n *node) {
	require.LessOrEqual(c.t, n.size(), maxEdge)
	require.Positive(c.t, c.tree.crowds.count(n), "a node without holders")
	require.Positive(c.t, n.uses)
	require.LessOrEqual(c.t, n.uses, uint8(2))
	if n.missing > 0 {
		require.Equal(c.t, 1, n.size())
		require.Less(c.t, int(n.missing), ChunkBytes)
	}
	holders := 0
	for slot := range c.tree.crowds.slots(n) {
		holders++
		require.True(c.t, c.tree.crowds.holds(n, slot))
		c.child(n.parent, slot)
		if n.parent != 0 {
			require.True(c.t, c.tree.crowds.holds(c.tree.nodes.at(n.parent), slot), "a holder that does not hold the parent")
		}
	}
	c.child(n.parent, everyone)
	require.Equal(c.t, c.tree.crowds.count(n), holders)
	alone := holders == 1 && n.holders != 0
	require.Equal(c.t, alone, n.links == 0, "a crowd of one")
	require.False(c.t, alone && n.more != 0, "bits that nobody needs")
}

func (c *checker) child(parent uint32, slot int) {
	if c.children[parent] == nil {
		c.children[parent] = map[int]uint32{}
	}
	c.children[parent][slot]++
}

// counts verifies the memory and the children of each node.
func (c *checker) counts() {
	blocks, links, more := 0, 0, 0
	for _, id := range c.nodes {
		n := c.tree.nodes.at(id)
		blocks += c.edge(id, n)
		links += min(1, int(n.links))
		more += min(1, int(n.more))
		require.Equal(c.t, c.children[id][everyone], n.all.below)
		for slot := range c.tree.crowds.slots(n) {
			require.Equal(c.t, c.children[id][slot], c.tree.crowds.link(n, slot).below)
		}
	}
	require.Equal(c.t, blocks, c.tree.edges.live(), "blocks without a node")
	verify(c.t, &c.tree.crowds.links, links)
	verify(c.t, &c.tree.crowds.more, more)
}

// edge verifies that a node's edge is as long as it says and linked both ways, and
// returns its blocks.
func (c *checker) edge(id uint32, n *node) int {
	e := &c.tree.edges
	length, before := 0, id|ofNode
	for number := n.edge; number != 0; number = e.at(number).next {
		require.LessOrEqual(c.t, number, e.last, "a block beyond the last")
		require.Equal(c.t, before, e.at(number).back)
		before = number
		length++
	}
	require.Equal(c.t, blocks(n.size()), length)
	return length
}

// free verifies the list of free blocks.
func (c *checker) free() {
	e := &c.tree.edges
	vacant, before := 0, uint32(0)
	for number := e.free; number != 0; number = e.at(number).next {
		require.LessOrEqual(c.t, number, e.last)
		require.Zero(c.t, e.at(number).back)
		require.EqualValues(c.t, before, e.at(number).chunks[0])
		before = number
		vacant++
	}
	require.EqualValues(c.t, vacant, e.vacant)
}

// verify checks that there are so many arrays, each with the node that names it, and
// recounts their memory.
func verify[T any](t testing.TB, a *arrays[T], arrays int) {
	t.Helper()
	live, memory := 0, int64(0)
	for class := range a.classes {
		c := &a.classes[class]
		memory += int64(cap(c.pages)) * 8
		for _, p := range c.pages {
			memory += int64(cap(p.elements))*a.size + int64(cap(p.nodes))*4 + arrayPageOverhead - 8
		}
		for number := range c.live {
			node := *c.node(number, perPage(class))
			require.Equal(t, newRef(class, number), *a.named(node))
		}
		live += int(c.live)
	}
	require.Equal(t, arrays, live, "arrays without a node")
	require.Equal(t, memory, a.bytes())
}

// list verifies that the list has so many nodes, is linked both ways and has
// each node behind its parent.
func (c *checker) list(l *list, length int) {
	seen := map[uint32]bool{0: true}
	newer := uint32(0)
	for id := l.newest; id != 0; {
		n := c.tree.nodes.at(id)
		require.False(c.t, seen[id], "a node twice in a list")
		require.True(c.t, seen[n.parent], "a node newer than its parent")
		seen[id] = true
		require.Equal(c.t, newer, c.tree.crowds.link(n, l.slot).newer)
		newer, id = id, c.tree.crowds.link(n, l.slot).older
	}
	require.Equal(c.t, newer, l.oldest)
	require.Len(c.t, seen, length+1)
}

// worker verifies a worker's list, and returns its length.
func (c *checker) worker(slot int) int {
	s := &c.tree.workers[slot]
	length, held := 0, 0
	for _, id := range c.nodes {
		if n := c.tree.nodes.at(id); c.tree.crowds.holds(n, slot) {
			length++
			held += n.bytes()
		}
	}
	c.list(&s.list, length)
	require.Equal(c.t, slot, s.list.slot)
	require.Equal(c.t, int64(held), s.held)
	return length
}

// slab verifies the free nodes of each page and the list of pages with some.
func (c *checker) slab() {
	s := &c.tree.nodes
	require.EqualValues(c.t, nodeBytes, unsafe.Sizeof(node{}))
	require.EqualValues(c.t, blockBytes, unsafe.Sizeof(block{}))
	require.EqualValues(c.t, arrayPageOverhead-8, unsafe.Sizeof(arrayPage[link]{}))
	require.EqualValues(c.t, linkBytes, unsafe.Sizeof(link{}))
	require.EqualValues(c.t, 64, unsafe.Sizeof(worker{})+8+8+8)
	require.EqualValues(c.t, pageOverhead, unsafe.Sizeof(pageState{})+8)
	open := map[uint32]bool{}
	for number := s.open; number != 0; number = s.states[number-1].next {
		require.False(c.t, open[number-1])
		open[number-1] = true
	}
	live, gone, empty := 0, 0, 0
	for number, p := range s.pages {
		if p == nil {
			gone++
			continue
		}
		state := s.states[number]
		free := 0
		for id := state.free; id != 0; id = s.at(id).next {
			require.Zero(c.t, c.tree.crowds.count(s.at(id)), "a free node with holders")
			free++
		}
		all := pageNodes
		if number == 0 {
			all-- // there is no node 0
		}
		require.Equal(c.t, all, free+int(state.live))
		require.Equal(c.t, free > 0, open[uint32(number)])
		if state.live == 0 {
			empty++
		}
		live += int(state.live)
	}
	require.LessOrEqual(c.t, empty, 1, "empty pages were kept")
	require.Len(c.t, s.spare, gone)
	require.Equal(c.t, live, s.live)
}

// slots verifies that a slot is either taken, or waits to be drained, or is
// free and holds nothing.
func (c *checker) slots() {
	tree := c.tree
	state := make([]int, len(tree.workers))
	for _, slot := range tree.free {
		state[slot]++
		require.Zero(c.t, tree.workers[slot].list.newest, "a free slot that holds nodes")
		require.False(c.t, tree.workers[slot].queued)
	}
	taken := 0
	for _, word := range tree.live {
		taken += bits.OnesCount64(word)
	}
	queued := 0
	for slot := range tree.workers {
		if tree.workers[slot].queued {
			queued++
		}
		if tree.alive(slot) {
			state[slot]++
			taken--
			require.Equal(c.t, uint32(1), tree.generations[slot]%2)
		} else if tree.workers[slot].queued {
			state[slot]++
		}
		require.Equal(c.t, 1, state[slot], "slot %d is not in exactly one state", slot)
	}
	require.Zero(c.t, taken)
	require.Len(c.t, tree.queue, queued)
}
