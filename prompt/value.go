package prompt

import (
	"math"
	"strconv"
)

// text reads the string that begins here. The span is without the quotes. If the body
// ends in it, an escape that may go on after the end is left off.
func (s *scanner) text() span {
	b := s.body
	start := s.pos + 1
	f, saved := plain, 0
	i := start
	for {
		i = skipCanonical(b, i)
		if i >= len(b) {
			break
		}
		if b[i] == '"' {
			s.pos = i + 1
			return newSpan(f, start, i, saved)
		}
		if end, less := skipWide(b, i); end > i {
			f = escaped
			saved += less
			i = end
			continue
		}
		r, n, open := rewritable(b[i:])
		if open {
			break
		}
		f = escaped
		saved += n - canonicalLen(r)
		i += n
	}
	s.cut(i)
	return newSpan(f, start, i, saved)
}

// newSpan is for body[start:end], which gets shorter by saved bytes when rewritten.
func newSpan(f form, start, end, saved int) span {
	size := end - start - saved
	return span{start: offset(start), end: offset(end), size: offset(min(size, math.MaxUint32)), form: f}
}

// offset narrows a position in the body, or a length, which maxBody keeps in range.
func offset(i int) uint32 {
	return uint32(i) //nolint:gosec // positions are below maxBody, sizes below six times that and capped
}

// str reads the value here if it is a string and steps over it if not.
func (s *scanner) str() span {
	if s.at('"') {
		return s.text()
	}
	s.skip()
	return span{}
}

// oneStr reads the value here if it is a string, or the first of a list.
func (s *scanner) oneStr() (v span) {
	s.one(func() { v = s.str() })
	return v
}

// one has the value here read, or the first of a list and the others stepped over.
func (s *scanner) one(read func()) {
	if !s.at('[') {
		read()
		return
	}
	first := true
	for s.enter(); s.nextElement(); first = false {
		if first {
			read()
		} else {
			s.skip()
		}
	}
}

// value reads the value here. A number or literal that the body ends in is absent.
func (s *scanner) value() span {
	switch {
	case s.at('"'):
		return s.text()
	case s.at('{'), s.at('['):
		return s.container()
	default:
		return s.scalar()
	}
}

// json reads the value here with the quotes that are part of it. Null is absent.
func (s *scanner) json() span {
	v := s.value()
	switch v.form {
	case plain, escaped:
		return s.quoted(v)
	case scalar:
		if s.isNull(v) {
			return span{}
		}
	}
	return v
}

func (s *scanner) isNull(v span) bool { return string(s.raw(v)) == "null" }

// quoted makes a string that was just read a JSON value.
func (s *scanner) quoted(v span) span {
	v.start--
	v.size++
	if int(v.end) < s.pos {
		v.end++
		v.size++
	}
	if v.form == escaped {
		v.form = loose
	} else {
		v.form = compact
	}
	return v
}

// classes of bytes outside of strings
const (
	other uint8 = iota
	space
	quote
	opens
	closes
)

var classes = [256]uint8{
	' ': space, '\n': space, '\r': space, '\t': space, '"': quote,
	'{': opens, '[': opens, '}': closes, ']': closes,
}

// container reads the object or array that begins here.
func (s *scanner) container() span {
	start, saved, depth := s.pos, 0, 0
	form := compact
	for s.pos < len(s.body) {
		switch classes[s.body[s.pos]] {
		case quote:
			v := s.text()
			if v.form == escaped {
				form = loose
				saved += int(v.end) - int(v.start) - int(v.size)
			}
			continue
		case space:
			form = loose
			saved++
		case opens:
			depth++
		case closes:
			depth--
			if depth == 0 {
				s.pos++
				return newSpan(form, start, s.pos, saved)
			}
		}
		s.pos++
	}
	s.partial = true
	return newSpan(form, start, len(s.body), saved)
}

// scalar reads the number or literal that begins here.
func (s *scanner) scalar() span {
	start := s.pos
	for s.pos < len(s.body) && isScalar(s.body[s.pos]) {
		s.pos++
	}
	if s.ended() {
		s.partial = true
		return span{}
	}
	if s.pos == start {
		s.cut(start)
		return span{}
	}
	return newSpan(scalar, start, s.pos, 0)
}

func isScalar(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' || c == '-' || c == '+' || c == '.'
}

// boolean reads the value here and reports whether it is true.
func (s *scanner) boolean() bool { return string(s.raw(s.value())) == "true" }

// integer reads the value here if it is a number of at least low, and returns without if
// not. Numbers too large for 32 bits come out as the largest that is not.
func (s *scanner) integer(low, without int) int {
	v := s.value()
	if v.form != scalar || v.end-v.start > 32 {
		return without
	}
	f, err := strconv.ParseFloat(string(s.raw(v)), 64)
	if err != nil || f != math.Trunc(f) || f < float64(low) {
		return without
	}
	return int(min(f, math.MaxInt32))
}

// member reads the value here and returns the string that it has under key, if it is an
// object.
func (s *scanner) member(key string) (v span) {
	if !s.at('{') {
		s.skip()
		return v
	}
	for s.enter(); s.nextKey(); {
		if string(s.key) == key {
			v = s.str()
		} else {
			s.skip()
		}
	}
	return v
}

// opaque reads a value that is digested as JSON and may be very long. A value that the body
// ends in is absent, as are null and a string without content.
func (s *scanner) opaque() span {
	if !s.at('"') {
		v := s.json()
		if s.ended() {
			return span{}
		}
		return v
	}
	start := s.pos
	s.skipString()
	if s.ended() || s.pos == start+2 {
		return span{}
	}
	f := compact
	if hasBackslash(s.body[start:s.pos]) {
		f = loose
	}
	return newSpan(f, start, s.pos, 0)
}

// opaqueMember reads the object here and returns the value that it has under key.
func (s *scanner) opaqueMember(key string) (v span) {
	for s.enter(); s.nextKey(); {
		if string(s.key) == key {
			v = s.opaque()
		} else {
			s.skip()
		}
	}
	return v
}
