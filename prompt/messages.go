package prompt

import "bytes"

// chatField reads a member of a chat completions request that enters the prompt.
func (p *Prompt) chatField(r *request) bool {
	lo := len(p.Segments)
	switch string(p.scan.key) {
	case "messages":
		p.messages()
		r.parts[partBody] = p.since(lo)
	case "tools":
		p.tools(KindTool)
		r.parts[partTools] = p.since(lo)
	case "functions":
		p.tools(KindFunction)
		r.parts[partFunctions] = p.since(lo)
	default:
		return false
	}
	return true
}

// messagesField reads a member of an Anthropic messages request that enters the prompt.
func (p *Prompt) messagesField(r *request) bool {
	lo := len(p.Segments)
	switch string(p.scan.key) {
	case "messages":
		p.messages()
		r.parts[partBody] = p.since(lo)
	case "tools":
		p.tools(KindTool)
		r.parts[partTools] = p.since(lo)
	case "system":
		p.system()
		r.parts[partSystem] = p.since(lo)
	default:
		return false
	}
	return true
}

// system reads the system text of an Anthropic request. The key's own text is the role of
// a message, so that the stream is that of the same conversation in the OpenAI form.
func (p *Prompt) system() {
	s := &p.scan
	lo := len(p.Segments)
	p.open(KindRole, s.keySpan)
	list := s.at('[')
	p.content(0)
	if list {
		p.dropAttribution(lo + 1)
		p.dropLoneEmpty(lo + 1)
	}
	if len(p.Segments) == lo+1 {
		p.Segments = p.Segments[:lo]
	}
}

// attribution begins a block of system text by which Claude Code tells its maker about
// the request. It has a checksum of the request in it, so engines leave it out of the
// prompt: it would make every prompt a new one.
const attribution = "x-anthropic-billing-header"

// dropAttribution takes away the blocks from lo on that engines leave out.
func (p *Prompt) dropAttribution(lo int) {
	n := lo
	for _, seg := range p.Segments[lo:] {
		if seg.Kind != KindText || !p.isAttribution(seg) {
			p.Segments[n] = seg
			n++
		}
	}
	p.Segments = p.Segments[:n]
}

// isAttribution reports whether a block of system text is an attribution, or may be one
// when the body goes on.
func (p *Prompt) isAttribution(seg Segment) bool {
	s := &p.scan
	text := p.Raw(seg)
	text = text[:min(len(text), len(`\u0000`)*len(attribution))]
	if seg.form == escaped {
		lo := len(p.decoded)
		p.decoded = appendCanonicalText(p.decoded, text)
		text = p.decoded[lo:]
		p.decoded = p.decoded[:lo]
	}
	if s.ended() && int(seg.end) == len(s.body) && len(text) < len(attribution) {
		return bytes.HasPrefix([]byte(attribution), text)
	}
	return bytes.HasPrefix(text, []byte(attribution))
}

// messages reads the list of messages.
func (p *Prompt) messages() {
	s := &p.scan
	if !s.at('[') {
		s.skip()
		return
	}
	for s.enter(); p.nextObject(); {
		p.message()
	}
}

// nextObject steps to the next object of the list here that is to be read, and over what
// else is in it.
func (p *Prompt) nextObject() bool {
	s := &p.scan
	for s.nextElement() {
		if !p.full() && s.at('{') {
			return true
		}
		s.skip()
	}
	return false
}

// message is what is gathered of one message. Lists leave their segments behind at once.
type message struct {
	role, name, id, refusal              span
	reasoning, reasoningContent, thought span
	content, calls, function, tools      run
}

func (p *Prompt) message() {
	s := &p.scan
	lo := len(p.Segments)
	var m message
	for s.enter(); s.nextKey(); {
		if p.full() {
			s.skip()
		} else {
			p.messageField(&m)
		}
	}
	p.lift(lo)
	p.open(KindRole, m.role)
	p.addMessage(&m, lo)
}

func (p *Prompt) messageField(m *message) {
	s := &p.scan
	before := len(p.Segments)
	switch string(s.key) {
	case "role":
		m.role = s.str()
	case "content":
		p.content(0)
		m.content = p.since(before)
	case "name":
		m.name = s.str()
	case "tool_call_id":
		m.id = s.str()
	case "reasoning":
		m.reasoning = s.str()
	case "reasoning_content":
		m.reasoningContent = s.str()
	case "thinking":
		m.thought = s.str()
	case "refusal":
		m.refusal = s.str()
	case "tool_calls":
		p.calls()
		m.calls = p.since(before)
	case "function_call":
		p.functionCall()
		m.function = p.since(before)
	case "tools":
		p.tools(KindTool)
		m.tools = p.since(before)
	default:
		s.skip()
	}
}

// addMessage appends a message's segments behind its role. Those of its lists were lifted
// from lo on.
func (p *Prompt) addMessage(m *message, lo int) {
	p.add(KindName, m.name)
	p.add(KindToolResult, m.id)
	p.add(KindReasoning, firstOf(m.reasoning, m.reasoningContent, m.thought))
	p.put(lo, m.content)
	if m.refusal.size > 0 {
		p.add(KindRefusal, m.refusal)
	}
	p.put(lo, m.calls)
	p.put(lo, m.function)
	p.put(lo, m.tools)
}

// firstOf returns the first span that is not empty: engines know reasoning by several names.
func firstOf(spans ...span) span {
	for _, v := range spans {
		if v.size > 0 {
			return v
		}
	}
	return span{}
}
