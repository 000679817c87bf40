package radix

import (
	"math/bits"
	"slices"
)

// maxEdge is the longest edge, in chunks: a longer prompt is a chain of
// nodes. It bounds every allocation and every copy to 8 KiB.
const maxEdge = 1024

// node is an edge of the tree with what hangs below it. Whoever holds a node
// holds all of its edge and all of its ancestors.
type node struct {
	// first and rest are the edge. first is kept apart because it finds the
	// node among its siblings. rest owns its memory.
	first uint64
	rest  []uint64

	// holders has a bit for each of the first 64 slots; the others are in
	// crowd, which is nil while a single one of the first 64 holds the node.
	holders uint64
	crowd   *crowd

	all  link // in the list of all nodes; below counts the children
	sole link // in its only holder's list, if crowd is nil

	parent  uint32
	next    uint32 // in the index's bucket, or among the free nodes
	uses    uint8  // different prompts that passed through or ended here; 2 is many
	missing uint8  // bytes that the only chunk of a short prompt lacks
}

// crowd is what a node needs with more than one holder, or one beyond the
// first 64.
type crowd struct {
	more  []uint64 // bits of slots 64 and up
	links []link   // one for each holder, by slot
}

const crowdBytes = 48

func (c *crowd) bytes() int64 {
	if c == nil {
		return 0
	}
	return crowdBytes + int64(cap(c.more))*8 + int64(cap(c.links))*linkBytes
}

// size is the length of the edge in chunks.
func (n *node) size() int { return 1 + len(n.rest) }

// bytes is the length of prompt that the edge covers.
func (n *node) bytes() int { return n.size()*ChunkBytes - int(n.missing) }

// word returns the holders among the slots 64*i to 64*i+63.
func (n *node) word(i int) uint64 {
	if i == 0 {
		return n.holders
	}
	if n.crowd == nil || i > len(n.crowd.more) {
		return 0
	}
	return n.crowd.more[i-1]
}

func (n *node) holds(slot int) bool {
	return n.word(slot/64)>>(slot%64)&1 != 0
}

// count returns the number of holders.
func (n *node) count() int {
	if n.crowd != nil {
		return len(n.crowd.links)
	}
	return bits.OnesCount64(n.holders)
}

// rank returns how many holders have a lower slot.
func (n *node) rank(slot int) int {
	rank := 0
	for i := range slot / 64 {
		rank += bits.OnesCount64(n.word(i))
	}
	return rank + bits.OnesCount64(n.word(slot/64)&(1<<(slot%64)-1))
}

// link returns the node's place in a list it is in: its holder's, or that of
// everyone.
func (n *node) link(slot int) *link {
	if slot == everyone {
		return &n.all
	}
	if n.crowd == nil {
		return &n.sole
	}
	return &n.crowd.links[n.rank(slot)]
}

// join makes slot a holder, with an empty link.
func (n *node) join(slot int) {
	if n.crowd == nil && n.holders == 0 && slot < 64 {
		n.holders, n.sole = 1<<slot, link{}
		return
	}
	if n.crowd == nil {
		n.crowd = new(crowd)
		if n.holders != 0 {
			n.crowd.links = append(n.crowd.links, n.sole)
		}
	}
	n.crowd.links = slices.Insert(n.crowd.links, n.rank(slot), link{})
	if slot < 64 {
		n.holders |= 1 << slot
		return
	}
	for len(n.crowd.more) < slot/64 {
		n.crowd.more = append(n.crowd.more, 0)
	}
	n.crowd.more[slot/64-1] |= 1 << (slot % 64)
}

// leave takes a holder away.
func (n *node) leave(slot int) {
	if n.crowd == nil {
		n.holders = 0
		return
	}
	c := n.crowd
	rank := n.rank(slot)
	c.links = slices.Delete(c.links, rank, rank+1)
	if slot < 64 {
		n.holders &^= 1 << slot
	} else {
		c.more[slot/64-1] &^= 1 << (slot % 64)
	}
	switch {
	case len(c.links) == 0:
		n.crowd = nil
	case len(c.links) == 1 && n.holders != 0:
		n.sole, n.crowd = c.links[0], nil
	case len(c.links) <= cap(c.links)/4:
		c.links = slices.Clone(c.links)
	}
}

// common returns how many fingerprints a and b have in common at their start.
func common(a, b []uint64) int {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	i := 0
	for ; i+4 <= n; i += 4 {
		x, y := a[i:i+4:i+4], b[i:i+4:i+4]
		if (x[0]^y[0])|(x[1]^y[1])|(x[2]^y[2])|(x[3]^y[3]) != 0 {
			break
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// own returns a copy of chunks in memory of its own, with all the capacity
// that the allocator gives, so that capacity tells the memory.
func own(chunks []uint64) []uint64 {
	return append([]uint64(nil), chunks...)
}
