package prompt

import (
	"encoding/binary"
	"unicode/utf8"
)

// hexDigits has the value of each hexadecimal digit, and notDigit for all other bytes.
var hexDigits = func() (t [256]uint32) {
	for i := range t {
		t[i] = notDigit
	}
	for i := range uint32(10) {
		t['0'+i] = i
	}
	for i := range uint32(6) {
		t['a'+i], t['A'+i] = 10+i, 10+i
	}
	return t
}()

// notDigit is larger than four digits, and so is what it is part of when shifted.
const notDigit = 1 << 16

// hex4 returns the value of the four digits that x begins with in memory, at least
// notDigit if one is none.
func hex4(x uint64) uint32 {
	return hexDigits[x&0xff]<<12 | hexDigits[x>>8&0xff]<<8 | hexDigits[x>>16&0xff]<<4 | hexDigits[x>>24&0xff]
}

// escapeU is how the escape of a rune begins in memory.
const escapeU = '\\' | 'u'<<8

// isWide reports whether an escape of r is one of six bytes for a rune beyond ASCII, as
// almost all are where a client escapes a whole language.
func isWide(r uint32) bool { return r-0x80 < 0xd800-0x80 || r-0xe000 < 0x2000 }

// skipWide steps over the escapes of runes beyond ASCII at i, and over the little there may
// be between them. It returns where it stopped, and how many bytes shorter the text is in
// the key stream. It is at i if no such escape is there.
func skipWide(b []byte, i int) (end, saved int) {
	for i+8 <= len(b) {
		x := word(b, i)
		if x&0xffff == escapeU {
			r := hex4(x >> 16)
			if !isWide(r) {
				break
			}
			_, n := utf8Of(r)
			saved += 6 - n
			i += 6
			continue
		}
		n := first(ordinary(x))
		i += n
		if n == 0 || n == 8 {
			break
		}
	}
	return i, saved
}

// utf8Of has the bytes of a rune beyond ASCII and below 0x10000 as they lie in memory, and
// how many they are.
func utf8Of(r uint32) (bytes uint32, n int) {
	bytes, n = 0x8080e0|r>>12|r>>6&0x3f<<8|r&0x3f<<16, 3
	if r < 0x800 {
		bytes, n = 0x80c0|r>>6|r&0x3f<<8, 2
	}
	return bytes, n
}

// notRune stands for a \u that no four digits follow; it is kept as it is.
const notRune rune = -1

// unescape reads the \u escape that b begins with: its rune and length in bytes. A half
// of a surrogate pair without the other is a rune of its own. open is set if bytes after
// the end of b could change that.
func unescape(b []byte) (r rune, n int, open bool) {
	if len(b) < 6 {
		return notRune, 2, hexPrefix(b[2:])
	}
	digits := hexOf(b[2:])
	if digits >= notDigit {
		return notRune, 2, false
	}
	r = rune(digits)
	if r&^0x3ff != 0xd800 {
		return r, 6, false
	}
	low := b[6:]
	if len(low) < 6 {
		return r, 6, lowSurrogatePrefix(low)
	}
	if low[0] != '\\' || low[1] != 'u' {
		return r, 6, false
	}
	if l := hexOf(low[2:]); l&^0x3ff == 0xdc00 {
		return 0x10000 + (r&0x3ff)<<10 + rune(l&0x3ff), 12, false
	}
	return r, 6, false
}

// hexOf is hex4 of the bytes that b begins with.
func hexOf(b []byte) uint32 { return hex4(uint64(binary.LittleEndian.Uint32(b))) }

// rewritable reads what skipCanonical stopped at, other than a quote: the rune that it
// stands for and its length. open is set if bytes after the end of b could change that.
func rewritable(b []byte) (r rune, n int, open bool) {
	switch {
	case b[0] != '\\':
		return rune(b[0]), 1, false
	case len(b) == 1:
		return '\\', 1, true
	case b[1] == 'u':
		return unescape(b)
	default:
		return rune(b[1]), 2, false
	}
}

func hexPrefix(b []byte) bool {
	for _, c := range b {
		if hexDigits[c] == notDigit {
			return false
		}
	}
	return true
}

// lowSurrogatePrefix reports whether b, too short for an escape, may grow into the second
// half of a surrogate pair.
func lowSurrogatePrefix(b []byte) bool {
	for i, c := range b {
		var ok bool
		switch i {
		case 0:
			ok = c == '\\'
		case 1:
			ok = c == 'u'
		case 2:
			ok = c|0x20 == 'd'
		case 3:
			ok = hexDigits[c]&^3 == 0xc
		default:
			ok = hexDigits[c] != notDigit
		}
		if !ok {
			return false
		}
	}
	return true
}

// shortEscapes has the letter of each control byte, quote and backslash that JSON has a
// two-byte escape for.
var shortEscapes = [128]byte{'\b': 'b', '\t': 't', '\n': 'n', '\f': 'f', '\r': 'r', '"': '"', '\\': '\\'}

// canonicalLen is the length of what appendCanonical appends.
func canonicalLen(r rune) int {
	switch {
	case r == notRune:
		return 2
	case r < 0x80:
		if shortEscapes[r] != 0 {
			return 2
		}
		if r < 0x20 {
			return 6
		}
		return 1
	case r < 0x800:
		return 2
	case r&^0x7ff == 0xd800:
		return 6
	case r < 0x10000:
		return 3
	default:
		return 4
	}
}

// appendCanonical appends r as it stands in the key stream: itself if it can stand in a
// JSON string, else its short escape, else \u and lower-case digits.
func appendCanonical(b []byte, r rune) []byte {
	switch {
	case r == notRune:
		return append(b, '\\', 'u')
	case r < 0x80 && shortEscapes[r] != 0:
		return append(b, '\\', shortEscapes[r])
	case r < 0x20 || r&^0x7ff == 0xd800:
		const digits = "0123456789abcdef"
		return append(b, '\\', 'u', digits[r>>12], digits[r>>8&15], digits[r>>4&15], digits[r&15])
	default:
		return utf8.AppendRune(b, r)
	}
}

// appendUnescaped appends the text that the inside of a JSON string stands for. What has
// no text, such as half a surrogate pair, is kept as it is written in the key stream.
func appendUnescaped(b, raw []byte) []byte {
	for i := 0; i < len(raw); {
		c := raw[i]
		if c != '\\' || i+1 == len(raw) {
			b = append(b, c)
			i++
			continue
		}
		c = raw[i+1]
		i += 2
		switch c {
		case 'b':
			b = append(b, '\b')
		case 't':
			b = append(b, '\t')
		case 'n':
			b = append(b, '\n')
		case 'f':
			b = append(b, '\f')
		case 'r':
			b = append(b, '\r')
		case '"', '\\', '/':
			b = append(b, c)
		case 'u':
			r, n, _ := unescape(raw[i-2:])
			if r == notRune || r&^0x7ff == 0xd800 {
				b = appendCanonical(b, r)
			} else {
				b = utf8.AppendRune(b, r)
			}
			i += n - 2
		default:
			b = append(b, '\\', c)
		}
	}
	return b
}
