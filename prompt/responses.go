package prompt

// responsesField reads a member of an OpenAI responses request that enters the prompt.
// Engines make a chat of it, and so does the key stream: the same conversation has the
// same stream in both forms.
func (p *Prompt) responsesField(r *request) bool {
	s := &p.scan
	lo := len(p.Segments)
	switch string(s.key) {
	case "input":
		p.input()
		r.parts[partBody] = p.since(lo)
	case "instructions":
		p.open(KindRole, wordSystem)
		p.content(0)
		if len(p.Segments) == lo+1 {
			p.Segments = p.Segments[:lo]
		}
		r.parts[partSystem] = p.since(lo)
	case "tools":
		p.tools(KindTool)
		r.parts[partTools] = p.since(lo)
	case "tool_choice":
		r.noTools = string(s.word(s.str())) == "none"
	case "reasoning":
		p.pair(wordEffort, s.member("effort"))
		r.parts[partReasoning] = p.since(lo)
	case "previous_response_id":
		r.previous = s.str()
		p.pair(s.keySpan, r.previous)
		r.parts[partHistory] = p.since(lo)
	case "conversation":
		name := s.keySpan
		if s.at('{') {
			r.conversation = s.member("id")
		} else {
			r.conversation = s.str()
		}
		p.pair(name, r.conversation)
		r.parts[partHistory] = p.since(lo)
	default:
		return false
	}
	return true
}

// pair adds a control whose value is a string that was just read.
func (p *Prompt) pair(name, v span) {
	if v.size > 0 {
		p.open(KindControl, name)
		p.open(KindValue, p.scan.quoted(v))
	}
}

// input reads the text of a user's message, or a list of items.
func (p *Prompt) input() {
	s := &p.scan
	if s.at('"') {
		p.open(KindRole, wordUser)
		p.content(0)
		return
	}
	if !s.at('[') {
		s.skip()
		return
	}
	t := nobody
	for s.enter(); p.nextObject(); {
		t = p.item(t)
	}
}

// turn is how far the assistant's message has come that the item before belongs to. What
// a message holds are several items here: reasoning, text, calls of tools.
type turn uint8

const (
	nobody turn = iota // it is no message of the assistant
	thought
	said
	called
)

// assistant begins a message of the assistant, unless the one before is to go on with what
// comes next.
func (p *Prompt) assistant(t, next turn) turn {
	if t == nobody || t > next || t == next && next != called {
		p.open(KindRole, wordAssistant)
	}
	return next
}

// item is what is gathered of one item.
type item struct {
	message
	typ, callID, encrypted span
	output, summary        run
	call                   call
}

// item reads one item and returns how far its message has come.
func (p *Prompt) item(t turn) turn {
	s := &p.scan
	lo, start := len(p.Segments), s.pos
	var c item
	for s.enter(); s.nextKey(); {
		if p.full() {
			s.skip()
		} else {
			p.itemField(&c)
		}
	}
	if !p.certain(&c) {
		p.Segments = p.Segments[:lo]
		return nobody
	}
	switch string(s.word(c.typ)) {
	case "", "message":
		return p.messageItem(&c, lo, t)
	case "reasoning":
		return p.reasoningItem(&c, lo, t)
	case "function_call":
		return p.callItem(&c, lo, t)
	case "custom_tool_call":
		c.call.typ = c.typ
		return p.callItem(&c, lo, t)
	case "function_call_output", "custom_tool_call_output":
		p.lift(lo)
		p.open(KindRole, wordTool)
		p.add(KindToolResult, c.callID)
		p.put(lo, c.output)
		return nobody
	}
	p.Segments, s.pos = p.Segments[:lo], start
	p.unknownItem()
	return nobody
}

func (p *Prompt) itemField(c *item) {
	s := &p.scan
	lo := len(p.Segments)
	switch string(s.key) {
	case "type":
		c.typ = s.str()
	case "call_id":
		c.callID = s.str()
	case "arguments", "input":
		p.callField(&c.call)
	case "encrypted_content":
		c.encrypted = s.str()
	case "output":
		p.content(0)
		c.output = p.since(lo)
	case "summary":
		p.content(0)
		c.summary = p.since(lo)
	default:
		p.messageField(&c.message)
	}
}

// certain reports whether it is known what an item is: its type, and of a message the
// role. A type that is not there yet is none if there is a role.
func (p *Prompt) certain(c *item) bool {
	s := &p.scan
	switch string(s.word(c.typ)) {
	case "":
		return (c.typ.form == absent || !s.unsure(c.typ)) && !s.unsure(c.role)
	case "message":
		return !s.unsure(c.typ) && !s.unsure(c.role)
	default:
		return !s.unsure(c.typ)
	}
}

func (p *Prompt) messageItem(c *item, lo int, t turn) turn {
	p.lift(lo)
	if string(p.scan.word(c.role)) == "assistant" {
		t = p.assistant(t, said)
	} else {
		t = nobody
		p.open(KindRole, c.role)
	}
	p.addMessage(&c.message, lo)
	return t
}

// reasoningItem adds what the model thought: all of it if that is there, else what it was
// summed up to, which comes first in the body.
func (p *Prompt) reasoningItem(c *item, lo int, t turn) turn {
	p.lift(lo)
	t = p.assistant(t, thought)
	if c.content.hi > c.content.lo {
		p.put(lo, c.content)
	} else if !p.scan.ended() {
		p.put(lo, c.summary)
	}
	if c.encrypted.size > 0 {
		p.add(KindRedacted, c.encrypted)
	}
	return t
}

func (p *Prompt) callItem(c *item, lo int, t turn) turn {
	p.Segments = p.Segments[:lo]
	t = p.assistant(t, called)
	p.open(KindToolCall, c.callID)
	if p.scan.unsure(c.callID) {
		return t // the id comes before all else
	}
	c.call.name = c.name
	p.addCall(&c.call)
	return t
}

// unknownItem reads an item of a type that is not known here, such as a call of a tool
// that the engine has itself, or a reference to an item that it keeps.
func (p *Prompt) unknownItem() {
	s := &p.scan
	lo := len(p.Segments)
	p.open(KindItem, span{})
	for s.enter(); s.nextKey(); {
		if string(s.key) == "type" {
			p.Segments[lo].span = s.str()
			continue
		}
		name := s.keySpan
		if v := s.json(); v.form != absent && !p.full() {
			p.open(KindToolField, name)
			p.open(KindValue, v)
		}
	}
	if s.ended() {
		// The fields not read might have come first.
		p.Segments = p.Segments[:lo+1]
		return
	}
	p.sortPairs(lo + 1)
}
