package kvindex

import (
	"math/bits"
	"slices"
	"time"
)

// Matches is the result of a Lookup. It is a buffer: use one again and again,
// but not from two goroutines at once. The zero Matches is empty.
type Matches struct {
	view   *view
	found  []found // by slot
	chains []chain // by number of view.sizes

	depths []int32 // by lane; valid where a lookup wrote
	held   []uint64
	enter  []uint64
}

// found is how much of the prompt a worker holds.
type found struct {
	tokens   [tiers]int32
	expected int32
}

// chain is the prompt as blocks of one size.
type chain struct {
	size   int
	tokens int
	keys   []uint64
	ids    []uint32 // of the blocks, where known
	from   uint32   // what the first block's would be if they were in a row
	inRow  bool     // they were where last looked
	usable int      // blocks that an engine can take from its cache
}

const (
	unknown = 0          // in ids: not looked for yet
	absent  = ^uint32(0) // there is no such block
)

// Held returns how many tokens of the prompt, from its start, the worker is
// proven to hold on its device. It is what the engine will report as cached:
// whole blocks, and never the last token, which engines always compute.
func (m *Matches) Held(w Worker) int { return m.HeldIn(w, Device) }

// HeldIn returns how many tokens of the prompt, from its start, the worker is
// proven to hold in a tier or a faster one. Of a worker with a sliding window
// it knows the device only.
func (m *Matches) HeldIn(w Worker, t Tier) int {
	if f := m.of(w); f != nil && t < tiers {
		return int(f.tokens[t])
	}
	return 0
}

// Expected returns how many tokens of the prompt, from its start, the worker is
// expected to hold soon, as prompts that begin so were sent to it a moment ago.
// It may be less than what is held.
func (m *Matches) Expected(w Worker) int {
	if f := m.of(w); f != nil {
		return int(f.expected)
	}
	return 0
}

func (m *Matches) of(w Worker) *found {
	if m.view == nil || w.generation == 0 || w.slot >= len(m.view.generations) || m.view.generations[w.slot] != w.generation {
		return nil
	}
	return &m.found[w.slot]
}

// lookupTries is how often a lookup begins again because a lane changed hands
// meanwhile, before it stops all events.
const lookupTries = 3

// Lookup finds for each worker how much of the prompt it holds. It allocates
// nothing once the buffer has the size of the prompt.
func (x *Index) Lookup(p *Prompt, now time.Time, m *Matches) {
	if !x.lookup(p, m) {
		x.mu.Lock()
		x.begin(p, m)
		x.walk(m)
		x.mu.Unlock()
	}
	x.expected.match(m, now)
}

func (x *Index) lookup(p *Prompt, m *Matches) bool {
	for range lookupTries {
		x.begin(p, m)
		if x.walk(m) {
			return true
		}
	}
	return false
}

// begin computes the keys of the prompt's blocks, for each size of blocks that
// there is.
func (x *Index) begin(p *Prompt, m *Matches) {
	m.view = x.view.Load()
	for len(m.chains) < len(m.view.sizes) {
		m.chains = append(m.chains, chain{})
	}
	for i := range m.view.sizes {
		m.chains[i].hash(&x.hash, p, m.view.sizes[i].size)
	}
}

func (c *chain) hash(h *hasher, p *Prompt, size int) {
	c.size, c.tokens = size, len(p.Tokens)
	c.keys = h.appendKeys(slices.Grow(c.keys[:0], len(p.Tokens)/size), p, size)
	c.usable = max(0, (len(p.Tokens)-1)/size)
}

// walk finds who holds the chains. It reports false if a lane changed hands
// meanwhile, so that what was found may be another worker's.
func (x *Index) walk(m *Matches) bool {
	v := m.view
	m.found = slices.Grow(m.found[:0], len(v.generations))[:len(v.generations)]
	clear(m.found)
	for i := range v.sizes {
		x.walkSize(m, &v.sizes[i], &m.chains[i])
	}
	return x.reuses.Load() == v.reuses
}

func (x *Index) walkSize(m *Matches, s *sizeView, c *chain) {
	c.ids = slices.Grow(c.ids[:0], len(c.keys))[:len(c.keys)]
	clear(c.ids)
	c.inRow = false
	if c.usable == 0 {
		return
	}
	for _, w := range s.words {
		x.narrow(m, c, w)
	}
	for i := range s.windows {
		x.slide(m, s, c, &s.windows[i])
	}
	for i := range s.workers {
		w := &s.workers[i]
		f := &m.found[w.slot]
		depth := x.depth(m, c, w)
		f.tokens[Device] = depth * int32(s.size) //nolint:gosec // a prompt is shorter
		for t := Host; t < tiers; t++ {
			if w.lower {
				depth = x.deeper(c, w, t, depth)
			}
			f.tokens[t] = depth * int32(s.size) //nolint:gosec // a prompt is shorter
		}
	}
}

