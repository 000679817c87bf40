package radix

const (
	// blockChunks makes a block 128 bytes: of an edge's memory about one such block is
	// half empty.
	blockChunks = 15
	blockBytes  = 128

	// pageBlocks makes a page fit a size class of the Go allocator exactly.
	pageBlocks     = 16
	blockPageBytes = pageBlocks * blockBytes

	// ofNode marks a number as a node's: blocks and nodes are less than 2^31 each, which
	// take more than 100 GiB.
	ofNode = 1 << 31
)

// edges holds the edges of all nodes, but for the first chunk of each, as chains of
// blocks of one size. A block that is released is for the next edge, of whatever length,
// and not for the garbage collector: the heap does not grow and does not go to pieces
// while edges come, split and go. Blocks can be moved, so that memory can be given back.
type edges struct {
	nodes  *slab
	pages  []*[pageBlocks]block
	last   uint32 // the highest number in use; the first is 1
	free   uint32 // the first of the free blocks up to there
	vacant uint32 // how many these are
}

// block is a piece of an edge, or free. A free one has no back, and as its only chunk the
// number of the free block before it.
type block struct {
	next   uint32 // 0 behind the last
	back   uint32 // the block before, or the node, marked by ofNode
	chunks [blockChunks]uint64
}

// end is where a chain can go on.
type end struct {
	block  uint32 // its last block, or the node, marked by ofNode
	filled int    // chunks in that block; blockChunks if it is the node
}

// bytes returns the memory of the pages and of what finds them.
func (e *edges) bytes() int64 {
	return int64(len(e.pages))*blockPageBytes + int64(cap(e.pages))*8
}

func (e *edges) at(number uint32) *block {
	return &e.pages[number/pageBlocks][number%pageBlocks]
}

// after returns where the number of the block behind a block or node is written.
func (e *edges) after(before uint32) *uint32 {
	if before&ofNode != 0 {
		return &e.nodes.at(before &^ ofNode).edge
	}
	return &e.at(before).next
}

// store writes down all but the first of a new node's chunks.
func (e *edges) store(id uint32, rest []uint64) {
	e.nodes.at(id).rest = uint16(len(rest)) //nolint:gosec // less than maxEdge
	e.extend(end{id | ofNode, blockChunks}, rest)
}

// extend adds chunks to a chain and returns its new end.
func (e *edges) extend(at end, chunks []uint64) end {
	for len(chunks) > 0 {
		if at.filled == blockChunks {
			at = end{e.alloc(at.block), 0}
		}
		n := copy(e.at(at.block).chunks[at.filled:], chunks)
		at.filled += n
		chunks = chunks[n:]
	}
	return at
}

// cut leaves the first keep chunks of a node's rest.
func (e *edges) cut(id uint32, keep int) {
	e.nodes.at(id).rest = uint16(keep) //nolint:gosec // less than maxEdge
	before := id | ofNode
	for ; keep > 0; keep -= blockChunks {
		before = *e.after(before)
	}
	number := *e.after(before)
	*e.after(before) = 0
	for number != 0 {
		next := e.at(number).next
		e.release(number)
		number = next
	}
}

// divide gives a node's edge to head, a node without one, but for what is behind its
// first size chunks: that remains.
func (e *edges) divide(id, headID uint32, size int) {
	head, tail := e.nodes.at(headID), e.nodes.at(id)
	head.first, head.rest, head.edge = tail.first, tail.rest, tail.edge
	tail.rest, tail.edge = tail.rest-uint16(size), 0 //nolint:gosec // less than maxEdge
	e.at(head.edge).back = headID | ofNode

	number, skip := head.edge, size-1
	for ; skip >= blockChunks; skip -= blockChunks {
		number = e.at(number).next
	}
	tail.first = e.at(number).chunks[skip]
	to := end{id | ofNode, blockChunks}
	left := int(tail.rest)
	for skip++; left > 0; skip = 0 {
		b := e.at(number)
		chunks := b.chunks[skip:min(blockChunks, skip+left)]
		to = e.extend(to, chunks)
		number, left = b.next, left-len(chunks)
	}
	e.cut(headID, size-1)
}

// common returns how many chunks of a node's rest are the first of chunks.
func (e *edges) common(n *node, chunks []uint64) int {
	most := min(int(n.rest), len(chunks))
	same := 0
	for number := n.edge; same < most; {
		b := e.at(number)
		part := chunks[same:min(same+blockChunks, most)]
		alike := b.common(part)
		same += alike
		if alike < len(part) {
			break
		}
		number = b.next
	}
	return same
}

// common returns how many of chunks, no more than a block has, are at its start.
func (b *block) common(chunks []uint64) int {
	const stride = 5 // of which a block has three
	i := 0
	for ; i+stride <= len(chunks); i += stride {
		x, y := b.chunks[i:i+stride], chunks[i:i+stride]
		if (x[0]^y[0])|(x[1]^y[1])|(x[2]^y[2])|(x[3]^y[3])|(x[4]^y[4]) != 0 {
			break
		}
	}
	for i < len(chunks) && b.chunks[i] == chunks[i] {
		i++
	}
	return i
}

// alloc returns a new block behind another, or behind a node.
func (e *edges) alloc(before uint32) uint32 {
	number := e.free
	if number != 0 {
		e.take(number)
	} else {
		e.last++
		number = e.last
		if int(number/pageBlocks) == len(e.pages) {
			e.pages = append(e.pages, new([pageBlocks]block))
		}
	}
	b := e.at(number)
	b.next, b.back = 0, before
	*e.after(before) = number
	return number
}

// release puts a block, which is in no chain any more, first among the free ones.
func (e *edges) release(number uint32) {
	b := e.at(number)
	b.next, b.back, b.chunks[0] = e.free, 0, 0
	if e.free != 0 {
		e.at(e.free).chunks[0] = uint64(number)
	}
	e.free = number
	e.vacant++
}

// take takes a block from among the free ones.
func (e *edges) take(number uint32) {
	b := e.at(number)
	if before := b.chunks[0]; before != 0 {
		e.at(uint32(before)).next = b.next //nolint:gosec // a number
	} else {
		e.free = b.next
	}
	if b.next != 0 {
		e.at(b.next).chunks[0] = b.chunks[0]
	}
	e.vacant--
}

// gather makes the last block a free one, if there is any: it takes another's place. A
// page in which no block is left goes back to Go.
func (e *edges) gather() {
	b := e.at(e.last)
	if b.back == 0 {
		e.take(e.last)
	} else {
		number := e.free
		e.take(number)
		*e.at(number) = *b
		*e.after(b.back) = number
		if b.next != 0 {
			e.at(b.next).back = number
		}
	}
	e.last--
	// Not before half of the one before is free, or a block that comes and goes would
	// take a page with it.
	if n := len(e.pages) - 1; int(e.last+pageBlocks/2)/pageBlocks < n {
		e.pages = clip(e.pages, n)
	}
}

// live returns how many blocks are in use.
func (e *edges) live() int { return int(e.last - e.vacant) }

// gatherable reports whether so many free blocks can be spared that gathering them
// gives a page back.
func (e *edges) gatherable(spare int) bool {
	return int(e.vacant) >= spare+pageBlocks*3/2
}

// blocks is how many an edge of so many chunks takes.
func blocks(chunks int) int {
	return (chunks + blockChunks - 2) / blockChunks
}
