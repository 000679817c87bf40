package prompt

import "bytes"

// completionsField reads a member of a completions request that enters the prompt.
func (p *Prompt) completionsField(r *request) bool {
	s := &p.scan
	lo := len(p.Segments)
	switch string(s.key) {
	case "prompt":
		p.prompts()
		r.parts[partBody] = p.since(lo)
	case "prompt_embeds":
		name := s.keySpan
		if v := s.opaque(); v.form != absent {
			p.open(KindMedia, name)
			p.open(KindDigest, v)
		}
		r.parts[partEmbeds] = p.since(lo)
	case "suffix":
		if v := s.str(); v.size > 0 {
			p.add(KindSuffix, v)
		}
		r.parts[partSuffix] = p.since(lo)
	default:
		return false
	}
	return true
}

// prompts reads a bare prompt or a list of them, each a string or a list of token ids. A
// list of numbers is one prompt.
func (p *Prompt) prompts() {
	s := &p.scan
	if s.at('"') {
		p.add(KindText, s.text())
		return
	}
	if !s.at('[') {
		s.skip()
		return
	}
	for s.enter(); s.nextElement(); {
		switch {
		case p.full():
			s.skip()
		case s.at('"'):
			p.add(KindText, s.text())
		case s.at('['):
			s.pos++
			p.add(KindTokenIDs, s.ids())
			if s.at(']') {
				s.pos++
			}
		case isDigit(s):
			p.add(KindTokenIDs, s.ids())
		default:
			s.skip()
		}
	}
}

func isDigit(s *scanner) bool {
	return !s.ended() && (s.body[s.pos] == '-' || '0' <= s.body[s.pos] && s.body[s.pos] <= '9')
}

// ids reads numbers up to the end of the list that they are in. A list that has anything
// else in it cuts the body there.
func (s *scanner) ids() span {
	start, saved := s.pos, 0
	for {
		end, spaces := skipIDs(s.body, s.pos)
		s.pos = end
		saved += spaces
		if s.ended() {
			s.partial = true
			break
		}
		c := s.body[s.pos]
		if c == ']' {
			break
		}
		if isSpace(c) {
			saved++
		} else if c != '+' && c|0x20 != 'e' {
			s.cut(s.pos)
			break
		}
		s.pos++
	}
	if saved > 0 {
		return newSpan(loose, start, s.pos, saved)
	}
	return newSpan(compact, start, s.pos, 0)
}

// countIDs counts the numbers in a list without its brackets.
func countIDs(raw []byte) int {
	raw = bytes.TrimRight(raw, ", \n\r\t")
	if len(bytes.TrimLeft(raw, " \n\r\t")) == 0 {
		return 0
	}
	return bytes.Count(raw, []byte{','}) + 1
}
