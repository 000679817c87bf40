package enginesim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// naiveCache is the prefix cache as plainly as it can be said: blocks in the
// order in which they became free, and a search through all of them for a hash.
type naiveCache struct {
	blockSize int
	free      []*naiveBlock // next to be written first
	all       []*naiveBlock
	clock     int
	removed   []uint64
}

type naiveBlock struct {
	hash   uint64
	cached int // when it was put into the index, 0 if it is not there
	refs   int
}

type naiveLease struct {
	hashes []uint64
	blocks []*naiveBlock
	filled int
	most   int
}

func newNaiveCache(blockSize, total int) *naiveCache {
	c := &naiveCache{blockSize: blockSize}
	for range total {
		b := &naiveBlock{}
		c.all = append(c.all, b)
		c.free = append(c.free, b)
	}
	return c
}

// find returns the block with a hash that was cached first.
func (c *naiveCache) find(hash uint64) *naiveBlock {
	var found *naiveBlock
	for _, b := range c.all {
		if b.cached > 0 && b.hash == hash && (found == nil || b.cached < found.cached) {
			found = b
		}
	}
	return found
}

func (c *naiveCache) open(l *naiveLease, tokens, most int, others []*naiveLease) bool {
	var hits []*naiveBlock
	for i := 0; i < (tokens-1)/c.blockSize; i++ {
		b := c.find(l.hashes[i])
		if b == nil {
			break
		}
		hits = append(hits, b)
	}
	room := len(c.free)
	for _, other := range others {
		room -= other.most - len(other.blocks)
	}
	l.most = (most + c.blockSize - 1) / c.blockSize
	needed := l.most
	for _, b := range hits {
		if b.refs > 0 {
			needed--
		}
	}
	if needed > room {
		return false
	}
	for _, b := range hits {
		b.refs++
		c.free = slices.DeleteFunc(c.free, func(f *naiveBlock) bool { return f == b })
	}
	l.blocks, l.filled = hits, len(hits)
	c.hold(l, tokens)
	return true
}

func (c *naiveCache) hold(l *naiveLease, tokens int) {
	for len(l.blocks)*c.blockSize < tokens {
		b := c.free[0]
		c.free = c.free[1:]
		if b.cached > 0 {
			c.removed = append(c.removed, b.hash)
			b.cached = 0
		}
		b.refs = 1
		l.blocks = append(l.blocks, b)
	}
}

func (c *naiveCache) fill(l *naiveLease, tokens int) {
	c.hold(l, tokens)
	for ; (l.filled+1)*c.blockSize <= tokens; l.filled++ {
		c.clock++
		l.blocks[l.filled].hash, l.blocks[l.filled].cached = l.hashes[l.filled], c.clock
	}
}

func (c *naiveCache) close(l *naiveLease) {
	slices.Reverse(l.blocks)
	for _, b := range l.blocks {
		b.refs--
		if b.refs == 0 {
			c.free = append(c.free, b)
		}
	}
}

// reset is a fresh start: the order in which blocks were free before no longer
// shows once nothing is cached.
func (c *naiveCache) reset() {
	*c = naiveCache{blockSize: c.blockSize, free: c.all, all: c.all, removed: c.removed}
	for _, b := range c.all {
		*b = naiveBlock{}
	}
}

// tries is how often a property is tried: the long form is for LONG=1.
func tries(short, long int) int {
	if os.Getenv("LONG") == "1" {
		return long
	}
	return short
}

func TestCacheAgreesWithTheNaiveOne(t *testing.T) {
	for seed := range uint64(tries(200, 20000)) {
		checkCache(t, seed)
	}
}

