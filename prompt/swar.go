package prompt

import (
	"encoding/binary"
	"math/bits"
)

// Eight bytes at a time. A body with escapes or control bytes in it would make
// bytes.IndexByte stop and start again every few bytes, and three calls of it over clean
// text, for the quote, the backslash and the control bytes, take longer than this.

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
	lows  = 0x7f7f7f7f7f7f7f7f
)

// ordinary has the high bit of each byte set that is neither a quote nor a backslash nor
// below 0x20. Flipping bit 1 puts the quote next to the control bytes, so that one
// comparison finds both.
func ordinary(x uint64) uint64 {
	low := x & lows
	return ((low^2*ones)+(0x7f-0x20)*ones)&((low^'\\'*ones)+0x7f*ones) | x
}

func word(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }

// first returns the index of the first byte whose high bit is not set, 8 if all are.
func first(x uint64) int { return bits.TrailingZeros64(^x&highs) >> 3 }

// skipOrdinary returns the index of the first quote, backslash or control byte from i on,
// or len(b).
func skipOrdinary(b []byte, i int) int {
	if i+8 <= len(b) {
		if n := first(ordinary(word(b, i))); n < 8 {
			return i + n
		}
		i += 8
	}
	for i+32 <= len(b) {
		w := b[i : i+32 : i+32]
		all := ordinary(word(w, 0)) & ordinary(word(w, 8)) & ordinary(word(w, 16)) & ordinary(word(w, 24))
		if all&highs != highs {
			break
		}
		i += 32
	}
	for i+8 <= len(b) {
		if n := first(ordinary(word(b, i))); n < 8 {
			return i + n
		}
		i += 8
	}
	for i < len(b) && b[i] >= 0x20 && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

// Where denseEscapes escapes take no more than denseBytes, as in code and in quoted JSON,
// skipCanonical goes on by blocks. Measured, that is faster from an escape every 25 bytes
// on, and 2.5 times as fast with one every 6.
const (
	denseEscapes = 8
	denseBytes   = 25 * denseEscapes
)

// skipCanonical returns the index of the first byte from i on that ends a string or that
// is rewritten in the key stream: a quote, a control byte, or the backslash of a \u or \/.
// It is len(b) if there is none, and may be the last byte if that is a backslash.
func skipCanonical(b []byte, i int) int {
	from, escapes := i, 0
	for {
		i = skipOrdinary(b, i)
		if i+1 >= len(b) || b[i] != '\\' || b[i+1] == 'u' || b[i+1] == '/' {
			return i
		}
		i += 2
		if escapes++; escapes < denseEscapes {
			continue
		}
		if i-from <= denseBytes {
			var found bool
			if i, found = skipBlocks(b, i); found {
				return i
			}
		}
		from, escapes = i, 0
	}
}

// blockLen is how many bytes skipBlocks looks at together: a bit of a word for each.
const blockLen = 64

// skipBlocks is skipCanonical for strings with many escapes. It takes the same time
// whatever is in a block. It gives up, without having found anything, at a block with
// hardly an escape and at the end, before an escape that reaches into the next block.
func skipBlocks(b []byte, i int) (int, bool) {
	carry := uint64(0) // 1 if a block's first byte is escaped by the one before
	for i+blockLen <= len(b) {
		slashes, ends, rewritten := classify((*[blockLen]byte)(b[i:]))
		if slashes&(slashes-1)|carry == 0 {
			return i, false
		}
		var escaped uint64
		escaped, carry = escapedBytes(slashes, carry)
		if stops := ends&^escaped | rewritten&escaped; stops != 0 {
			n := bits.TrailingZeros64(stops)
			if ends>>n&1 == 0 {
				n-- // to the backslash
			}
			return i + n, true
		}
		i += blockLen
	}
	return i - int(carry), false
}

// classify has a bit set for each byte of a block that is a backslash, that is a quote or
// a control byte, and that makes an escape which is rewritten.
func classify(b *[blockLen]byte) (slashes, ends, rewritten uint64) {
	for k := 0; k < blockLen; k += 8 {
		x := binary.LittleEndian.Uint64(b[k : k+8])
		low := x & lows
		slashes |= collect(((low^'\\'*ones)+0x7f*ones)|x) << k
		ends |= collect(((low^2*ones)+(0x7f-0x20)*ones)|x) << k
		rewritten |= collect(((low^'u'*ones)+0x7f*ones)&((low^'/'*ones)+0x7f*ones)|x) << k
	}
	return slashes, ends, rewritten
}

// collect makes eight bits of the high bits of x that are not set.
func collect(x uint64) uint64 { return (^x & highs) * 0x0002040810204081 >> 56 }

// escapedBytes has a bit set for each byte that follows an odd number of backslashes. The
// sum carries from the first backslash of a run to the byte behind its last, and thus tells
// runs that begin at odd places and end at even ones, or the other way round. carry is 1
// if the byte after the block is escaped.
func escapedBytes(slashes, carry uint64) (escaped, carryOut uint64) {
	const even = 0x5555555555555555
	slashes &^= carry
	follows := slashes<<1 | carry
	odd := slashes &^ even &^ follows
	sum, carryOut := bits.Add64(odd, slashes, 0)
	return (even ^ sum<<1) & follows, carryOut
}

// skipIDs returns the index of the first byte from i on that is no digit, comma or space
// (nor '-', '.' or '/', which stand between the comma and the digits), or len(b), and the
// number of spaces before it.
func skipIDs(b []byte, i int) (end, spaces int) {
	for i+8 <= len(b) {
		x := word(b, i)
		low := x & lows
		digits := (low + (0x80-',')*ones) &^ (low + (0x80-'9'-1)*ones) &^ x
		blanks := ^(((low ^ ' '*ones) + 0x7f*ones) | x) & highs
		spaces += bits.OnesCount64(blanks)
		if n := first(digits | blanks); n < 8 {
			return i + n, spaces - bits.OnesCount64(blanks>>(8*n))
		}
		i += 8
	}
	for i < len(b) && (',' <= b[i] && b[i] <= '9' || b[i] == ' ') {
		if b[i] == ' ' {
			spaces++
		}
		i++
	}
	return i, spaces
}
