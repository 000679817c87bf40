package inference

import (
	"cmp"
	"io"
	"net/http"

	"github.com/caddy-inference/caddy-inference/coding"
)

// decoded is the text of an encoded body: a copy to route on, which is never sent. Where
// it ends too early, be it that the body is broken or that there is no room, it is what
// came before.
type decoded struct {
	held
	consumed int // bytes of the body that it was made of
}

// isPlain reports whether a body with that header is sent as it is.
func isPlain(header http.Header) bool {
	codings, known := coding.Parse(header["Content-Encoding"])
	return known && codings.None()
}

// decode decodes what was read of a body, up to limit bytes, or as many as the budget
// has room for, at least the first part.
func decode(in *body, codings coding.Codings, limit int64) *decoded {
	d := &decoded{budget: in.budget}
	memory := codings.Memory()
	if !d.budget.take(memory) {
		d.cut = "max_buffered"
		return d
	}
	defer d.budget.give(memory)
	reader := coding.Open(codings, in.data)
	d.read(reader, limit, len(in.data))
	reader.Close()
	if !in.whole {
		d.whole, d.cut = false, cmp.Or(d.cut, in.cut)
	}
	return d
}

// read reads text that was encoded in so many bytes.
func (d *decoded) read(from *coding.Reader, limit int64, encoded int) {
	const usual = 4 // times as long as encoded
	d.begin(min(usual*int64(encoded), trustedLength), limit)
	err := d.fill(from, -1, limit)
	d.consumed = from.Consumed()
	if err == nil { // is it full, or is that all?
		_, err = io.ReadFull(from, make([]byte, 1))
	}
	if err != nil {
		d.whole, d.cut = err == io.EOF, "" //nolint:errorlint // only io.EOF itself is the end; what wraps it is a failure
	}
}

// unread estimates how much text follows, if the body is length bytes long and goes on as
// it began. It is never more than makes limit in all: a few bytes may claim anything.
func (d *decoded) unread(length, limit int64) int {
	each := float64(len(d.data)) / float64(max(d.consumed, 1))
	most := float64(max(limit-int64(len(d.data)), 0))
	return int(min(each*float64(max(length-int64(d.consumed), 0)), most))
}

// broken reports whether the text ends where the body could not be decoded.
func (d *decoded) broken() bool { return !d.whole && (d.cut == "" || len(d.data) == 0) }

// letGo drops the text. Nothing that points into it may be used any more.
func (d *decoded) letGo() {
	d.recycle()
	d.forget()
}
