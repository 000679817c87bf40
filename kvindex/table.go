package kvindex

import (
	"math/bits"
	"sync/atomic"
)

const (
	idMask = 1<<idBits - 1

	// passed, in the last slot of a line, says that a block is further on
	// because there was no room for it in the line.
	passed = 1 << idBits

	// keptBits is where the kept part of a hash begins. A segment is chosen by
	// its highest bits, the line in it and the tag by its lowest.
	keptBits = idBits + 1
	homeBits = 14

	lineBytes       = 64
	segmentOverhead = 64 + 8
)

// sizes are the lines that a segment may have. All are size classes of the Go
// allocator.
var sizes = [...]int{8, 12, 16, 24, 32, 42, 54, 76, 84, 96, 108, maxLines}

const maxLines = 128

// density is how many blocks a line has on average: at most roomy after a
// segment got another size, which it does beyond crowded or below sparse.
type density struct {
	roomy, crowded, sparse int
}

var (
	// loose spares nearly all searches a look at a second line.
	loose = density{roomy: 3, crowded: 5, sparse: 1}

	// dense takes two thirds of the memory.
	dense = density{roomy: 5, crowded: 6, sparse: 2}
)

// table finds blocks by a hash. It is an extendible hash table: a directory of
// small segments, each of which grows, shrinks and splits by itself, so that
// nothing is ever moved that is more than 8 KiB.
//
// Lookups need no lock: a segment that is to change its size is replaced, and
// who still looks into the old one finds what was there a moment ago.
type table struct {
	directory atomic.Pointer[directory]
	density   density
	shared    bool // lookups read it
	memory    int64
	count     int
}

type directory struct {
	shift    uint // of a hash, to get a segment's number
	segments []atomic.Pointer[segment]
}

type segment struct {
	lines  []line
	live   int // blocks
	depth  uint
	shared bool // lookups read it
}

// line is a part of a segment that fills a line of the processor's cache. A
// block is in the line that its hash chooses or, if that was full, in the next
// that was not.
type line struct {
	// slots have the upper bits of a hash and a block's number; whoever looks
	// must verify what is found. A slot stays when its block goes: lookups see
	// that the block has ended.
	slots [7]uint64

	// tags have a byte for each slot, with the lowest bits that are kept of the
	// hash, or 0 if the slot is free. The highest byte counts the blocks that
	// passed the line. Lookups do not read it, so that it is changed for nothing:
	// an atomic store takes as long as all else about a slot.
	tags uint64
}

const (
	lowBits  = 0x0001_0101_0101_0101
	highBits = 0x0080_8080_8080_8080

	onePassed  = 1 << 56
	manyPassed = 0xff << 56 // and for good: it is counted no further
)

func newTable(d density) *table {
	t := &table{density: d}
	t.reset()
	return t
}

// newSharedTable returns a table that lookups may read while it changes.
func newSharedTable(d density) *table {
	t := &table{density: d, shared: true}
	t.reset()
	return t
}

// reset makes the table small again, when it is empty.
func (t *table) reset() {
	d := &directory{shift: 64, segments: make([]atomic.Pointer[segment], 1)}
	t.memory, t.count = 8, 0
	d.segments[0].Store(t.segment(sizes[0], 0))
	d.segments[0].Load().shared = t.shared
	t.directory.Store(d)
}

func (t *table) bytes() int64 { return t.memory }

func (t *table) segment(lines int, depth uint) *segment {
	t.memory += int64(lines)*lineBytes + segmentOverhead
	return &segment{lines: make([]line, lines), depth: depth}
}

func (t *table) forget(s *segment) {
	t.memory -= int64(len(s.lines))*lineBytes + segmentOverhead
}

// of returns the segment for a hash.
func (t *table) of(hash uint64) *segment {
	d := t.directory.Load()
	return d.segments[hash>>d.shift].Load()
}

// home is the line where the search for a hash begins.
func home(hash uint64, lines int) int {
	return int(hash >> keptBits & (1<<homeBits - 1) * uint64(lines) >> homeBits) //nolint:gosec // less than lines
}

// line returns the line where the search for a hash begins.
func (t *table) line(hash uint64) *line {
	lines := t.of(hash).lines
	return &lines[home(hash, len(lines))]
}

// tag is what a line's tags have of a hash.
func tag(hash uint64) uint64 { return hash>>keptBits&0x7f | 0x80 }

// match returns a bit in the byte of each slot that may have the hash.
func (l *line) match(hash uint64) uint64 {
	differ := l.tags ^ tag(hash)*lowBits
	return (differ - lowBits) &^ differ & highBits
}

// first returns the first block in the line that may have the hash, or 0.
func (l *line) first(hash uint64) uint32 {
	for match := l.match(hash); match != 0; match &= match - 1 {
		if slot := l.slots[slotOf(match)]; (slot^hash)>>keptBits == 0 {
			return uint32(slot & idMask)
		}
	}
	return 0
}

// free returns a bit in the byte of each slot that is free.
func (l *line) free() uint64 { return ^l.tags & highBits }

// full reports whether a block may have passed the line, or will.
func (l *line) full() bool { return l.tags >= onePassed || l.free() == 0 }

// slotOf is the number of the first slot in whose byte a bit is set.
func slotOf(bytes uint64) int { return bits.TrailingZeros64(bytes) / 8 }

// probe walks the blocks that may be the one looked for. It is for who has the
// lock.
type probe struct {
	lines []line
	at    int // the line
	left  int // lines, and this one
	match uint64
	hash  uint64
}

// seek starts to look for what has the hash.
func (t *table) seek(hash uint64) probe {
	lines := t.of(hash).lines
	at := home(hash, len(lines))
	return probe{lines: lines, at: at, left: len(lines), match: lines[at].match(hash), hash: hash}
}

