package coding

import (
	"bytes"
	"sync"
)

// Reader reads what a body was before it was encoded. What cannot be decoded ends it
// with an error. It is not safe for use by several goroutines at once.
type Reader struct {
	body   bytes.Reader
	length int
	stages []*stage // the coding that was done last first
}

var readers = sync.Pool{New: func() any { return new(Reader) }}

// Open returns a Reader of a body to which codings were done. The body must stay
// unchanged until the Reader is closed.
func Open(codings Codings, body []byte) *Reader {
	r := readers.Get().(*Reader)
	r.body.Reset(body)
	r.length = len(body)
	for i := codings.n - 1; i >= 0; i-- {
		s := takeStage(codings.list[i])
		if len(r.stages) == 0 {
			s.open(&r.body)
		} else {
			s.open(r.stages[len(r.stages)-1])
		}
		r.stages = append(r.stages, s)
	}
	return r
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	if len(r.stages) == 0 {
		return r.body.Read(p)
	}
	return r.stages[len(r.stages)-1].Read(p)
}

// Consumed returns how many bytes of the body were needed for what was read, or a few
// more: decoders work ahead, by a block at most.
func (r *Reader) Consumed() int {
	n := r.length - r.body.Len()
	if len(r.stages) > 0 {
		n -= r.stages[0].input.Buffered()
	}
	return n
}

// Close gives back the memory. The Reader must not be used after that.
func (r *Reader) Close() {
	for i, s := range r.stages {
		s.close()
		r.stages[i] = nil
	}
	r.stages = r.stages[:0]
	r.body.Reset(nil)
	readers.Put(r)
}
