package kvindex

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"
)

// check requires that everything in the index agrees with everything else.
func check(t *testing.T, x *Index) {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	live, named := 0, 0
	held := make([]int, len(x.lanes))
	for id := uint32(1); id < uint32(len(x.slab.states))*pageBlocks; id++ {
		b := x.slab.look(id)
		if b == nil || b.key.Load() == 0 {
			if b != nil {
				for i := 0; i*64 < len(x.lanes); i++ {
					if w := x.slab.words(id, i); w != nil {
						same(t, 0, w.held|w.rooted.Load(), "a free block is held")
					}
				}
			}
			continue
		}
		live++
		if b.name != 0 {
			named++
			same(t, id, x.common(x.hash.name(b.name), b.name), "a name finds another block")
		}
		same(t, id, x.find(b.key.Load()), "a key finds another block")
		same(t, id, x.have(b.key.Load()), "a key finds another block, for events")
		same(t, true, b.child != 0 || x.heldByAny(id), "a block is kept for nothing")
		checkLinks(t, x, id, b)
		checkLanes(t, x, id, b, held)
	}
	require.Equal(t, live, x.slab.live)
	require.Equal(t, live, x.blocks.count)
	require.Equal(t, named, x.names.count)
	for h := range x.copies.extra {
		require.NotZero(t, x.slab.at(h.id).key.Load(), "a free block has copies")
		require.True(t, x.has(h.id, h.lane), "copies of nothing")
	}
	checkWorkers(t, x, held)
}

func checkLinks(t *testing.T, x *Index, id uint32, b *block) {
	if b.parent != 0 {
		require.NotZero(t, x.slab.at(b.parent).key.Load(), "a parent is free")
	}
	for child, prev := b.child, uint32(0); child != 0; {
		c := x.slab.at(child)
		same(t, id, c.parent, "a child has another parent")
		same(t, prev, c.prev, "siblings disagree")
		prev, child = child, c.next
	}
}

func checkLanes(t *testing.T, x *Index, id uint32, b *block, held []int) {
	for i := 0; i*64 < len(x.lanes); i++ {
		w := x.slab.words(id, i)
		if w == nil {
			continue
		}
		for l := w.held; l != 0; l &= l - 1 {
			held[i*64+bits.TrailingZeros64(l)]++
		}
	}
	for _, w := range x.workers {
		if !w.live {
			continue
		}
		same(t, max(x.level(w, b.parent), x.fastest(w, id)), x.level(w, id), "what is rooted is not what is held")
		same(t, x.has(id, w.slide), x.roots(id, w.slide), "what is seen is not what is held")
		if w.dialect != nil && w.dialect.name(id) != 0 {
			require.True(t, x.holds(w, id), "a name of what is not held")
		}
		if x.holds(w, id) {
			same(t, id, x.called(w, x.nameOf(w, id)), "a worker's name finds another block")
		}
	}
}

func checkWorkers(t *testing.T, x *Index, held []int) {
	dialects, waiting := int64(0), 0
	for _, w := range x.workers {
		dialects += w.dialect.bytes()
		waiting += len(w.pending.groups)
		for _, l := range w.lanes {
			require.Equal(t, w, x.lanes[l].owner)
			require.Equal(t, held[l], x.lanes[l].held)
		}
	}
	require.Equal(t, dialects, x.dialects)
	require.Equal(t, waiting, x.waiting)
	for _, l := range x.idle {
		require.Zero(t, held[l], "an idle lane holds something")
		require.Nil(t, x.lanes[l].owner)
	}
}

// same is require.Equal, a hundred times faster where it holds.
func same[T comparable](t *testing.T, want, got T, why string) {
	t.Helper()
	if want != got {
		require.Equal(t, want, got, why)
	}
}
