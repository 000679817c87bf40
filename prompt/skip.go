package prompt

import "bytes"

// skip steps over the value here, looking at strings only for where they end.
func (s *scanner) skip() {
	switch {
	case s.at('"'):
		s.skipString()
	case s.at('{'), s.at('['):
		s.skipContainer()
	default:
		s.scalar()
	}
}

// skipString steps over the string here.
func (s *scanner) skipString() {
	from := s.pos + 1
	for {
		n := bytes.IndexByte(s.body[from:], '"')
		if n < 0 {
			s.cut(len(s.body))
			return
		}
		end := from + n
		slash := end
		for slash > from && s.body[slash-1] == '\\' {
			slash--
		}
		from = end + 1
		if (end-slash)%2 == 0 {
			s.pos = from
			return
		}
	}
}

func (s *scanner) skipContainer() {
	depth := 0
	for s.pos < len(s.body) {
		switch classes[s.body[s.pos]] {
		case quote:
			s.skipString()
			continue
		case opens:
			depth++
		case closes:
			depth--
			if depth == 0 {
				s.pos++
				return
			}
		}
		s.pos++
	}
	s.partial = true
}