// checkCache runs random sequences through both caches. Prompts are made of few
// different tokens, so that they share prefixes and come again.
func checkCache(t *testing.T, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	size, total := 1+rng.IntN(4), 4+rng.IntN(24)
	fast, naive := newBlockCache(size, total), newNaiveCache(size, total)
	var removed []uint64
	stored := 0
	fast.removed = func(hash uint64) { removed = append(removed, hash) }
	fast.stored = func(_ *lease, from, to int) { stored += to - from }

	type pair struct {
		fast           *lease
		naive          *naiveLease
		computed, most int
	}
	var open []*pair
	naives := func() (all []*naiveLease) {
		for _, p := range open {
			all = append(all, p.naive)
		}
		return all
	}
	for range 120 {
		at := fmt.Sprintf("seed %d", seed)
		switch what := rng.IntN(10); {
		case what < 4: // a new sequence
			ids := make([]uint32, 1+rng.IntN(size*total))
			for i := range ids {
				ids[i] = uint32(rng.IntN(2) * rng.IntN(2))
			}
			prompt := 1 + rng.IntN(len(ids))
			hashes := appendChain(nil, 0, ids, size)
			p := &pair{fast: &lease{hashes: hashes}, naive: &naiveLease{hashes: hashes}, most: len(ids)}
			ok := naive.open(p.naive, prompt, len(ids), naives())
			require.Equal(t, ok, fast.open(p.fast, prompt, len(ids)), at)
			if !ok {
				continue
			}
			require.Equal(t, p.naive.filled, p.fast.filled, "%s: hits", at)
			p.computed = p.fast.filled * size
			open = append(open, p)
		case what < 8 && len(open) > 0: // some more tokens are computed
			p := open[rng.IntN(len(open))]
			p.computed += rng.IntN(p.most - p.computed + 1)
			naive.fill(p.naive, p.computed)
			fast.fill(p.fast, p.computed)
		case what < 9 && len(open) > 0: // one is done, or broken off
			i := rng.IntN(len(open))
			naive.close(open[i].naive)
			fast.close(open[i].fast)
			open = slices.Delete(open, i, i+1)
		case what == 9 && rng.IntN(4) == 0:
			require.Equal(t, len(open) == 0, fast.reset(), "%s: reset", at)
			if len(open) == 0 {
				naive.reset()
				removed, stored, naive.removed = nil, 0, nil
			}
		}
		require.Equal(t, len(naive.free), fast.free(), "%s: free blocks", at)
		require.Equal(t, naive.removed, removed, "%s: evicted, in order", at)
		cached := 0
		for _, b := range naive.all {
			if b.cached > 0 {
				cached++
				require.Contains(t, fast.index, b.hash, at)
			}
		}
		require.Equal(t, cached, stored-len(removed), "%s: cached blocks", at)
		require.LessOrEqual(t, len(fast.blocks), total, "%s: bound", at)
		require.GreaterOrEqual(t, fast.free(), fast.promised, "%s: promises", at)
	}
	for _, p := range open {
		fast.close(p.fast)
	}
	require.Zero(t, fast.used())
	require.Zero(t, fast.promised)
}

func TestTailOfThePromptUsedLongestAgoIsEvictedFirst(t *testing.T) {
	c := newBlockCache(1, 6)
	var removed []uint64
	c.removed = func(hash uint64) { removed = append(removed, hash) }
	for _, hashes := range [][]uint64{{1, 2, 3}, {4, 5}} {
		l := &lease{hashes: hashes}
		require.True(t, c.open(l, len(hashes), len(hashes)))
		c.fill(l, len(hashes))
		c.close(l)
	}
	l := &lease{hashes: []uint64{6, 7, 8, 9, 10}}
	require.True(t, c.open(l, 5, 5))
	c.fill(l, 5)
	require.Equal(t, []uint64{3, 2, 1, 5}, removed)
}

func TestWhollyCachedPromptComputesItsLastBlockAgain(t *testing.T) {
	for _, test := range []struct{ tokens, hit int }{{1, 0}, {15, 0}, {16, 0}, {17, 16}, {32, 16}, {33, 32}, {48, 32}} {
		c := newBlockCache(16, 100)
		hashes := []uint64{1, 2, 3}
		first := &lease{hashes: hashes}
		require.True(t, c.open(first, 48, 48))
		c.fill(first, 48)
		c.close(first)
		again := &lease{hashes: hashes[:test.tokens/16]}
		require.True(t, c.open(again, test.tokens, test.tokens))
		require.Equal(t, test.hit, again.filled*16, "%d tokens", test.tokens)
	}
}

func TestPromisedBlocksAreNotGivenToOthers(t *testing.T) {
	c := newBlockCache(1, 4)
	first, second := &lease{hashes: []uint64{1}}, &lease{hashes: []uint64{2}}
	require.True(t, c.open(first, 1, 3), "1 token now, 3 in the end")
	require.False(t, c.open(second, 1, 2), "only 1 block is not promised")
	c.close(first)
	require.True(t, c.open(second, 1, 2))
}

func BenchmarkCacheHit(b *testing.B) {
	const size, tokens = 16, 8192
	c := newBlockCache(size, 32768)
	ids := make([]uint32, tokens)
	for i := range ids {
		ids[i] = uint32(i)
	}
	hashes := appendChain(nil, 0, ids, size)
	b.ReportAllocs()
	for b.Loop() {
		l := lease{hashes: hashes}
		c.open(&l, tokens, tokens+64)
		c.fill(&l, tokens)
		c.close(&l)
	}
}

func BenchmarkChain(b *testing.B) {
	ids := make([]uint32, 8192)
	hashes := make([]uint64, 0, len(ids)/16)
	b.SetBytes(int64(len(ids)) * 4)
	b.ReportAllocs()
	for b.Loop() {
		appendChain(hashes, 0, ids, 16)
	}
}
