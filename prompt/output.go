package prompt

import (
	"encoding/binary"
	"encoding/hex"
	"io"

	"github.com/zeebo/xxh3"
)

const (
	// frameLen is how many bytes a frame takes in the key stream beside its content.
	frameLen = 2

	// digestLen is how many bytes a digest takes in the key stream.
	digestLen = 32
)

const (
	// roomLen is how many bytes of small pieces are gathered for one Write.
	roomLen = 4096

	// minInPlace is from how many bytes on a piece is written in place, with the pieces
	// before it in a Write of their own. Measured with a writer that hashes: less than 256
	// costs short pieces their gathering, more than 1024 long ones a copy.
	minInPlace = 512
)

// output gathers small pieces and hands on large ones in place.
type output struct {
	w    io.Writer
	n    int64 // bytes that w has taken
	err  error
	len  int // bytes in room
	room [roomLen]byte
}

func (o *output) flush() {
	if o.len > 0 {
		b := o.room[:o.len]
		o.len = 0
		o.send(b)
	}
}

func (o *output) send(b []byte) {
	if o.err != nil {
		return
	}
	n, err := o.w.Write(b)
	o.n += int64(n)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	o.err = err
}

// free returns the room that is left, which is at least n bytes.
func (o *output) free(n int) []byte {
	if roomLen-o.len < n {
		o.flush()
	}
	return o.room[o.len:o.len]
}

func (o *output) write(b []byte) {
	if len(b) == 0 {
		return
	}
	if len(b) >= minInPlace {
		o.flush()
		o.send(b)
		return
	}
	if roomLen-o.len < len(b) {
		o.flush()
	}
	o.len += copy(o.room[o.len:], b)
}

// text writes the inside of a JSON string in its shortest escaping.
func (o *output) text(raw []byte) {
	done := 0 // up to here raw is written
	for i := skipCanonical(raw, 0); i < len(raw); i = skipCanonical(raw, i) {
		o.write(raw[done:i])
		i += o.rewrite(raw[i:])
		done = i
	}
	o.write(raw[done:])
}

// ids writes token ids without white space. There is some every few bytes if at all, so
// bytes are copied one by one, and those that are not wanted are copied over.
func (o *output) ids(raw []byte) {
	for len(raw) > 0 {
		part := raw[:min(len(raw), roomLen/2)]
		raw = raw[len(part):]
		room := o.free(len(part))[:len(part)]
		n := 0
		for _, c := range part {
			room[n] = c
			if c > ' ' {
				n++
			}
		}
		o.len += n
	}
}

// json writes a JSON value without white space between tokens and with strings in their
// shortest escaping.
func (o *output) json(raw []byte) {
	done := 0
	for i := 0; i < len(raw); i++ {
		switch classes[raw[i]] {
		case quote:
			for i = skipCanonical(raw, i+1); i < len(raw) && raw[i] != '"'; i = skipCanonical(raw, i) {
				o.write(raw[done:i])
				i += o.rewrite(raw[i:])
				done = i
			}
		case space:
			o.write(raw[done:i])
			done = i + 1
		}
	}
	o.write(raw[done:])
}

// rewrite writes what the escapes or the control byte that raw begins with are in the key
// stream, and returns how many bytes of raw that was.
func (o *output) rewrite(raw []byte) int {
	if n := o.wide(raw); n > 0 {
		return n
	}
	r, n, _ := rewritable(raw)
	o.len += len(appendCanonical(o.free(6), r))
	return n
}

// wide writes what skipWide steps over: all of it goes through the room for small pieces,
// a rune or eight bytes at a time.
func (o *output) wide(raw []byte) int {
	i, n := 0, o.len
	for i+8 <= len(raw) {
		if n > roomLen-8 {
			o.len = n
			o.flush()
			n = 0
		}
		x, room := word(raw, i), o.room[n:n+8]
		if x&0xffff == escapeU {
			r := hex4(x >> 16)
			if !isWide(r) {
				break
			}
			bytes, size := utf8Of(r)
			binary.LittleEndian.PutUint32(room, bytes)
			n += size
			i += 6
			continue
		}
		ordinary := first(ordinary(x))
		binary.LittleEndian.PutUint64(room, x)
		n += ordinary
		i += ordinary
		if ordinary == 0 || ordinary == 8 {
			break
		}
	}
	o.len = n
	return i
}

// MessageEnder is a writer of key streams that wants to know where messages end.
type MessageEnder interface {
	EndMessage()
}

// WriteTo writes the prompt's key stream to w and returns how many bytes w took. Equal
// prompts have equal streams. The model, the salt, the LoRA and the session are not in
// it. Long content is handed to w in place, so w must not keep or change what it is given.
//
// A w that is a MessageEnder is told where messages end: before every role but one that
// comes first, and at the end of a prompt that was read whole.
func (p *Prompt) WriteTo(w io.Writer) (int64, error) {
	o := &p.out
	o.w, o.n, o.err, o.len = w, 0, nil, 0
	ender, _ := w.(MessageEnder)
	for i := range p.Segments {
		if o.err != nil {
			break
		}
		if ender != nil && i > 0 && p.Segments[i].Kind == KindRole {
			o.flush()
			ender.EndMessage()
		}
		p.write(&p.Segments[i])
	}
	o.flush()
	if ender != nil && !p.Partial {
		ender.EndMessage()
	}
	o.w = nil
	return o.n, o.err
}

func (p *Prompt) write(seg *Segment) {
	o := &p.out
	o.len += len(append(o.free(frameLen), '"', byte(seg.Kind)))
	raw := p.scan.raw(seg.span)
	switch {
	case seg.Kind == KindDigest:
		p.writeDigest(seg.form, raw)
	case seg.form == escaped:
		o.text(raw)
	case seg.form == loose && seg.Kind == KindTokenIDs:
		o.ids(raw)
	case seg.form == loose:
		o.json(raw)
	default:
		o.write(raw)
	}
}

// writeDigest writes the digest of a JSON value, which is the same for all spellings of it.
func (p *Prompt) writeDigest(f form, raw []byte) {
	o := &p.out
	var sum xxh3.Uint128
	if f == loose {
		sum = p.rewrittenDigest(raw)
	} else {
		sum = xxh3.Hash128(raw)
	}
	b := sum.Bytes()
	o.len += len(hex.AppendEncode(o.free(digestLen), b[:]))
}

// rewrittenDigest digests a value while it is rewritten, through the room for small pieces.
func (p *Prompt) rewrittenDigest(raw []byte) xxh3.Uint128 {
	o := &p.out
	o.flush()
	w, n := o.w, o.n
	p.hasher.Reset()
	o.w = &p.hasher
	o.json(raw)
	o.flush()
	o.w, o.n = w, n
	return p.hasher.Sum128()
}
