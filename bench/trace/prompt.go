package trace

import (
	"io"
	"strings"
)

// Prompt reads a request's prompt as text. It makes the text as it is read and
// holds one block of it. Letters and spaces are all there is in it, so it can stand
// in a JSON string as it is.
type Prompt struct {
	blocks []uint64 // not begun
	length int      // bytes of those
	rest   []byte   // of the block that was begun
	text   [blockBytes]byte
}

// Prompt returns the request's prompt as text: of each block the one that its id
// stands for, cut to 4 bytes for each token of Input.
func (r *Request) Prompt() *Prompt {
	return &Prompt{blocks: r.Blocks, length: r.Input * wordBytes}
}

// Len returns how many bytes are left to read.
func (p *Prompt) Len() int { return len(p.rest) + p.length }

// Read reads some of the text.
func (p *Prompt) Read(b []byte) (n int, err error) {
	for n < len(b) && p.more() {
		copied := copy(b[n:], p.rest)
		p.rest = p.rest[copied:]
		n += copied
	}
	if n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// WriteTo writes what is left of the text.
func (p *Prompt) WriteTo(w io.Writer) (written int64, err error) {
	for p.more() {
		n, err := w.Write(p.rest)
		p.rest = p.rest[n:]
		written += int64(n)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// more makes the next block if the one before has been read, and reports whether
// there is anything to read.
func (p *Prompt) more() bool {
	if len(p.rest) > 0 {
		return true
	}
	if p.length == 0 {
		return false
	}
	fill(&p.text, p.blocks[0])
	p.rest = p.text[:min(p.length, blockBytes)]
	p.blocks, p.length = p.blocks[1:], p.length-len(p.rest)
	return true
}

// Text returns all of the request's prompt.
func (r *Request) Text() string {
	var b strings.Builder
	b.Grow(r.Input * wordBytes)
	for p := r.Prompt(); p.more(); p.rest = nil {
		b.Write(p.rest)
	}
	return b.String()
}
