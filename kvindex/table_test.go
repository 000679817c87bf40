package kvindex

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// crowd is a table and what should be in it.
type crowd struct {
	table *table
	in    map[uint32]uint64 // hashes
	kinds uint64
}

// hash returns one of few lines' hashes, which differ in what is kept.
func (c *crowd) hash(rng *rand.Rand) uint64 {
	return rng.Uint64N(c.kinds)<<(keptBits+homeBits-3) | rng.Uint64N(64)<<keptBits | rng.Uint64()<<56
}

func (c *crowd) has(id uint32, hash uint64) bool {
	for p := c.table.seek(hash); ; {
		switch p.next() {
		case id:
			return true
		case 0:
			return false
		}
	}
}

func TestATableHasWhatWasEnteredHoweverCrowdedItsLines(t *testing.T) {
	for _, d := range []density{loose, dense} {
		for _, kinds := range []uint64{1, 3, 8} {
			c := crowd{newSharedTable(d), map[uint32]uint64{}, kinds}
			rng := rand.New(rand.NewPCG(kinds, 1))
			for step := range 20_000 {
				id := 1 + rng.Uint32N(1500)
				if hash, in := c.in[id]; in && rng.IntN(3) > 0 {
					c.table.remove(hash, id)
					delete(c.in, id)
					require.False(t, c.has(id, hash))
				} else if !in {
					c.in[id] = c.hash(rng)
					c.table.add(c.in[id], id)
				}
				if step%500 == 0 {
					c.check(t)
				}
			}
			c.empty(t)
		}
	}
}

func (c *crowd) check(t *testing.T) {
	require.Equal(t, len(c.in), c.table.count)
	for id, hash := range c.in {
		require.True(t, c.has(id, hash))
	}
	memory := int64(len(c.table.directory.Load().segments)) * 8
	seen := map[*segment]bool{}
	for i := range c.table.directory.Load().segments {
		s := c.table.directory.Load().segments[i].Load()
		if !seen[s] {
			seen[s] = true
			memory += int64(len(s.lines))*lineBytes + segmentOverhead
			require.LessOrEqual(t, s.live, len(s.lines)*c.table.density.crowded)
		}
	}
	require.Equal(t, memory, c.table.bytes())
}

// empty takes everything out, after which no search goes beyond its first line
// unless more passed it than are counted.
func (c *crowd) empty(t *testing.T) {
	for id, hash := range c.in {
		c.table.remove(hash, id)
	}
	clear(c.in)
	c.check(t)
	for i := range c.table.directory.Load().segments {
		for _, l := range c.table.directory.Load().segments[i].Load().lines {
			if l.tags != manyPassed {
				require.Zero(t, l.tags)
				require.Zero(t, l.slots[len(l.slots)-1]&passed)
			}
		}
	}
}

func TestLookupsFindWhatEventsDoInCrowdedLines(t *testing.T) {
	x := New(Options{})
	rng := rand.New(rand.NewPCG(1, 2))
	keys := map[uint64]uint32{}
	for i := range uint64(400) {
		key := i<<32 | rng.Uint64N(2)<<(keptBits+homeBits-1)
		if id := x.create(max(key, 1), 0); id != 0 {
			keys[max(key, 1)] = id
		}
	}
	for key, id := range keys {
		require.Equal(t, id, x.find(key))
		require.Equal(t, id, x.have(key))
		require.Zero(t, x.find(key+1), "another key with the same hash in the table")
		require.Zero(t, x.have(key+1))
	}
	for key, id := range keys {
		x.prune(id)
		require.Zero(t, x.find(key))
		require.Zero(t, x.have(key))
	}
	require.Zero(t, x.Stats().Blocks)
}
