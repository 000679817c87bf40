package kvindex

import (
	"math/bits"
	"slices"
)

// Layers with a sliding window need only the end of what they have seen. So a
// match of so many blocks needs all of them in the groups of full attention,
// and the last few in the groups with windows; it is the longest for which
// that is true.

// slide finds for the lanes of one word that have the same window how long a
// match is.
func (x *Index) slide(m *Matches, s *sizeView, c *chain, v *windowView) {
	m.grow(v.word)
	n := x.enterAll(m, s, c, v)
	x.windows(m, c, v, n)
	depths := m.depths[v.word*64:]
	looking := uint64(0)
	for i := n - 1; i >= 0; i-- {
		looking |= m.enter[i]
		done := looking & m.held[i]
		x.ends(c, depths, done, i+1)
		looking &^= done
	}
	x.ends(c, depths, looking, 0)
}

// enterAll says at which block each lane's match can end at most, and returns
// how many blocks that makes.
func (x *Index) enterAll(m *Matches, s *sizeView, c *chain, v *windowView) (most int) {
	m.enter = slices.Grow(m.enter[:0], c.usable)[:c.usable]
	clear(m.enter)
	for l := v.bits; l != 0; l &= l - 1 {
		m.depths[v.word*64+bits.TrailingZeros64(l)] = 0
	}
	for i := range s.workers {
		w := &s.workers[i]
		if w.slide == noLane || w.slide.word() != v.word || v.bits&w.slide.bit() == 0 {
			continue
		}
		depth := 0
		switch {
		case w.partial:
			depth = c.usable
		case w.full[Device] != noLane:
			depth = int(m.depths[w.full[Device]])
		}
		if depth > 0 {
			m.enter[depth-1] |= w.slide.bit()
			most = max(most, depth)
		}
	}
	return most
}

// windows computes who holds a whole window that ends at each of n blocks, by
// joining windows of half the length.
func (x *Index) windows(m *Matches, c *chain, v *windowView, n int) {
	m.held = slices.Grow(m.held[:0], n)[:n]
	for i := range n {
		m.held[i] = x.rooted(c, i, v.word)
	}
	for have := 1; have < v.window; {
		step := min(have, v.window-have)
		for i := n - 1; i >= step; i-- {
			m.held[i] &= m.held[i-step]
		}
		have += step
	}
}
