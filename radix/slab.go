package radix

const (
	// pageNodes makes a page fit a size class of the Go allocator exactly.
	pageNodes = 16
	nodeBytes = 64
	pageBytes = pageNodes * nodeBytes
	// pageOverhead is the memory that finds a page, in bytes.
	pageOverhead = 8 + 16
)

// slab holds the nodes of a tree in pages and names them by number, so that
// they have no pointers, which the garbage collector would have to follow and
// its write barriers slow down. Node 0 does not exist. A page whose last node
// is released goes back to Go.
type slab struct {
	pages  []*[pageNodes]node
	states []pageState
	spare  []uint32 // numbers of the pages that went back
	end    uint32   // the first page number that was never used
	open   uint32   // number of the first page with a free node, plus one
	live   int      // nodes in use
}

// pageState says what is free in a page. Pages with a free node form a list.
type pageState struct {
	free       uint32 // first free node; the others follow in node.next
	live       uint32 // nodes in use
	prev, next uint32 // neighbours among the open pages, plus one
}

func (s *slab) at(id uint32) *node {
	return &s.pages[id/pageNodes][id%pageNodes]
}

// bytes returns the memory of the pages and of what finds them.
func (s *slab) bytes() int64 {
	return int64(len(s.pages)-len(s.spare))*pageBytes + int64(cap(s.pages))*pageOverhead + int64(cap(s.spare))*4
}

// vacant returns how many nodes of its pages are free.
func (s *slab) vacant() int { return (len(s.pages)-len(s.spare))*pageNodes - s.live }

// alloc returns a new node, all zero.
func (s *slab) alloc() uint32 {
	if s.open == 0 {
		s.load()
	}
	number := s.open - 1
	p := &s.states[number]
	id := p.free
	n := s.at(id)
	p.free, n.next = n.next, 0
	p.live++
	s.live++
	if p.free == 0 {
		s.shut(number)
	}
	return id
}

// release takes a node back.
func (s *slab) release(id uint32) {
	number := id / pageNodes
	p := &s.states[number]
	*s.at(id) = node{next: p.free}
	if p.free == 0 {
		s.reopen(number)
	}
	p.free = id
	p.live--
	s.live--
	// The last open page stays, or a node that comes and goes would take a
	// page with it each time.
	if p.live == 0 && (p.prev != 0 || p.next != 0) {
		s.shut(number)
		s.pages[number] = nil
		s.spare = append(s.spare, number)
	}
}

// load adds a page.
func (s *slab) load() {
	var number uint32
	if n := len(s.spare); n > 0 {
		number = s.spare[n-1]
		s.spare = s.spare[:n-1]
	} else {
		number = s.end
		s.end++
		s.pages = append(s.pages, nil)
		s.states = append(s.states, pageState{})
	}
	p := new([pageNodes]node)
	s.pages[number] = p
	s.states[number] = pageState{}
	for i := range uint32(pageNodes) {
		// Backwards, so that they are handed out forwards; there is no node 0.
		if id := number*pageNodes + pageNodes - 1 - i; id != 0 {
			p[id%pageNodes].next = s.states[number].free
			s.states[number].free = id
		}
	}
	s.reopen(number)
}

// reopen puts a page first among the open ones.
func (s *slab) reopen(number uint32) {
	p := &s.states[number]
	p.prev, p.next = 0, s.open
	if p.next != 0 {
		s.states[p.next-1].prev = number + 1
	}
	s.open = number + 1
}

// shut takes a page out of the open ones.
func (s *slab) shut(number uint32) {
	p := &s.states[number]
	if p.prev != 0 {
		s.states[p.prev-1].next = p.next
	} else {
		s.open = p.next
	}
	if p.next != 0 {
		s.states[p.next-1].prev = p.prev
	}
	p.prev, p.next = 0, 0
}
