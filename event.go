package inference

import "bytes"

// firstEvent finds the first event with data in a stream of server-sent events
// that passes by in pieces. Comments, blank lines, other fields and events of type
// ping keep a connection open; they are no token.
// (HTML Living Standard, 9.2.6 "Interpreting an event stream".)
type firstEvent struct {
	line [len("event: ping") + 1]byte // the beginning of the line
	held int
	ping bool // the event is a ping
	cr   bool // the last line ended in CR, so an LF is part of its end
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
		if bytes.HasPrefix(f.line[:f.held], []byte("data:")) && !f.ping {
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
	switch string(f.line[:f.held]) {
	case "event: ping", "event:ping":
		f.ping = true
	case "":
		f.ping = false // the event is over
	}
	f.held = 0
}
