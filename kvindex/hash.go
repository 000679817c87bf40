package kvindex

import (
	"encoding/binary"
	"math/bits"

	"github.com/zeebo/xxh3"
)

// hasher makes a prompt's blocks into keys. The key of a block commits to its
// tokens, to all blocks before it, and to what else separates caches. A
// product of 64-bit words folded into 64 bits (as wyhash does it) takes a third
// of the time of xxh3 for a block of 16 tokens.
type hasher struct {
	secret [12]uint64
}

func newHasher(seed uint64) hasher {
	var h hasher
	for i := range h.secret {
		// splitmix64; odd, so that no word is zero.
		seed += 0x9e3779b97f4a7c15
		z := seed
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		h.secret[i] = (z ^ z>>31) | 1
	}
	return h
}

func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// root returns what a chain of blocks starts from: it separates block sizes,
// salts, adapters, and pairs from single tokens.
func (h *hasher) root(size int, adapter, salt string, units Units) uint64 {
	key := fold(uint64(size)<<8^uint64(units)^h.secret[8], h.secret[9]) //nolint:gosec // a size is positive
	if adapter != "" {
		key = fold(key^xxh3.HashStringSeed(adapter, h.secret[10]), h.secret[8])
	}
	if salt != "" {
		key = fold(key^xxh3.HashStringSeed(salt, h.secret[11]), h.secret[9])
	}
	return key
}

// next returns the key of a block that follows another. Zero is no key.
func (h *hasher) next(parent, block uint64) uint64 {
	return max(fold(parent^h.secret[8], block^h.secret[9]), 1)
}

// block returns the hash of one block's tokens.
func (h *hasher) block(tokens []uint32) (sum uint64) {
	for ; len(tokens) >= 16; tokens = tokens[16:] {
		sum = fold(sum^h.secret[10], h.secret[11]) ^ h.sixteen((*[16]uint32)(tokens))
	}
	for ; len(tokens) >= 2; tokens = tokens[2:] {
		sum = fold(sum^h.secret[0], two(tokens[0], tokens[1])^h.secret[1])
	}
	if len(tokens) == 1 {
		sum = fold(sum^h.secret[2], uint64(tokens[0])^h.secret[3])
	}
	return sum
}

// sixteen hashes 16 tokens by products that do not wait for each other.
func (h *hasher) sixteen(t *[16]uint32) uint64 {
	s := &h.secret
	a := fold(two(t[0], t[1])^s[0], two(t[2], t[3])^s[1])
	b := fold(two(t[4], t[5])^s[2], two(t[6], t[7])^s[3])
	c := fold(two(t[8], t[9])^s[4], two(t[10], t[11])^s[5])
	d := fold(two(t[12], t[13])^s[6], two(t[14], t[15])^s[7])
	return a ^ b ^ c ^ d
}

func two(a, b uint32) uint64 {
	return uint64(a) | uint64(b)<<32
}

// media folds into a block's hash an item whose placeholder touches it.
func (h *hasher) media(block uint64, m MediaKey) uint64 {
	block = fold(block^xxh3.HashStringSeed(m.Identifier, h.secret[10]), h.secret[8])
	return fold(block^uint64(int64(m.Offset)), h.secret[9]) //nolint:gosec // a negative offset is as good a word
}

// name spreads an engine's name for a block: some count from 1.
func (h *hasher) name(name uint64) uint64 {
	return fold(name^h.secret[6], h.secret[7])
}

// NameOf makes a name of one that an engine sends as bytes. A digest of 16 or
// more bytes gets the name that vLLM gives it where it sends integers: its
// last 8 bytes.
func NameOf(digest []byte) uint64 {
	if len(digest) >= 16 {
		return binary.BigEndian.Uint64(digest[len(digest)-8:])
	}
	return xxh3.Hash(digest)
}
