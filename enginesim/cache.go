package enginesim

import (
	"math/bits"
	"slices"
)

// none ends the lists that blocks form by index.
const none int32 = -1

// block is one page of the KV cache. Blocks refer to each other by index, so
// that the whole cache is one slice without pointers to scan.
type block struct {
	hash   uint64 // chain hash of what it holds, if cached
	refs   int32  // running sequences that hold it
	cached bool   // it is in the index and can be hit

	// Neighbours in the list of free blocks, if refs is 0.
	freePrev, freeNext int32

	// Ring of the blocks that hold the same thing, oldest first, if cached. The
	// last block of a prompt that is wholly cached is computed again, hence copies.
	copyPrev, copyNext int32
}

// blockCache is the prefix cache: blocks of tokens found by chain hash, freed
// blocks kept until their place is needed, least recently used first. It
// belongs to an engine, under that engine's lock.
type blockCache struct {
	blockSize int
	total     int              // blocks there are
	blocks    []block          // those ever used; grows up to total
	index     map[uint64]int32 // chain hash -> oldest copy

	freeHead, freeTail int32 // used before and free now; the head goes first
	freeListed         int   // length of that list
	promised           int   // free blocks that open leases may still take

	// Every block enters and leaves the index through one of these, at most one
	// call a block, so an event stream needs to look nowhere else. stored is told
	// blocks [from, to) of the lease.
	stored  func(l *lease, from, to int)
	removed func(hash uint64)
}

// lease is what one sequence holds of a cache: blocks for its tokens so far, and
// a promise for those it may still write.
type lease struct {
	hashes   []uint64 // chain hashes of its full blocks, as far as they are known
	blocks   []int32
	filled   int // leading blocks that are in the index
	promised int
	holder   *sequence // whose it is
}

func newBlockCache(blockSize, total int) *blockCache {
	return &blockCache{
		blockSize: blockSize,
		total:     total,
		index:     make(map[uint64]int32),
		freeHead:  none,
		freeTail:  none,
		stored:    func(*lease, int, int) {},
		removed:   func(uint64) {},
	}
}

// free is the number of blocks that no sequence holds, cached or not.
func (c *blockCache) free() int { return c.total - len(c.blocks) + c.freeListed }

// used is the number of blocks that sequences hold.
func (c *blockCache) used() int { return c.total - c.free() }

// open takes the blocks of a prompt of tokens tokens, cached ones as far as
// there are, and promises blocks for up to most tokens in all. At least the last
// token of a prompt is computed anew, so a block that ends with it is not taken.
// It reports false, and changes nothing, if the promise cannot be kept until
// other leases are closed.
func (c *blockCache) open(l *lease, tokens, most int) bool {
	need := c.blocksFor(most)
	if l.blocks == nil {
		l.blocks = make([]int32, 0, need)
	}
	shared := 0
	for _, hash := range l.hashes[:min(len(l.hashes), (tokens-1)/c.blockSize)] {
		i, ok := c.index[hash]
		if !ok {
			break
		}
		if c.blocks[i].refs > 0 {
			shared++
		}
		l.blocks = append(l.blocks, i)
	}
	if need-shared > c.free()-c.promised {
		l.blocks = l.blocks[:0]
		return false
	}
	for _, i := range l.blocks {
		if c.blocks[i].refs == 0 {
			c.unlist(i)
		}
		c.blocks[i].refs++
	}
	hits := len(l.blocks)
	l.filled = hits
	l.promised = need - hits
	c.promised += l.promised
	c.hold(l, tokens)
	return true
}

// hold takes the blocks that the first tokens tokens of a lease need.
func (c *blockCache) hold(l *lease, tokens int) {
	for len(l.blocks) < c.blocksFor(tokens) {
		l.blocks = append(l.blocks, c.take())
		l.promised--
		c.promised--
	}
}

// fill says that the first tokens tokens of a lease are computed: it takes the
// blocks for them and puts those into the index that are full.
func (c *blockCache) fill(l *lease, tokens int) {
	c.hold(l, tokens)
	from, to := l.filled, min(tokens/c.blockSize, len(l.hashes))
	if from >= to {
		return
	}
	for i := from; i < to; i++ {
		c.insert(l.blocks[i], l.hashes[i])
	}
	l.filled = to
	c.stored(l, from, to)
}

