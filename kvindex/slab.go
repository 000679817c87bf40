package kvindex

import "sync/atomic"

const (
	// pageBlocks makes a page fit the largest size class of the Go allocator.
	pageBlocks = 512
	blockBytes = 64
	pageBytes  = pageBlocks * blockBytes
	wordsBytes = 16

	// pageOverhead is the memory that finds a page, in bytes.
	pageOverhead = 16 + 16

	idBits    = 28
	maxBlocks = 1<<idBits - pageBlocks
)

type page [pageBlocks]block

// wide has the words of a page's blocks for lanes from 64 on.
type wide [maxLanes/64 - 1]atomic.Pointer[[pageBlocks]words]

const wideBytes = (maxLanes/64 - 1) * 8

// slab holds blocks in pages and names them by number. Block 0 does not exist.
// A page whose last block is released goes back to Go; lookups that still look
// into it find free blocks.
type slab struct {
	places atomic.Pointer[[]place]
	states []pageState
	spare  []uint32 // numbers of the pages that went back
	open   uint32   // number of the first page with a free block, plus one
	live   int      // blocks in use
	wides  int64    // bytes of the wide words
}

// place is where a page is found.
type place struct {
	page atomic.Pointer[page]
	wide atomic.Pointer[wide]
}

// pageState says what is free in a page. Pages with a free block form a list.
type pageState struct {
	free       uint32 // first free block; the others follow in block.next
	live       uint32 // blocks in use
	prev, next uint32 // neighbours among the open pages, plus one
}

func newSlab() *slab {
	s := new(slab)
	s.places.Store(new([]place))
	return s
}

// at returns a block that exists.
func (s *slab) at(id uint32) *block {
	return &(*s.places.Load())[id/pageBlocks].page.Load()[id%pageBlocks]
}

// look returns a block that may have gone by now or never was, or nil.
func (s *slab) look(id uint32) *block {
	places := *s.places.Load()
	if int(id/pageBlocks) >= len(places) {
		return nil
	}
	p := places[id/pageBlocks].page.Load()
	if p == nil {
		return nil
	}
	return &p[id%pageBlocks]
}

// words returns the block's words number i, or nil if they are all zero.
func (s *slab) words(id uint32, i int) *words {
	p := &(*s.places.Load())[id/pageBlocks]
	if i == 0 {
		if at := p.page.Load(); at != nil {
			return &at[id%pageBlocks].words
		}
		return nil
	}
	w := p.wide.Load()
	if w == nil {
		return nil
	}
	at := w[i-1].Load()
	if at == nil {
		return nil
	}
	return &at[id%pageBlocks]
}

// widen returns the block's words number i, making room for them.
func (s *slab) widen(id uint32, i int) *words {
	if at := s.words(id, i); at != nil {
		return at
	}
	p := &(*s.places.Load())[id/pageBlocks]
	if p.wide.Load() == nil {
		p.wide.Store(new(wide))
		s.wides += wideBytes
	}
	at := new([pageBlocks]words)
	p.wide.Load()[i-1].Store(at)
	s.wides += pageBlocks * wordsBytes
	return &at[id%pageBlocks]
}

// bytes returns the memory of the pages and of what finds them.
func (s *slab) bytes() int64 {
	return int64(len(s.states)-len(s.spare))*pageBytes + int64(len(s.states))*pageOverhead*2 + int64(cap(s.spare))*4 + s.wides
}

// alloc returns a free block, all zero, or 0 if there are too many.
func (s *slab) alloc() uint32 {
	if s.open == 0 && !s.load() {
		return 0
	}
	number := s.open - 1
	p := &s.states[number]
	id := p.free
	b := s.at(id)
	p.free, b.next = b.next, 0
	p.live++
	s.live++
	if p.free == 0 {
		s.shut(number)
	}
	return id
}

// release takes a block back that has ended.
func (s *slab) release(id uint32) {
	number := id / pageBlocks
	p := &s.states[number]
	b := s.at(id)
	b.next = p.free
	if p.free == 0 {
		s.reopen(number)
	}
	p.free = id
	p.live--
	s.live--
	// The last open page stays, or a block that comes and goes would take a
	// page with it each time.
	if p.live == 0 && (p.prev != 0 || p.next != 0) {
		s.unload(number)
	}
}

// unload gives an empty page back.
func (s *slab) unload(number uint32) {
	s.shut(number)
	at := &(*s.places.Load())[number]
	at.page.Store(nil)
	if w := at.wide.Swap(nil); w != nil {
		s.wides -= wideBytes
		for i := range w {
			if w[i].Load() != nil {
				s.wides -= pageBlocks * wordsBytes
			}
		}
	}
	s.spare = append(s.spare, number)
}

// load adds a page.
func (s *slab) load() bool {
	var number uint32
	if n := len(s.spare); n > 0 {
		number = s.spare[n-1]
		s.spare = s.spare[:n-1]
	} else if number = uint32(len(s.states)); number*pageBlocks < maxBlocks { //nolint:gosec // bounded by maxBlocks
		s.extend()
	} else {
		return false
	}
	p := new(page)
	for i := range uint32(pageBlocks - 1) {
		p[i].next = number*pageBlocks + i + 1
	}
	s.states[number] = pageState{free: max(number*pageBlocks, 1)}
	(*s.places.Load())[number].page.Store(p)
	s.reopen(number)
	return true
}

// extend makes room for one more page to be found. Lookups keep what they
// have; the places themselves never move under them with a page they hold.
func (s *slab) extend() {
	old := *s.places.Load()
	s.states = append(s.states, pageState{})
	if len(old) >= len(s.states) {
		return
	}
	places := make([]place, max(8, 2*len(old)))
	for i := range old {
		places[i].page.Store(old[i].page.Load())
		places[i].wide.Store(old[i].wide.Load())
	}
	s.places.Store(&places)
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
