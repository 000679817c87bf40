package radix

import "math/bits"

// Matches is the result of a Match. It is a buffer: use one again and again,
// but not from two goroutines at once. The zero Matches is empty.
type Matches struct {
	generations []uint32 // of the slots, at the time of the match
	found       []found  // by slot; valid where present has a bit
	present     []uint64
	alive       []uint64 // who still follows the descent
}

// found is how much of the prompt a worker holds.
type found struct {
	bytes  int
	shared bool
}

// Bytes returns how many bytes of the prompt, from its start, the worker is
// believed to hold. A chunk that a message's end cut short counts whole; see
// [Chunker.Length].
func (m *Matches) Bytes(w Worker) int {
	return m.of(w).bytes
}

// Shared reports whether the worker's match ended on a trunk, what many prompts
// start with, rather than at the end of one earlier prompt. It is true if the
// prompt leaves a stored one halfway (farther from its end than
// [Options.Rewrite]), if more than one different prompt passed
// the place, and if nothing matched. It is false for the next turn of a
// conversation: other workers gain little from a copy of that.
func (m *Matches) Shared(w Worker) bool {
	return m.of(w).shared
}

// nothing is found of a worker that holds nothing.
var nothing = found{shared: true}

func (m *Matches) of(w Worker) *found {
	slot := uint(w.slot)
	if slot >= uint(len(m.generations)) || m.generations[slot] != w.generation || m.present[slot/64]>>(slot%64)&1 == 0 {
		return &nothing
	}
	return &m.found[slot]
}

// Match finds for each worker how much of the prompt it holds.
func (t *Tree) Match(k Key, m *Matches) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	m.begin(t)
	if len(k.Chunks) == 0 {
		return
	}
	var (
		parent uint32
		above  *node
		bytes  int
		first  = k.root()
		rest   = k.Chunks[1:]
	)
	for {
		id := t.index.find(parent, first)
		if id == 0 {
			break
		}
		n := t.nodes.at(id)
		if !m.follow(&t.crowds, n, above, bytes) {
			return
		}
		same := t.edges.common(n, rest)
		if same < int(n.rest) {
			m.end(found{bytes + (1+same)*ChunkBytes, !t.rewritten(n, int(n.rest)-same)})
			return
		}
		bytes += n.bytes()
		above = n
		if same == len(rest) {
			break
		}
		parent, first, rest = id, rest[same], rest[same+1:]
	}
	if above != nil {
		m.end(found{bytes, above.shared()})
	}
}

// shared reports whether more than one prompt passed through or ended at the
// end of the node. A child does as well as a second use: it says that a
// prompt went on from here which a match that ends here did not follow.
func (n *node) shared() bool {
	return n.uses > 1 || n.all.below > 0
}

// rewritten reports whether a match that leaves n's edge so many chunks before
// its end leaves only what a next turn may have written anew: the end of the one
// prompt that was stored there.
func (t *Tree) rewritten(n *node, left int) bool {
	return left <= t.rewrite && n.uses == 1 && n.all.below == 0
}

// begin makes every live worker follow.
func (m *Matches) begin(t *Tree) {
	m.generations = append(m.generations[:0], t.generations...)
	m.alive = append(m.alive[:0], t.live...)
	m.present = append(m.present[:0], t.live...)
	clear(m.present)
	if len(m.found) < len(t.workers) {
		m.found = make([]found, cap(t.workers))
	}
}

// follow lets only the holders of n go on, and reports whether there are any.
// Who does not hold n ends above it, bytes into the prompt.
func (m *Matches) follow(c *crowds, n, above *node, bytes int) bool {
	some := uint64(0)
	for i, alive := range m.alive {
		holders := c.word(n, i)
		if gone := alive &^ holders; gone != 0 && above != nil {
			m.record(i, gone, found{bytes, above.shared()})
		}
		m.alive[i] = alive & holders
		some |= m.alive[i]
	}
	return some != 0
}

// end records the same for all who followed until here.
func (m *Matches) end(f found) {
	for i, alive := range m.alive {
		m.record(i, alive, f)
	}
}

func (m *Matches) record(word int, slots uint64, f found) {
	m.present[word] |= slots
	of := m.found[word*64:]
	for ; slots != 0; slots &= slots - 1 {
		of[bits.TrailingZeros64(slots)] = f
	}
}
