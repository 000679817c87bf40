package radix

import "math/bits"

// crowds knows who holds each node and where it stands in their lists. Most nodes have
// one holder, and its link in them; what more there is, is here.
type crowds struct {
	nodes *slab
	links arrays[link]   // one for each holder, by slot
	more  arrays[uint64] // bits of slots 64 and up
}

func newCrowds(nodes *slab) crowds {
	return crowds{
		nodes: nodes,
		links: arrays[link]{size: linkBytes, named: func(id uint32) *ref { return &nodes.at(id).links }},
		more:  arrays[uint64]{size: 8, named: func(id uint32) *ref { return &nodes.at(id).more }},
	}
}

func (c *crowds) bytes() int64 { return c.links.bytes() + c.more.bytes() }

// words returns how many words the bits of n's holders take at most.
func (c *crowds) words(n *node) int { return 1 + len(c.more.get(n.more)) }

// word returns the holders among the slots 64*i to 64*i+63.
func (c *crowds) word(n *node, i int) uint64 {
	if i == 0 {
		return n.holders
	}
	if n.more == 0 {
		return 0
	}
	more := c.more.get(n.more)
	if i > len(more) {
		return 0
	}
	return more[i-1]
}

func (c *crowds) holds(n *node, slot int) bool {
	return c.word(n, slot/64)>>(slot%64)&1 != 0
}

// count returns the number of holders.
func (c *crowds) count(n *node) int {
	count := bits.OnesCount64(n.holders)
	for _, word := range c.more.get(n.more) {
		count += bits.OnesCount64(word)
	}
	return count
}

// rank returns how many holders have a lower slot.
func (c *crowds) rank(n *node, slot int) int {
	rank := 0
	for i := range slot / 64 {
		rank += bits.OnesCount64(c.word(n, i))
	}
	return rank + bits.OnesCount64(c.word(n, slot/64)&(1<<(slot%64)-1))
}

// slots yields the slots of n's holders.
func (c *crowds) slots(n *node) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for i := range c.words(n) {
			for word := c.word(n, i); word != 0; word &= word - 1 {
				if !yield(i*64 + bits.TrailingZeros64(word)) {
					return
				}
			}
		}
	}
}

// link returns n's place in a list it is in: its holder's, or that of everyone. It is
// valid until somebody joins or leaves a node.
func (c *crowds) link(n *node, slot int) *link {
	if slot == everyone {
		return &n.all
	}
	if n.links == 0 {
		return &n.sole
	}
	return &c.links.get(n.links)[c.rank(n, slot)]
}

// join makes slot a holder of a node, with an empty link.
func (c *crowds) join(id uint32, slot int) {
	n := c.nodes.at(id)
	if n.links == 0 && n.holders == 0 && slot < 64 {
		n.holders, n.sole = 1<<slot, link{}
		return
	}
	alone := n.links == 0
	count, rank := c.count(n), c.rank(n, slot)
	links := c.links.fit(id, count+1)
	if alone {
		links[0] = n.sole
	}
	copy(links[rank+1:count+1], links[rank:count])
	links[rank] = link{}
	c.set(id, slot)
}

// set writes down that slot is a holder.
func (c *crowds) set(id uint32, slot int) {
	n := c.nodes.at(id)
	if slot < 64 {
		n.holders |= 1 << slot
		return
	}
	more := c.more.get(n.more)
	if len(more) < slot/64 {
		more = c.more.fit(id, slot/64)
	}
	more[slot/64-1] |= 1 << (slot % 64)
}

// leave takes a holder from a node.
func (c *crowds) leave(id uint32, slot int) {
	n := c.nodes.at(id)
	if n.links == 0 {
		n.holders = 0
		return
	}
	count, rank := c.count(n)-1, c.rank(n, slot)
	links := c.links.get(n.links)
	copy(links[rank:count], links[rank+1:count+1])
	if slot < 64 {
		n.holders &^= 1 << slot
	} else {
		c.more.get(n.more)[slot/64-1] &^= 1 << (slot % 64)
	}
	switch {
	case count == 0:
		c.release(id)
	case count == 1 && n.holders != 0:
		n.sole = links[0]
		c.release(id)
	case count <= len(links)/4:
		c.links.fit(id, count)
	}
}

// release lets go of what a node with one holder among the first 64, or none, needs not.
func (c *crowds) release(id uint32) {
	c.links.release(id)
	c.more.release(id)
}

// copy makes all holders of a node holders of another, which has none, with empty links.
func (c *crowds) copy(id, to uint32) {
	from, n := c.nodes.at(id), c.nodes.at(to)
	n.holders = from.holders
	if from.links != 0 {
		clear(c.links.fit(to, c.count(from)))
	}
	if from.more != 0 {
		more := c.more.get(from.more)
		copy(c.more.fit(to, len(more)), c.more.get(from.more))
	}
}
