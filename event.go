package inference

import "bytes"

// firstEvent finds the first token in a stream of server-sent events that passes by in
// pieces: the first event with data but those that engines send before they have computed
// the prompt. Comments, blank lines and other fields are no token either.
// (HTML Living Standard, 9.2.6 "Interpreting an event stream".)
//
// What opens a chat or an Anthropic message, a chunk with a role or message_start, counts:
// vLLM and SGLang send it when the first token is there, and that may be long before text
// is, where a parser of reasoning or tool calls holds it back.
type firstEvent struct {
	line [longestEvent + 1]byte // the beginning of the line
	held int
	mute bool // the event is none that counts
	cr   bool // the last line ended in CR, so an LF is part of its end
}

// longestEvent is the length of the longest line that names an event which isMute.
const longestEvent = len("event: response.reasoning_summary_part.added")

// isMute reports whether events of this name may come before the first token: signs of
// life, and what says that a response has begun or announces what will be filled.
func isMute(name []byte) bool {
	switch string(name) {
	case "ping",
		"response.created", "response.queued", "response.in_progress",
		"response.output_item.added", "response.content_part.added",
		"response.reasoning_part.added", "response.reasoning_summary_part.added":
		return true
	}
	return false
}

// in reports whether data of an event begins in the next piece.
func (f *firstEvent) in(p []byte) bool {
	for len(p) > 0 {
		if f.cr && p[0] == '\n' {
			p = p[1:]
		}
		f.cr = false
		end := bytes.IndexAny(p, "\r\n")
		part := p
		if end >= 0 {
			part = p[:end]
		}
		f.held += copy(f.line[f.held:], part)
		if bytes.HasPrefix(f.line[:f.held], []byte("data:")) && !f.mute {
			return true
		}
		if end < 0 {
			return false
		}
		f.cr = p[end] == '\r'
		f.end()
		p = p[end+1:]
	}
	return false
}

// end takes in a line that is whole, as far as it is kept.
func (f *firstEvent) end() {
	line := f.line[:f.held]
	f.held = 0
	if len(line) == 0 {
		f.mute = false // the event is over
		return
	}
	if name, found := bytes.CutPrefix(line, []byte("event:")); found {
		f.mute = isMute(bytes.TrimPrefix(name, []byte(" ")))
	}
}