// depth returns how many blocks the worker holds on its device.
func (x *Index) depth(m *Matches, c *chain, w *workerView) int32 {
	switch {
	case w.window > 0 && w.slide != noLane:
		return m.depths[w.slide]
	case w.window > 0 || w.full[Device] == noLane:
		return 0
	}
	return m.depths[w.full[Device]]
}

// narrow finds for each of 64 lanes how long a prefix of the chain it has
// rooted. What is rooted at one block is rooted at all before it, so the end
// can be found by halving, for all lanes at once: two ends cost as much as one
// until they part.
func (x *Index) narrow(m *Matches, c *chain, lanes laneMask) {
	m.grow(lanes.word)
	depths := m.depths[lanes.word*64:]
	last := c.usable - 1
	all := x.rooted(c, last, lanes.word) & lanes.bits
	x.ends(c, depths, all, last+1)
	rest := lanes.bits &^ all
	if rest == 0 {
		return
	}
	some := uint64(0)
	if last > 0 {
		some = x.rooted(c, 0, lanes.word) & rest
	}
	x.ends(c, depths, rest&^some, 0)

	// Each part's lanes end in it: they have its first block, not its last.
	type part struct {
		first, last int
		lanes       uint64
	}
	var parts [32]part
	parts[0] = part{0, last, some}
	for n := 1; n > 0; {
		n--
		p := parts[n]
		switch {
		case p.lanes == 0:
		case p.last-p.first == 1:
			x.ends(c, depths, p.lanes, p.last)
		default:
			middle := int(uint(p.first+p.last) / 2)
			have := x.rooted(c, middle, lanes.word) & p.lanes
			parts[n] = part{p.first, middle, p.lanes &^ have}
			parts[n+1] = part{middle, p.last, have}
			n += 2
		}
	}
}

func (m *Matches) grow(word int) {
	if need := (word + 1) * 64; len(m.depths) < need {
		m.depths = append(m.depths, make([]int32, need-len(m.depths))...)
	}
}

// ends says that lanes have so many blocks, and that the last of those was hit.
func (x *Index) ends(c *chain, depths []int32, lanes uint64, blocks int) {
	if lanes == 0 {
		return
	}
	if blocks > 0 {
		if id := c.ids[blocks-1]; id != absent {
			if b := x.slab.look(id); b != nil && b.key.Load() == c.keys[blocks-1] {
				b.touch()
			}
		}
	}
	for ; lanes != 0; lanes &= lanes - 1 {
		depths[bits.TrailingZeros64(lanes)] = int32(blocks) //nolint:gosec // a prompt has fewer
	}
}

// rooted returns one word of who holds the chain up to block i, or block i if
// the lane is of groups with windows.
func (x *Index) rooted(c *chain, i, word int) uint64 {
	id := c.ids[i]
	if id == unknown {
		id = x.locate(c, i)
		c.ids[i] = id
	}
	if id == absent {
		return 0
	}
	for {
		epoch := x.epoch.Load()
		b := x.slab.look(id)
		if b == nil || b.key.Load() != c.keys[i] {
			return 0
		}
		w := &b.words
		if word != 0 {
			if w = x.slab.words(id, word); w == nil {
				return 0
			}
		}
		rooted := w.rooted.Load()
		if b.key.Load() != c.keys[i] {
			return 0
		}
		if x.epoch.Load() == epoch {
			return rooted
		}
	}
}

// locate returns the number of block i of the chain, or absent. Blocks that one
// event stored are in a row more often than not, which spares a look into the
// table.
func (x *Index) locate(c *chain, i int) uint32 {
	at := uint32(i) //nolint:gosec // a prompt has fewer
	if c.inRow && x.is(c.from+at, c.keys[i]) {
		return c.from + at
	}
	id := x.find(c.keys[i])
	if id == 0 {
		return absent
	}
	c.inRow, c.from = id-at == c.from, id-at
	return id
}

// deeper returns how many blocks the worker holds in a tier or a faster one,
// of which so many in a faster one.
func (x *Index) deeper(c *chain, w *workerView, t Tier, depth int32) int32 {
	// All before have is held, missing is not.
	have, missing := int(depth), c.usable+1
	for missing-have > 1 {
		middle := int(uint(have+missing) / 2)
		if x.within(c, w, t, middle-1) {
			have = middle
		} else {
			missing = middle
		}
	}
	return int32(have) //nolint:gosec // a prompt has fewer
}

// within reports whether a worker holds a block and all before it in a tier or
// faster ones.
func (x *Index) within(c *chain, w *workerView, t Tier, block int) bool {
	for _, l := range w.full[:t+1] {
		if l != noLane && x.rooted(c, block, l.word())&l.bit() != 0 {
			return true
		}
	}
	return false
}
