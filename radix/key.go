package radix

import "math/bits"

// ChunkBytes is the length of prompt behind one fingerprint, and so the
// resolution of a match, in bytes. Where a message ends it can be less (see
// [Chunker.EndMessage]); the tree counts all chunks alike. 128: with half as much a
// prompt takes a third to a half longer to route, and hits no more (docs/constants.md).
const ChunkBytes = 128

// Key is a prompt as the tree sees it.
type Key struct {
	// Space is a fingerprint of what separates caches: prompts of different
	// spaces never match.
	Space uint64

	// Chunks are the fingerprints of the prompt's chunks, first to last. The
	// tree reads them during the call and keeps nothing of the slice.
	Chunks []uint64

	// Bytes is the length that Chunks count as: ChunkBytes for each, or less
	// if one short chunk is all there is.
	Bytes int
}

// root returns the fingerprint under which the prompt starts in the tree: its
// first chunk's, with the space folded in, so that each space has its own
// first edges and needs no node of its own.
func (k Key) root() uint64 {
	return fold(k.Space^0x9e3779b97f4a7c15, k.Chunks[0])
}

// missing returns by how many bytes the only chunk of a short prompt falls
// short of a whole one.
func (k Key) missing() uint8 {
	if len(k.Chunks) != 1 || k.Bytes <= 0 || k.Bytes >= ChunkBytes {
		return 0
	}
	return uint8(ChunkBytes - k.Bytes)
}

// fold mixes two fingerprints into one.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0xa0761d6478bd642f, b^0xe7037ed1a0b428db)
	return hi ^ lo
}

// covers returns the length of the prompt in bytes, as the tree counts it.
func (k Key) covers() int {
	return len(k.Chunks)*ChunkBytes - int(k.missing())
}
