package prompt

import "strings"

// Kind says what a segment is. Its value is the byte that names it in the key stream.
type Kind byte

// The kinds of segments.
const (
	KindControl       Kind = 'H' // name of a field that steers what is prefilled; a KindValue or arguments follow
	KindArgument      Kind = 'K' // name of a chat template argument; a KindValue follows
	KindValue         Kind = 'V' // JSON value of the control, argument or field before it
	KindTool          Kind = 'O' // a tool the model may call: its name
	KindFunction      Kind = 'o' // the same, of the legacy functions list
	KindToolType      Kind = 't' // type of the tool or tool call before it, if not the usual one
	KindDescription   Kind = 'd' // description of the tool before it
	KindParameters    Kind = 'P' // JSON schema of what the tool before it takes
	KindStrict        Kind = 's' // whether the tool before it is strict, as JSON
	KindToolField     Kind = 'k' // name of another field of the tool or item before it; a KindValue follows
	KindItem          Kind = 'Y' // an item of a responses request of a type unknown here: its type
	KindRole          Kind = 'R' // a message begins: its role
	KindName          Kind = 'N' // name of the message's author
	KindToolResult    Kind = 'I' // a tool result begins: the id of the call it answers
	KindToolError     Kind = 'E' // whether the tool result failed, as JSON
	KindToolResultEnd Kind = 'Z' // the content of a tool result among other parts ends
	KindReasoning     Kind = 'r' // what the model thought
	KindRedacted      Kind = 'x' // what the model thought, sealed by who served it
	KindText          Kind = 'T' // text of a message, of a part of it, or of a bare prompt
	KindRefusal       Kind = 'F' // refusal of the model
	KindToolCall      Kind = 'C' // a tool call begins: its id
	KindFunctionCall  Kind = 'c' // a call in the legacy form begins
	KindCallName      Kind = 'n' // name of the tool called
	KindArguments     Kind = 'a' // arguments of the call as text
	KindInput         Kind = 'j' // arguments of the call as a JSON value
	KindMedia         Kind = 'M' // an image, sound, video, file or a part of a type unknown here: its type
	KindMediaID       Kind = 'u' // the client's own id of the media before it, which engines take instead of its bytes
	KindMediaField    Kind = 'm' // name of a field of the media before it; a KindDigest follows
	KindDigest        Kind = '#' // digest of a field's value
	KindTokenIDs      Kind = 'i' // a bare prompt given as token ids
	KindSuffix        Kind = 'S' // text that comes after the place to fill
)

// form says how a segment's bytes stand in the body.
type form uint8

const (
	absent  form = iota // no such value
	plain               // inside of a string, in its shortest escaping
	escaped             // inside of a string, to be rewritten
	compact             // JSON value or token ids without white space
	loose               // JSON value or token ids to be rewritten
	scalar              // number, true, false or null
	known               // a word that is not in the body
)

// span is a value in the body: body[start:end], which takes size bytes once rewritten.
type span struct {
	start, end, size uint32
	form             form
}

// words are what key streams have of requests that say it without words.
const words = "user assistant tool system reasoning_effort"

var (
	wordBytes = []byte(words)

	wordUser      = wordSpan("user")
	wordAssistant = wordSpan("assistant")
	wordTool      = wordSpan("tool")
	wordSystem    = wordSpan("system")
	wordEffort    = wordSpan("reasoning_effort")
)

func wordSpan(word string) span {
	v := newSpan(known, 0, len(word), 0)
	at := offset(strings.Index(words, word))
	v.start, v.end = at, at+v.size
	return v
}

// Segment is one piece of a prompt.
type Segment struct {
	Kind Kind
	span
}

// Canonical reports whether the segment's raw bytes are what goes into the key stream.
func (s Segment) Canonical() bool {
	return s.Kind != KindDigest && s.form != escaped && s.form != loose
}

// Len is the number of bytes that the segment's content takes in the key stream, its
// frame not counted.
func (s Segment) Len() int {
	if s.Kind == KindDigest {
		return digestLen
	}
	return int(s.size)
}

// text reports whether segments of this kind are put into the prompt as text.
func (k Kind) text() bool {
	switch k {
	case KindControl, KindMedia, KindMediaID, KindMediaField, KindDigest, KindTokenIDs, KindRedacted, KindToolResultEnd:
		return false
	default:
		return true
	}
}

// add appends a segment, if there is a value for it.
func (p *Prompt) add(k Kind, v span) {
	if v.form != absent {
		p.Segments = append(p.Segments, Segment{Kind: k, span: v})
	}
}

// open appends a segment that stands even without a value, as it begins something.
func (p *Prompt) open(k Kind, v span) {
	p.Segments = append(p.Segments, Segment{Kind: k, span: v})
}

// full reports whether no more elements are taken, and notes that some are left out.
func (p *Prompt) full() bool {
	if len(p.Segments) < maxSegments {
		return false
	}
	p.scan.partial = true
	return true
}