// next returns the next block that may be the one, or 0.
func (p *probe) next() uint32 {
	for {
		l := &p.lines[p.at]
		for p.match != 0 {
			slot := l.slots[slotOf(p.match)]
			p.match &= p.match - 1
			if (slot^p.hash)>>keptBits == 0 {
				return uint32(slot & idMask)
			}
		}
		if p.left--; l.tags < onePassed || p.left == 0 {
			return 0
		}
		p.at = (p.at + 1) % len(p.lines)
		p.match = p.lines[p.at].match(p.hash)
	}
}

// add enters a block that is not in the table.
func (t *table) add(hash uint64, id uint32) {
	t.count++
	s := t.of(hash)
	for s.live >= len(s.lines)*t.density.crowded {
		t.enlarge(hash, s)
		s = t.of(hash)
	}
	s.enter(hash, id)
}

// enter puts a block in, for which there is room.
func (s *segment) enter(hash uint64, id uint32) {
	s.live++
	at := home(hash, len(s.lines))
	for s.lines[at].free() == 0 {
		s.pass(&s.lines[at])
		at = (at + 1) % len(s.lines)
	}
	l := &s.lines[at]
	i := slotOf(l.free())
	s.put(&l.slots[i], l.slots[i]&passed|hash>>keptBits<<keptBits|uint64(id))
	l.tags |= tag(hash) << (8 * i)
}

// pass counts a block that has no room in the line.
func (s *segment) pass(l *line) {
	if l.tags < manyPassed {
		l.tags += onePassed
	}
	if last := &l.slots[len(l.slots)-1]; *last&passed == 0 {
		s.put(last, *last|passed)
	}
}

// unpass takes it back.
func (s *segment) unpass(l *line) {
	if l.tags >= manyPassed {
		return
	}
	if l.tags -= onePassed; l.tags < onePassed {
		last := &l.slots[len(l.slots)-1]
		s.put(last, *last&^passed)
	}
}

func (s *segment) put(slot *uint64, is uint64) {
	if s.shared {
		atomic.StoreUint64(slot, is)
		return
	}
	*slot = is
}

// remove takes out a block that is in the table.
func (t *table) remove(hash uint64, id uint32) {
	s := t.of(hash)
	t.count--
	s.leave(hash, id)
	if s.live < len(s.lines)*t.density.sparse && len(s.lines) > sizes[0] {
		t.replace(hash, s)
	}
}

// leave takes a block out.
func (s *segment) leave(hash uint64, id uint32) {
	s.live--
	at := home(hash, len(s.lines))
	for range s.lines {
		l := &s.lines[at]
		if i, in := l.find(hash, id); in {
			l.tags &^= 0xff << (8 * i)
			return
		}
		s.unpass(l)
		at = (at + 1) % len(s.lines)
	}
}

// find returns the slot that has the block.
func (l *line) find(hash uint64, id uint32) (slot int, in bool) {
	for match := l.match(hash); match != 0; match &= match - 1 {
		if i := slotOf(match); uint32(l.slots[i]&idMask) == id {
			return i, true
		}
	}
	return 0, false
}

// enlarge makes room in a full segment.
func (t *table) enlarge(hash uint64, s *segment) {
	if len(s.lines) == maxLines {
		t.split(hash, s)
		return
	}
	t.replace(hash, s)
}

// replace puts in a segment's place one of a size that suits it.
func (t *table) replace(hash uint64, s *segment) {
	n := t.segment(t.linesFor(s.live), s.depth)
	s.each(n.enter)
	t.install(hash, n)
	t.forget(s)
}

// linesFor returns the size of a segment for so many blocks.
func (t *table) linesFor(live int) int {
	for _, lines := range sizes {
		if live <= lines*t.density.roomy {
			return lines
		}
	}
	return maxLines
}

// split puts two segments in place of one.
func (t *table) split(hash uint64, s *segment) {
	if d := t.directory.Load(); 64-d.shift == s.depth {
		t.double(d)
	}
	var live [2]int
	s.each(func(hash uint64, _ uint32) { live[hash>>(63-s.depth)&1]++ })
	var halves [2]*segment
	for i := range halves {
		halves[i] = t.segment(t.linesFor(live[i]), s.depth+1)
	}
	s.each(func(hash uint64, id uint32) { halves[hash>>(63-s.depth)&1].enter(hash, id) })
	bit := uint64(1) << (63 - s.depth)
	t.install(hash&^bit, halves[0])
	t.install(hash|bit, halves[1])
	t.forget(s)
}

// install makes all of the directory that leads to a hash's segment lead to
// this one.
func (t *table) install(hash uint64, s *segment) {
	s.shared = t.shared
	d := t.directory.Load()
	width := uint64(1) << (64 - d.shift - s.depth)
	first := hash >> d.shift &^ (width - 1)
	for i := range width {
		d.segments[first+i].Store(s)
	}
}

func (t *table) double(d *directory) {
	n := &directory{shift: d.shift - 1, segments: make([]atomic.Pointer[segment], 2*len(d.segments))}
	for i := range n.segments {
		n.segments[i].Store(d.segments[i/2].Load())
	}
	t.directory.Store(n)
	t.memory += int64(len(d.segments)) * 8
}

// each calls do with what is kept of each block's hash.
func (s *segment) each(do func(hash uint64, id uint32)) {
	for i := range s.lines {
		l := &s.lines[i]
		for in := l.tags & highBits; in != 0; in &= in - 1 {
			slot := l.slots[slotOf(in)]
			do(slot, uint32(slot&idMask))
		}
	}
}
