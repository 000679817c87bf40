package prompt

import "bytes"

// scanner walks over JSON. It never goes back and keeps no stack: values are found by
// where they begin and end, and nesting is counted.
//
// Where the body is malformed it is cut, so that it reads like one that ended there.
type scanner struct {
	body     []byte
	pos      int
	partial  bool   // the body ended early or was cut
	fresh    bool   // an object or array was just entered
	key      []byte // the last key, decoded
	keySpan  span
	wordRoom [48]byte // for words with escapes; every known word is shorter
}

func (s *scanner) at(c byte) bool { return s.pos < len(s.body) && s.body[s.pos] == c }

// ended reports whether the end of the body was reached: what was read last may lack
// something.
func (s *scanner) ended() bool { return s.pos >= len(s.body) }

// unsure reports whether the body ends before it is known whether v is there and all of it.
func (s *scanner) unsure(v span) bool {
	return s.ended() && (v.form == absent || int(v.end) == len(s.body))
}

func (s *scanner) raw(v span) []byte {
	if v.form == known {
		return wordBytes[v.start:v.end]
	}
	return s.body[v.start:v.end]
}

// cut ends the body at i.
func (s *scanner) cut(i int) {
	s.body = s.body[:i]
	s.pos = i
	s.partial = true
}

func (s *scanner) space() {
	for s.pos < len(s.body) && isSpace(s.body[s.pos]) {
		s.pos++
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// enter steps into the object or array that begins here.
func (s *scanner) enter() {
	s.pos++
	s.fresh = true
}

// more steps to the next member or element, and over the end of the object or array if
// there is none.
func (s *scanner) more(end byte) bool {
	s.space()
	fresh := s.fresh
	s.fresh = false
	if s.at(end) {
		s.pos++
		return false
	}
	if !fresh {
		if !s.at(',') {
			s.cut(s.pos)
			return false
		}
		s.pos++
		s.space()
	}
	if s.ended() {
		s.partial = true
		return false
	}
	return true
}

// nextKey steps to the value of an object's next member and sets key.
func (s *scanner) nextKey() bool {
	if !s.more('}') {
		return false
	}
	if !s.at('"') {
		s.cut(s.pos)
		return false
	}
	s.keySpan = s.text()
	s.key = s.word(s.keySpan)
	s.space()
	if !s.at(':') {
		s.cut(s.pos)
		return false
	}
	s.pos++
	s.space()
	if s.ended() {
		s.partial = true
		return false
	}
	return true
}

// word returns the text of a string that is compared with words known here. It is good
// until the next call.
func (s *scanner) word(v span) []byte {
	raw := s.raw(v)
	if v.form != escaped || int(v.size) > len(s.wordRoom) {
		return raw
	}
	return appendUnescaped(s.wordRoom[:0], raw)
}

// nextElement steps to an array's next element.
func (s *scanner) nextElement() bool { return s.more(']') }

func hasBackslash(b []byte) bool { return bytes.IndexByte(b, '\\') >= 0 }
