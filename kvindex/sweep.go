package kvindex

import "math/bits"

// sweep goes around all blocks and takes from them the lanes that were given
// up. Those given up meanwhile wait for the next time around.
type sweep struct {
	lanes []lane   // none: it rests
	masks []uint64 // of them
	at    uint32   // the next block
}

// sweepSome looks at so many blocks, and reports whether there is more to do.
func (x *Index) sweepSome(blocks int) bool {
	s := &x.sweep
	if len(s.lanes) == 0 && !x.startSweep() {
		return false
	}
	end := x.end()
	for ; blocks > 0 && s.at < end; blocks-- {
		id := s.at
		s.at++
		b := x.slab.look(id)
		switch {
		case b == nil:
			s.at = (id/pageBlocks + 1) * pageBlocks
		case b.key.Load() != 0 && x.wipe(id):
			x.prune(id)
		}
	}
	if s.at >= end {
		x.idle = append(x.idle, s.lanes...)
		s.lanes = s.lanes[:0]
	}
	return len(s.lanes)+len(x.retired) > 0
}

// sweepAll does all there is to do.
func (x *Index) sweepAll() {
	for x.sweepSome(pageBlocks) {
		continue
	}
}

func (x *Index) startSweep() bool {
	if len(x.retired) == 0 {
		return false
	}
	s := &x.sweep
	s.lanes = append(s.lanes, x.retired...)
	x.retired = x.retired[:0]
	s.masks = append(s.masks[:0], make([]uint64, (len(x.lanes)+63)/64)...)
	for _, l := range s.lanes {
		s.masks[l.word()] |= l.bit()
		x.lanes[l].held = 0
	}
	s.at = 1
	return true
}

// wipe takes the lanes from a block, and reports whether it had any.
func (x *Index) wipe(id uint32) (had bool) {
	for i, mask := range x.sweep.masks {
		if mask == 0 {
			continue
		}
		words := x.slab.words(id, i)
		if words == nil {
			continue
		}
		held, rooted := words.held, words.rooted.Load()
		if (held|rooted)&mask == 0 {
			continue
		}
		had = true
		words.rooted.Store(rooted &^ mask)
		words.held = held &^ mask
		for gone := held & mask; gone != 0; gone &= gone - 1 {
			x.single(id, lane(i*64+bits.TrailingZeros64(gone))) //nolint:gosec // bounded by maxLanes
		}
	}
	return had
}
