package radix

import (
	"cmp"
	"slices"

	"github.com/zeebo/xxh3"
)

const (
	// maxChunks bounds what a Chunker takes in: 64 MiB of prompt, beyond any
	// context window. What follows is ignored; a prefix is still a prefix.
	maxChunks = 64 << 20 / ChunkBytes

	// maxIdleChunks is the longest slice that outlives a Reset: 128 KiB, the
	// fingerprints of a 2 MiB prompt.
	maxIdleChunks = 2 << 20 / ChunkBytes
)

// Chunker turns a prompt into a [Key]. It is an [io.Writer] and an
// [io.StringWriter]; how the prompt is cut into writes does not matter. Where
// messages end does, if it is told by EndMessage. The zero Chunker is ready and
// has seed 0. It must not be used by two goroutines at once.
type Chunker struct {
	seed   uint64
	chunks []uint64
	shorts []short
	filled int // bytes in part
	part   [ChunkBytes]byte
}

// short is a chunk that a message's end cut short.
type short struct {
	chunks  int // up to it, and with it
	missing int // bytes that these chunks fall short of whole ones
}

// NewChunker returns an empty Chunker. Keys match only if made with the same
// seed: draw one at random per process, or share a secret one among routers
// which are to agree. A seed known to clients lets them forge collisions.
func NewChunker(seed uint64) *Chunker {
	return &Chunker{seed: seed}
}

// Write takes in more of the prompt. It never fails.
func (c *Chunker) Write(p []byte) (int, error) {
	taken := len(p)
	if c.filled > 0 {
		n := copy(c.part[c.filled:], p)
		c.filled += n
		p = p[n:]
		if c.filled < ChunkBytes {
			return taken, nil
		}
		c.add(xxh3.HashSeed(c.part[:], c.seed))
		c.filled = 0
	}
	// Whole chunks are hashed where they are.
	for len(p) >= ChunkBytes {
		c.add(xxh3.HashSeed(p[:ChunkBytes], c.seed))
		p = p[ChunkBytes:]
	}
	c.filled = copy(c.part[:], p)
	return taken, nil
}

// WriteString is Write without the need to copy a string.
func (c *Chunker) WriteString(s string) (int, error) {
	taken := len(s)
	if c.filled > 0 {
		n := copy(c.part[c.filled:], s)
		c.filled += n
		s = s[n:]
		if c.filled < ChunkBytes {
			return taken, nil
		}
		c.add(xxh3.HashSeed(c.part[:], c.seed))
		c.filled = 0
	}
	for len(s) >= ChunkBytes {
		c.add(xxh3.HashStringSeed(s[:ChunkBytes], c.seed))
		s = s[ChunkBytes:]
	}
	c.filled = copy(c.part[:], s)
	return taken, nil
}

func (c *Chunker) add(fingerprint uint64) {
	if len(c.chunks) < maxChunks {
		c.chunks = append(c.chunks, fingerprint)
	}
}

// EndMessage ends the current chunk where a message ends. What follows begins a
// new one, so that a conversation which goes on has the same chunks as before
// and some more.
func (c *Chunker) EndMessage() {
	if c.filled == 0 || len(c.chunks) == maxChunks {
		return
	}
	c.add(xxh3.HashSeed(c.part[:c.filled], c.seed))
	missing := ChunkBytes - c.filled
	if n := len(c.shorts); n > 0 {
		missing += c.shorts[n-1].missing
	}
	c.shorts = append(c.shorts, short{len(c.chunks), missing})
	c.filled = 0
}

// Length returns the bytes of the prompt behind the first bytes of a key, as
// [Matches.Bytes] counts them: there a chunk that was cut short counts whole.
func (c *Chunker) Length(bytes int) int {
	chunks := (bytes + ChunkBytes - 1) / ChunkBytes
	i, found := slices.BinarySearchFunc(c.shorts, chunks, func(s short, n int) int { return cmp.Compare(s.chunks, n) })
	if !found {
		i--
	}
	if i < 0 {
		return bytes
	}
	return chunks*ChunkBytes - c.shorts[i].missing
}

// Key returns the key of what was written since the last Reset. A part of a
// chunk at the end is left out, unless it is all there is: then it is the
// only fingerprint, so that equal short prompts match. The key's chunks are
// the Chunker's own and valid until the next Write or Reset.
func (c *Chunker) Key(space uint64) Key {
	if len(c.chunks) == 1 && len(c.shorts) == 1 {
		return Key{Space: space, Chunks: c.chunks, Bytes: ChunkBytes - c.shorts[0].missing}
	}
	if len(c.chunks) > 0 {
		return Key{Space: space, Chunks: c.chunks, Bytes: len(c.chunks) * ChunkBytes}
	}
	if c.filled == 0 {
		return Key{Space: space}
	}
	c.chunks = append(c.chunks, xxh3.HashSeed(c.part[:c.filled], c.seed))
	k := Key{Space: space, Chunks: c.chunks, Bytes: c.filled}
	c.chunks = c.chunks[:0] // there may be more to come
	return k
}

// Reset forgets the prompt and keeps the buffer for the next one, unless it
// grew very large.
func (c *Chunker) Reset() {
	c.filled = 0
	c.chunks, c.shorts = c.chunks[:0], c.shorts[:0]
	if cap(c.chunks) > maxIdleChunks {
		c.chunks = nil
	}
	if cap(c.shorts) > maxIdleChunks {
		c.shorts = nil
	}
}
