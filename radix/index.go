package radix

const (
	segmentBuckets = 1024
	segmentBytes   = segmentBuckets * 4
)

// index finds a node's child by its first fingerprint. It is a hash table
// that grows and shrinks by one bucket at a time (linear hashing), because
// rebuilding a table of a million nodes at once would hold the tree's lock
// for long. The nodes of a bucket form a list through node.next.
type index struct {
	nodes    *slab
	segments []*[segmentBuckets]uint32
	buckets  uint64 // in use; at least one segment
	level    uint64 // the largest power of two <= buckets
	count    uint64 // nodes in the table
}

func newIndex(nodes *slab) index {
	return index{
		nodes:    nodes,
		segments: []*[segmentBuckets]uint32{new([segmentBuckets]uint32)},
		buckets:  segmentBuckets,
		level:    segmentBuckets,
	}
}

func (x *index) bytes() int64 {
	return int64(len(x.segments))*segmentBytes + int64(cap(x.segments))*8
}

// bucket returns the head of the list that holds such a child if there is one.
func (x *index) bucket(parent uint32, first uint64) *uint32 {
	h := fold(uint64(parent), first)
	b := h & (2*x.level - 1)
	if b >= x.buckets {
		b &= x.level - 1
	}
	return x.head(b)
}

func (x *index) head(b uint64) *uint32 {
	return &x.segments[b/segmentBuckets][b%segmentBuckets]
}

// find returns the child of parent whose edge starts with first, or 0.
func (x *index) find(parent uint32, first uint64) uint32 {
	for id := *x.bucket(parent, first); id != 0; {
		n := x.nodes.at(id)
		if n.first == first && n.parent == parent {
			return id
		}
		id = n.next
	}
	return 0
}

// add enters a node under its parent and first fingerprint.
func (x *index) add(id uint32) {
	x.count++
	if x.count > x.buckets {
		x.grow()
	}
	n := x.nodes.at(id)
	head := x.bucket(n.parent, n.first)
	n.next, *head = *head, id
}

// remove takes a node out. Its parent and first fingerprint must still be
// those it was entered with.
func (x *index) remove(id uint32) {
	n := x.nodes.at(id)
	at := x.bucket(n.parent, n.first)
	for *at != id {
		at = &x.nodes.at(*at).next
	}
	*at, n.next = n.next, 0
	x.count--
	// At half as many a table does not grow and shrink in turns, and two
	// buckets for a node keep pace.
	for range 2 {
		if x.buckets > segmentBuckets && x.count < x.buckets/2 {
			x.shrink()
		}
	}
}

// replace lets another node stand where a node stood; both have the same
// parent and first fingerprint.
func (x *index) replace(old, id uint32) {
	n := x.nodes.at(old)
	at := x.bucket(n.parent, n.first)
	for *at != old {
		at = &x.nodes.at(*at).next
	}
	*at = id
	x.nodes.at(id).next, n.next = n.next, 0
}

// grow adds a bucket, which takes its nodes from one other.
func (x *index) grow() {
	if x.buckets%segmentBuckets == 0 {
		x.segments = append(x.segments, new([segmentBuckets]uint32))
	}
	from := x.head(x.buckets - x.level)
	x.buckets++
	if x.buckets == 2*x.level {
		x.level = x.buckets
	}
	id := *from
	*from = 0
	for id != 0 {
		n := x.nodes.at(id)
		next := n.next
		head := x.bucket(n.parent, n.first)
		n.next, *head = *head, id
		id = next
	}
}

// shrink gives the last bucket's nodes back to the one it took them from.
func (x *index) shrink() {
	last := x.head(x.buckets - 1)
	if x.buckets == x.level {
		x.level /= 2
	}
	x.buckets--
	at := x.head(x.buckets - x.level)
	for *at != 0 {
		at = &x.nodes.at(*at).next
	}
	*at, *last = *last, 0
	if x.buckets%segmentBuckets == 0 {
		n := len(x.segments) - 1
		x.segments[n] = nil
		x.segments = x.segments[:n]
	}
}
