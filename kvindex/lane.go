package kvindex

import "slices"

// lane is a bit in every block's words. A worker has one for each tier and
// group that it stored something in, and a further one where a match needs
// several groups to hold a block. Giving up a lane forgets at once all that
// it says, and the bits are swept up afterwards.
type lane int32

const (
	noLane lane = -1

	// maxLanes bounds the width of a block, and how often workers can be
	// cleared before the sweep gets around.
	maxLanes = 4096

	laneBytes = 32
)

func (l lane) word() int   { return int(l) / 64 }
func (l lane) bit() uint64 { return 1 << (l % 64) }

type laneState struct {
	owner *worker // nil if retired or idle
	held  int     // blocks
}

// newLane gives a lane to a worker, or noLane if there are too many.
func (x *Index) newLane(w *worker) lane {
	if len(x.idle) == 0 && len(x.lanes) == maxLanes {
		x.sweepAll()
	}
	l, reused := lane(len(x.lanes)), len(x.idle) > 0 //nolint:gosec // bounded by maxLanes
	switch n := len(x.idle); {
	case n > 0:
		l = x.idle[n-1]
		x.idle = x.idle[:n-1]
		// Lookups that began before must not take the new owner's bits for
		// the old one's.
		x.reuses.Add(1)
	case l == maxLanes:
		return noLane
	default:
		x.lanes = append(x.lanes, laneState{})
	}
	x.lanes[l] = laneState{owner: w}
	w.lanes = append(w.lanes, l)
	w.mask()
	if reused {
		x.publish()
	}
	return l
}

// retire gives up a lane.
func (x *Index) retire(l lane) {
	w := x.lanes[l].owner
	w.lanes = slices.DeleteFunc(w.lanes, func(o lane) bool { return o == l })
	w.mask()
	x.lanes[l].owner = nil
	if x.lanes[l].held == 0 {
		x.idle = append(x.idle, l)
		return
	}
	x.retired = append(x.retired, l)
	x.signal()
}

// set makes the lane hold a block, and reports whether it did not before.
func (x *Index) set(id uint32, l lane) bool {
	w := x.slab.widen(id, l.word())
	if w.held&l.bit() != 0 {
		return false
	}
	w.held |= l.bit()
	x.lanes[l].held++
	return true
}

// unset makes the lane hold a block no longer. If the lane says what is
// rooted, a reroot must follow.
func (x *Index) unset(id uint32, l lane) {
	w := x.slab.words(id, l.word())
	if w == nil || w.held&l.bit() == 0 {
		return
	}
	w.held &^= l.bit()
	x.lanes[l].held--
}

// has reports whether the lane holds a block.
func (x *Index) has(id uint32, l lane) bool {
	if l == noLane {
		return false
	}
	w := x.slab.words(id, l.word())
	return w != nil && w.held&l.bit() != 0
}

// roots reports whether the lane holds a block and all before it.
func (x *Index) roots(id uint32, l lane) bool {
	if l == noLane {
		return false
	}
	w := x.slab.words(id, l.word())
	return w != nil && w.rooted.Load()&l.bit() != 0
}

// root says that the lane holds a block and all before it.
func (x *Index) root(id uint32, l lane) {
	w := x.slab.words(id, l.word())
	if rooted := w.rooted.Load(); rooted&l.bit() == 0 {
		w.rooted.Store(rooted | l.bit())
	}
}

// unroot takes it back.
func (x *Index) unroot(id uint32, l lane) {
	w := x.slab.words(id, l.word())
	if w == nil {
		return
	}
	if rooted := w.rooted.Load(); rooted&l.bit() != 0 {
		w.rooted.Store(rooted &^ l.bit())
	}
}
