package prompt

import "unicode/utf8"

// hexDigit has the value of each hexadecimal digit and -1 for all other bytes.
var hexDigit = func() (t [256]int8) {
	for i := range t {
		t[i] = -1
	}
	for i := range 10 {
		t['0'+i] = int8(i)
	}
	for i := range 6 {
		t['a'+i], t['A'+i] = int8(10+i), int8(10+i)
	}
	return t
}()

const hexDigits = "0123456789abcdef"

// hex4 returns the value of the four digits that b begins with, or -1.
func hex4(b []byte) rune {
	_ = b[3]
	v := int32(hexDigit[b[0]])<<12 | int32(hexDigit[b[1]])<<8 | int32(hexDigit[b[2]])<<4 | int32(hexDigit[b[3]])
	return max(v, -1)
}

// wide reads the \u escape that b begins with if it is one of six bytes for a rune beyond
// ASCII, as almost all are where a client escapes a whole language. It is 0 if not.
func wide(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0
	}
	r := hex4(b[2:])
	if r < 0x80 || r&^0x7ff == 0xd800 {
		return 0
	}
	return r
}

// wideSaved is by how many bytes the key stream is shorter than the escape that wide read.
func wideSaved(r rune) int {
	if r < 0x800 {
		return 4
	}
	return 3
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
	r = hex4(b[2:])
	if r < 0 {
		return notRune, 2, false
	}
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
	if l := hex4(low[2:]); l&^0x3ff == 0xdc00 {
		return 0x10000 + (r&0x3ff)<<10 + l&0x3ff, 12, false
	}
	return r, 6, false
}

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
		if hexDigit[c] < 0 {
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
			ok = hexDigit[c] >= 0xc
		default:
			ok = hexDigit[c] >= 0
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
		return append(b, '\\', 'u', hexDigits[r>>12], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
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
