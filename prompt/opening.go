package prompt

// Opening returns how many bytes at the beginning of the key stream tell a conversation
// from others: all that stands before the first message of a user (what steers the
// template, tools, system text), and of that message no more than most bytes. It ends
// where that message ends, so that it is the same in every turn of the conversation.
//
// If no user says anything the first message counts in place of that, and of a bare prompt
// its first bytes. The time it takes grows with the number of segments up to there, not
// with what they hold.
func (p *Prompt) Opening(most int) int {
	message := p.openingMessage()
	length := 0
	for i := range message {
		length += frameLen + p.Segments[i].Len()
	}
	for i := message; i < len(p.Segments) && most > 0; i++ {
		seg := p.Segments[i]
		if i > message && seg.Kind == KindRole {
			break
		}
		n := min(frameLen+seg.Len(), most)
		length += n
		most -= n
	}
	return length
}

// openingMessage returns the index of the segment with which the first message of a user
// begins, else the first message or bare prompt.
func (p *Prompt) openingMessage() int {
	first := len(p.Segments)
	for i, seg := range p.Segments {
		if seg.Kind == KindRole && p.isUser(seg) {
			return i
		}
		if first == len(p.Segments) && !seg.Kind.precedes() {
			first = i
		}
	}
	return first
}

// isUser reports whether a role is a user's.
func (p *Prompt) isUser(role Segment) bool {
	const user = "user"
	raw := p.Raw(role)
	if role.Canonical() || role.Len() != len(user) {
		return string(raw) == user
	}
	var room [len(user)]byte
	return string(appendCanonicalText(room[:0], raw)) == user
}

// precedes reports whether segments of this kind stand before all messages, if not in one.
func (k Kind) precedes() bool {
	switch k {
	case KindControl, KindArgument, KindValue, KindTool, KindFunction, KindToolType, KindDescription, KindParameters, KindStrict, KindToolField:
		return true
	default:
		return false
	}
}
