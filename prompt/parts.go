package prompt

// maxNesting is how deep lists of parts are read: a message's, and a tool result's in it.
const maxNesting = 1

// content reads a message's content, a string or a list of parts. A string is the same as
// one part with that text, and no text the same as none.
func (p *Prompt) content(depth int) {
	s := &p.scan
	lo := len(p.Segments)
	switch {
	case s.at('"'):
		p.add(KindText, s.text())
	case s.at('['):
		for s.enter(); s.nextElement(); {
			p.element(depth)
		}
	default:
		s.skip()
	}
	p.dropLoneEmpty(lo)
}

// dropLoneEmpty drops the text from lo on if it is all there is and empty.
func (p *Prompt) dropLoneEmpty(lo int) {
	if len(p.Segments) == lo+1 && p.Segments[lo].Kind == KindText && p.Segments[lo].size == 0 {
		p.Segments = p.Segments[:lo]
	}
}

func (p *Prompt) element(depth int) {
	s := &p.scan
	switch {
	case p.full():
		s.skip()
	case s.at('"'):
		p.add(KindText, s.text())
	case s.at('{'):
		p.part(depth)
	default:
		s.skip()
	}
}

// partKind is what is done with a part of a message's content.
type partKind uint8

const (
	mediaPart partKind = iota // all that is not known below
	textPart
	thinkingPart
	reasoningPart
	redactedPart
	refusalPart
	toolUsePart
	toolResultPart
)

func partKindOf(typ []byte, depth int) partKind {
	switch string(typ) {
	case "text", "input_text", "output_text":
		return textPart
	case "thinking":
		return thinkingPart
	case "reasoning_text", "summary_text":
		return reasoningPart
	case "redacted_thinking":
		return redactedPart
	case "refusal":
		return refusalPart
	case "tool_use":
		return toolUsePart
	case "tool_result":
		if depth < maxNesting {
			return toolResultPart
		}
	}
	return mediaPart
}

// part is what is gathered of one part that is not media.
type part struct {
	typ                                 span
	text, thinking, refusal, data       span
	id, name, input, toolUseID, isError span
	content                             run
}

// part reads one part of a message's content. Media is recognised as soon as its type is
// known, which is the first field nearly always, and then read from its beginning.
func (p *Prompt) part(depth int) {
	s := &p.scan
	lo, start := len(p.Segments), s.pos
	var c part
	for s.enter(); s.nextKey(); {
		if string(s.key) != "type" {
			p.partField(&c, depth)
			continue
		}
		c.typ = s.str()
		if !s.ended() && partKindOf(s.word(c.typ), depth) == mediaPart {
			break
		}
	}
	kind := partKindOf(s.word(c.typ), depth)
	if c.typ.form == absent && c.text.form != absent {
		kind = textPart
	}
	if kind == mediaPart && !s.ended() {
		p.Segments, s.pos = p.Segments[:lo], start
		p.media()
		return
	}
	p.lift(lo)
	if s.ended() && int(c.typ.end) == len(s.body) {
		return // the type may go on
	}
	p.addPart(kind, &c, lo)
}

func (p *Prompt) partField(c *part, depth int) {
	s := &p.scan
	switch string(s.key) {
	case "text":
		c.text = s.str()
	case "thinking":
		c.thinking = s.str()
	case "refusal":
		c.refusal = s.str()
	case "data":
		c.data = s.str()
	case "id":
		c.id = s.str()
	case "name":
		c.name = s.str()
	case "input":
		c.input = s.json()
	case "is_error":
		c.isError = s.json()
	case "tool_use_id":
		c.toolUseID = s.str()
	case "content":
		if depth >= maxNesting || p.full() {
			s.skip()
			return
		}
		lo := len(p.Segments)
		p.content(depth + 1)
		c.content = p.since(lo)
	default:
		s.skip()
	}
}

// addPart appends a part's segments. Those of its content were lifted from lo on.
func (p *Prompt) addPart(kind partKind, c *part, lo int) {
	switch kind {
	case textPart:
		p.open(KindText, c.text)
	case thinkingPart:
		p.add(KindReasoning, c.thinking)
	case reasoningPart:
		p.add(KindReasoning, c.text)
	case redactedPart:
		p.add(KindRedacted, c.data)
	case refusalPart:
		p.add(KindRefusal, c.refusal)
	case toolUsePart:
		p.open(KindToolCall, c.id)
		p.addCall(&call{name: c.name, input: c.input})
	case toolResultPart:
		p.open(KindToolResult, c.toolUseID)
		p.put(lo, c.content)
		if string(p.scan.raw(c.isError)) == "true" {
			p.add(KindToolError, c.isError)
		}
		if !p.scan.ended() {
			p.open(KindToolResultEnd, span{})
		}
	}
}

// media reads a part that is an image, a sound, a video, a file or of a type unknown
// here. What it holds may be megabytes of base64: it is digested. An id that the client
// gives it takes the place of what it holds, as it does in engines.
func (p *Prompt) media() {
	s := &p.scan
	lo := len(p.Segments)
	p.open(KindMedia, span{})
	var id, firstKey, url span
	for s.enter(); s.nextKey(); {
		switch string(s.key) {
		case "type":
			p.Segments[lo].span = s.str()
		case "uuid":
			id = s.str()
		case "cache_control", "detail":
			s.skip()
		default:
			if firstKey.form == absent {
				firstKey = s.keySpan
			}
			if string(s.key) == "image_url" {
				url = s.keySpan
			}
			p.mediaField()
		}
	}
	p.Segments[lo].span = p.mediaType(p.Segments[lo].span, firstKey, url)
	if s.ended() || id.size > 0 {
		// Of media cut short nothing but the type is certain.
		p.Segments = p.Segments[:lo+1]
		if !s.ended() {
			p.add(KindMediaID, id)
		}
		return
	}
	p.sortPairs(lo + 1)
}

// mediaType returns the type of a part that holds media: its first field if it has none,
// and that of a chat's image if it is an image of a responses request.
func (p *Prompt) mediaType(typ, firstKey, url span) span {
	switch {
	case typ.form == absent:
		return firstKey
	case string(p.scan.word(typ)) != "input_image" || url.form == absent && !p.scan.ended():
		return typ
	default:
		return url // absent if it may yet come
	}
}

// mediaField reads a field of a part that holds media, or an object of fields that do.
func (p *Prompt) mediaField() {
	s := &p.scan
	name := s.keySpan
	switch string(s.key) {
	case "image_url", "video_url", "audio_url":
		// A string is the same as an object with that url.
		if s.at('{') {
			p.digest(name, s.opaqueMember("url"))
			return
		}
	case "source", "input_audio", "file":
		if s.at('{') {
			p.payload(name)
			return
		}
	}
	p.digest(name, s.opaque())
}

func (p *Prompt) digest(name, v span) {
	if v.form != absent && !p.full() {
		p.open(KindMediaField, name)
		p.open(KindDigest, v)
	}
}

// payload reads the object of a part that holds what is shown to the model beside what
// describes it. If nothing in it is known it is digested whole.
func (p *Prompt) payload(name span) {
	s := &p.scan
	start, known := s.pos, false
	for s.enter(); s.nextKey(); {
		switch string(s.key) {
		case "data", "url", "file_data", "file_id", "content":
			known = true
			p.digest(s.keySpan, s.opaque())
		default:
			s.skip()
		}
	}
	if !known && !s.ended() {
		s.pos = start
		p.digest(name, s.opaque())
	}
}
