package prompt

import "bytes"

// completionsField reads a member of a completions request that enters the prompt.
func (p *Prompt) completionsField(r *request) bool {
	s := &p.scan
	lo := len(p.Segments)
	switch string(s.key) {
	case "prompt":
		p.prompts(&r.first, textPrompt)
		r.parts[partBody] = p.since(lo)
	case "prompt_embeds":
		p.opaqueMedia()
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

// opaqueMedia reads a field whose value is shown to the model as it is.
func (p *Prompt) opaqueMedia() {
	name := p.scan.keySpan
	if v := p.scan.opaque(); v.form != absent {
		p.open(KindMedia, name)
		p.open(KindDigest, v)
	}
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
