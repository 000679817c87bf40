package radix

// maxEdge is the longest edge, in chunks: a longer prompt is a chain of
// nodes. It bounds what a split has to copy to 8 KiB.
const maxEdge = 1024

// node is an edge of the tree with what hangs below it. Whoever holds a node
// holds all of its edge and all of its ancestors.
type node struct {
	// first is the first chunk of the edge, which finds the node among its siblings. The
	// rest of them are in the tree's edges.
	first uint64

	holders uint64 // bits of the first 64 slots; for the others see crowds

	all  link // in the list of all nodes; below counts the children
	sole link // in its only holder's list, if links names none

	// links and more are what crowds keeps of the node. A single holder among the first 64
	// needs neither.
	links, more ref

	parent  uint32
	next    uint32 // in the index's bucket, or among the free nodes
	edge    uint32 // first block of the rest of the edge; 0 if there is none
	rest    uint16 // chunks of the edge but for the first
	uses    uint8  // different prompts that passed through or ended here; 2 is many
	missing uint8  // bytes that the only chunk of a short prompt lacks
}

// size is the length of the edge in chunks.
func (n *node) size() int { return 1 + int(n.rest) }

// bytes is the length of prompt that the edge covers.
func (n *node) bytes() int { return n.size()*ChunkBytes - int(n.missing) }
