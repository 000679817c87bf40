package prompt

// batch sums up a list of prompts. An engine prefills each on its own, so only the first
// one's segments are kept and written to the key stream: two lists with the same prompts
// in another order have nothing in common that a stream of all could show, and whoever
// holds the first of a list was sent the others with it. The others are counted.
type batch struct {
	prompts          int
	text, ids, media int // of the others, as a Prompt has them
	bytes            int // of the others' key streams
}

// take counts the prompt whose segments begin at lo. If it is not the first, they go.
func (b *batch) take(p *Prompt, lo int) {
	if len(p.Segments) == lo {
		return
	}
	b.prompts++
	if b.prompts > 1 {
		b.drop(p, lo)
	}
}

// drop counts the segments from lo on as another prompt's and takes them away.
func (b *batch) drop(p *Prompt, lo int) {
	for _, seg := range p.Segments[lo:] {
		b.bytes += frameLen + seg.Len()
		switch {
		case seg.Kind.text():
			b.text += int(seg.size)
		case seg.Kind == KindMedia:
			b.media++
		case seg.Kind == KindTokenIDs:
			b.ids += countIDs(p.Raw(seg))
		}
	}
	p.Segments = p.Segments[:lo]
}

// prompts reads a prompt or a list of them, each by a call of one. A list of numbers is
// one prompt.
func (p *Prompt) prompts(b *batch, one func(*Prompt)) {
	s := &p.scan
	*b = batch{}
	lo := len(p.Segments)
	if !s.at('[') {
		one(p)
		b.take(p, lo)
		return
	}
	for s.enter(); s.nextElement(); {
		lo := len(p.Segments)
		switch {
		case p.full():
			s.skip()
		case isDigit(s):
			p.add(KindTokenIDs, s.ids())
		case s.at('['):
			p.listPrompt(one)
		default:
			one(p)
		}
		b.take(p, lo)
	}
}

// textPrompt reads a prompt that is text.
func textPrompt(p *Prompt) { p.add(KindText, p.scan.str()) }

// partPrompt reads a prompt that is text or an object as the parts of messages are.
func partPrompt(p *Prompt) {
	if p.scan.at('{') {
		p.part(0)
		return
	}
	textPrompt(p)
}

// listPrompt reads a prompt that is a list: of token ids, or of what one reads.
func (p *Prompt) listPrompt(one func(*Prompt)) {
	s := &p.scan
	s.pos++
	s.space()
	if s.at('"') || s.at('{') {
		for s.fresh = true; s.nextElement(); {
			if p.full() {
				s.skip()
			} else {
				one(p)
			}
		}
		return
	}
	if s.ended() {
		s.partial = true
		return
	}
	p.add(KindTokenIDs, s.ids())
	if s.at(']') {
		s.pos++
	}
}

func isDigit(s *scanner) bool {
	return !s.ended() && (s.body[s.pos] == '-' || '0' <= s.body[s.pos] && s.body[s.pos] <= '9')
}
