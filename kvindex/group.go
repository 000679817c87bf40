package kvindex

import "fmt"

// Kinds of cache groups, as vLLM calls them. What a match needs of any other
// is not known.
const (
	FullAttention   = "full_attention"
	LatentAttention = "mla_attention" // is kept as full attention is
	SlidingWindow   = "sliding_window"
)

// groupOf returns the group an event tells of, and learns of it if it is new.
// It returns nil if the worker cannot be credited.
func (x *Index) groupOf(w *worker, e *Stored) *group {
	if w.blind != "" {
		return nil
	}
	g := w.group(e.Group)
	if g != nil && (e.BlockSize != w.size || g.changed(e)) {
		x.restart(w)
		g = nil
	}
	if g == nil {
		g = x.learn(w, e)
	}
	return g
}

func (w *worker) group(index int) *group {
	for _, g := range w.groups {
		if g.index == index {
			return g
		}
	}
	return nil
}

func (g *group) changed(e *Stored) bool {
	sliding := e.Kind == SlidingWindow
	return g.sliding != sliding || sliding && g.window != windowBlocks(e)
}

// windowBlocks returns how many blocks before a token a window reaches into.
func windowBlocks(e *Stored) int {
	return max(1, (e.Window-1+e.BlockSize-1)/e.BlockSize)
}

// learn makes a group known. The blocks that others of its kind hold are not
// held by the new one, so what they prove together starts from nothing.
func (x *Index) learn(w *worker, e *Stored) *group {
	if w.size != 0 && e.BlockSize != w.size {
		return x.blind(w, fmt.Sprintf("its cache groups have blocks of %d and of %d tokens", w.size, e.BlockSize))
	}
	g := &group{index: e.Group, lanes: noLanes}
	switch e.Kind {
	case "", FullAttention, LatentAttention:
	case SlidingWindow:
		if e.Window <= 0 {
			return x.blind(w, "it has a sliding window and does not say how long it is")
		}
		g.sliding, g.window = true, windowBlocks(e)
	default:
		return x.blind(w, fmt.Sprintf("it has a cache group of kind %.40q, whose matches follow rules of their own", e.Kind))
	}
	if len(w.groups) == maxGroups {
		return x.blind(w, fmt.Sprintf("it has more than %d cache groups", maxGroups))
	}
	x.disunite(w, g.sliding)
	w.size = e.BlockSize
	w.groups = append(w.groups, g)
	x.publish()
	return g
}

// disunite gives up the lanes that say what all groups of a kind hold.
func (x *Index) disunite(w *worker, sliding bool) {
	united := w.kind(sliding) > 1
	if sliding {
		if united && w.slide != noLane {
			x.retire(w.slide)
		}
		w.slide = noLane
		return
	}
	for t := range w.full {
		if united && w.full[t] != noLane {
			x.retire(w.full[t])
		}
	}
	w.full, w.plain = noLanes, false
}

// kind returns how many groups of a kind there are.
func (w *worker) kind(sliding bool) (n int) {
	for _, g := range w.groups {
		if g.sliding == sliding {
			n++
		}
	}
	return n
}

// window is how many blocks a match needs of the groups with windows: the
// longest window decides for all of them.
func (w *worker) window() (blocks int) {
	for _, g := range w.groups {
		if g.sliding {
			blocks = max(blocks, g.window)
		}
	}
	return blocks
}

// blind gives a worker no credit from now on.
func (x *Index) blind(w *worker, why string) *group {
	x.clear(w)
	w.blind = why
	x.counts.Blinded++
	x.publish()
	return nil
}

// laneOf returns the group's lane for a tier, or noLane if there are too many.
func (x *Index) laneOf(w *worker, g *group, t Tier) lane {
	if g.lanes[t] != noLane {
		return g.lanes[t]
	}
	l := x.newLane(w)
	g.lanes[t] = l
	if w.kind(g.sliding) == 1 {
		x.unite(w, g.sliding, t, l)
	}
	return l
}

// unite makes a lane say what all groups of a kind hold.
func (x *Index) unite(w *worker, sliding bool, t Tier, l lane) {
	switch {
	case !sliding:
		w.full[t] = l
		w.plain = w.full == [tiers]lane{w.full[Device], noLane, noLane, noLane}
	case t == Device:
		w.slide = l
	}
	x.publish()
}

// united returns the lane that says what all groups of a kind hold, making
// one if need be.
func (x *Index) united(w *worker, sliding bool, t Tier) lane {
	l := w.full[t]
	if sliding {
		l = w.slide
	}
	if l == noLane {
		if l = x.newLane(w); l != noLane {
			x.unite(w, sliding, t, l)
		}
	}
	return l
}