// close gives a lease's blocks back. The tail is freed first and so goes first
// when room is needed: what more prompts share is nearer to the root.
func (c *blockCache) close(l *lease) {
	for _, i := range slices.Backward(l.blocks) {
		c.blocks[i].refs--
		if c.blocks[i].refs == 0 {
			c.list(i)
		}
	}
	c.promised -= l.promised
	*l = lease{}
}

// reset forgets all that is cached. Like the real engine's it does nothing and
// reports false while a sequence holds a block.
func (c *blockCache) reset() bool {
	if c.used() > 0 {
		return false
	}
	c.blocks = nil
	clear(c.index)
	c.freeHead, c.freeTail, c.freeListed = none, none, 0
	return true
}

func (c *blockCache) blocksFor(tokens int) int { return (tokens + c.blockSize - 1) / c.blockSize }

// take returns a block to write to: one never used, else the one unused for
// longest, whose content is lost. Promises see to it that there is one.
func (c *blockCache) take() int32 {
	if len(c.blocks) < c.total {
		c.blocks = append(c.blocks, block{refs: 1})
		return int32(len(c.blocks) - 1) //nolint:gosec // at most maxBlocks
	}
	i := c.freeHead
	c.unlist(i)
	c.evict(i)
	c.blocks[i].refs = 1
	return i
}

// insert makes block i a hit for hash, behind the copies that are there.
func (c *blockCache) insert(i int32, hash uint64) {
	b := &c.blocks[i]
	b.hash, b.cached = hash, true
	first, ok := c.index[hash]
	if !ok {
		b.copyPrev, b.copyNext = i, i
		c.index[hash] = i
		return
	}
	last := c.blocks[first].copyPrev
	b.copyPrev, b.copyNext = last, first
	c.blocks[last].copyNext = i
	c.blocks[first].copyPrev = i
}

// evict takes block i out of the index, if it is in there.
func (c *blockCache) evict(i int32) {
	b := &c.blocks[i]
	if !b.cached {
		return
	}
	b.cached = false
	if b.copyNext == i {
		delete(c.index, b.hash)
	} else {
		c.blocks[b.copyPrev].copyNext = b.copyNext
		c.blocks[b.copyNext].copyPrev = b.copyPrev
		if c.index[b.hash] == i {
			c.index[b.hash] = b.copyNext
		}
	}
	c.removed(b.hash)
}

// list puts a block that nobody holds at the end of the free list.
func (c *blockCache) list(i int32) {
	b := &c.blocks[i]
	b.freePrev, b.freeNext = c.freeTail, none
	if c.freeTail == none {
		c.freeHead = i
	} else {
		c.blocks[c.freeTail].freeNext = i
	}
	c.freeTail = i
	c.freeListed++
}

// unlist takes a block out of the free list.
func (c *blockCache) unlist(i int32) {
	b := &c.blocks[i]
	if b.freePrev == none {
		c.freeHead = b.freeNext
	} else {
		c.blocks[b.freePrev].freeNext = b.freeNext
	}
	if b.freeNext == none {
		c.freeTail = b.freePrev
	} else {
		c.blocks[b.freeNext].freePrev = b.freePrev
	}
	c.freeListed--
}

// mix folds v into h: one multiplication, of which both halves are used.
func mix(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^0x9e3779b97f4a7c15, v^0xd1b54a32d192ed03)
	return (hi ^ lo) + 0x8cb92ba72f3d8dd7
}

// mixString folds a name into h.
func mixString(h uint64, s string) uint64 {
	for i := range len(s) {
		h = mix(h, uint64(s[i]))
	}
	return mix(h, uint64(len(s)))
}

// chain is the hash of a block: of its parent's and of its tokens.
func chain(parent uint64, tokens []uint32) uint64 {
	for _, id := range tokens {
		parent = mix(parent, uint64(id))
	}
	return parent
}

// appendChain appends the chain hashes of the full blocks of ids. root is the
// first one's parent.
func appendChain(hashes []uint64, root uint64, ids []uint32, blockSize int) []uint64 {
	for end := blockSize; end <= len(ids); end += blockSize {
		root = chain(root, ids[end-blockSize:end])
		hashes = append(hashes, root)
	}
	return hashes
}
