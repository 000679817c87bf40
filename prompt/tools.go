package prompt

// tools reads a list of tools that the model may call, each in the OpenAI form, with its
// fields under "function", or in the Anthropic form, with its fields at hand.
func (p *Prompt) tools(kind Kind) {
	s := &p.scan
	if !s.at('[') {
		s.skip()
		return
	}
	for s.enter(); p.nextObject(); {
		p.tool(kind)
	}
}

// tool is what is gathered of one tool.
type tool struct {
	name, typ, description, parameters, strict span
	fields                                     run // others, in the order they have in the body
}

func (p *Prompt) tool(kind Kind) {
	s := &p.scan
	lo := len(p.Segments)
	var t, inner tool
	nested := false
	for s.enter(); s.nextKey(); {
		switch string(s.key) {
		case "type":
			t.typ = p.unusual(s.str())
		case "function", "custom":
			if !s.at('{') {
				s.skip()
				continue
			}
			nested = true
			inner = p.toolObject()
		default:
			p.toolField(&t)
		}
	}
	t.fields = p.since(lo)
	if nested {
		inner.typ = t.typ
		t = inner // engines know no other fields beside "function"
	}
	if s.unsure(t.name) {
		t = tool{name: t.name} // which comes before all else
	}
	p.lift(lo)
	p.open(kind, t.name)
	p.add(KindToolType, t.typ)
	p.add(KindDescription, t.description)
	p.add(KindParameters, t.parameters)
	p.add(KindStrict, t.strict)
	p.put(lo, t.fields)
}

// unusual returns the type of a tool or tool call if it is not the one that is meant when
// none is given.
func (p *Prompt) unusual(typ span) span {
	usual := "function"
	if p.API == Messages {
		usual = "custom"
	}
	if p.scan.ended() || string(p.scan.word(typ)) == usual {
		return span{}
	}
	return typ
}

// toolObject reads the object under a tool's "function".
func (p *Prompt) toolObject() (t tool) {
	s := &p.scan
	lo := len(p.Segments)
	for s.enter(); s.nextKey(); {
		p.toolField(&t)
	}
	t.fields = p.since(lo)
	return t
}

func (p *Prompt) toolField(t *tool) {
	s := &p.scan
	switch string(s.key) {
	case "name":
		t.name = s.str()
	case "description":
		t.description = s.str()
	case "parameters", "input_schema":
		t.parameters = s.json()
	case "strict":
		t.strict = s.json()
	case "cache_control":
		s.skip()
	default:
		name := s.keySpan
		if v := s.json(); v.form != absent && !p.full() {
			p.open(KindToolField, name)
			p.open(KindValue, v)
		}
	}
}

// call is what is gathered of one tool call.
type call struct {
	id, typ, name    span
	arguments, input span // as text, or as a JSON value
}

// calls reads the tool calls of a message.
func (p *Prompt) calls() {
	s := &p.scan
	if !s.at('[') {
		s.skip()
		return
	}
	for s.enter(); p.nextObject(); {
		var c call
		p.callObject(&c)
		p.open(KindToolCall, c.id)
		p.addCall(&c)
	}
}

// functionCall reads a call in the legacy form, of which a message has one at most.
func (p *Prompt) functionCall() {
	if !p.scan.at('{') {
		p.scan.skip()
		return
	}
	var c call
	p.callObject(&c)
	p.open(KindFunctionCall, span{})
	p.addCall(&c)
}

func (p *Prompt) addCall(c *call) {
	p.add(KindToolType, c.typ)
	p.add(KindCallName, c.name)
	p.add(KindArguments, c.arguments)
	p.add(KindInput, c.input)
}

// callObject reads a tool call whose name and arguments are at hand or under "function".
func (p *Prompt) callObject(c *call) {
	s := &p.scan
	for s.enter(); s.nextKey(); {
		switch string(s.key) {
		case "id":
			c.id = s.str()
		case "type":
			c.typ = p.unusual(s.str())
		case "function", "custom":
			p.callFunction(c)
		default:
			p.callField(c)
		}
	}
}

func (p *Prompt) callFunction(c *call) {
	s := &p.scan
	if !s.at('{') {
		s.skip()
		return
	}
	for s.enter(); s.nextKey(); {
		p.callField(c)
	}
}

func (p *Prompt) callField(c *call) {
	s := &p.scan
	switch string(s.key) {
	case "name":
		c.name = s.str()
	case "arguments", "input":
		c.arguments, c.input = span{}, span{}
		if s.at('"') {
			c.arguments = s.text()
		} else {
			c.input = s.json()
		}
	default:
		s.skip()
	}
}
