package inference

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// defaultMaxBody is how much of a body is read to route on.
const defaultMaxBody = 16 << 20

// body is what a request sent, as far as it was read to route on. If it is whole it can
// be sent any number of times, else as long as nobody has begun to send what follows.
type body struct {
	held
	unsent atomic.Int32 // attempts that may yet read data

	err  error // what reading on gave after data
	rest *rest // what follows data otherwise, not read yet
	left bool  // all is rest, as it is not routed on

	next [1]byte // the first byte of rest, which was read to see whether there is one
}

// readBody reads up to limit bytes of r's body, or as many as the budget has
// room for, at least the first part.
func readBody(r *http.Request, limit int64, b *budget) *body {
	in := &body{budget: b}
	in.begin(r.ContentLength, limit)
	if err := in.fill(r.Body, r.ContentLength, limit); err != nil {
		in.end(err, r.ContentLength)
		return in
	}
	in.probe(r)
	return in
}

// leaveBody leaves r's body unread. It returns nil if there is none.
func leaveBody(r *http.Request, b *budget) *body {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	return &body{budget: b, data: []byte{}, left: true}
}

// lend returns the body for another ticket of the same request, nil if that has to see for
// itself what r's is.
func (in *body) lend(r *http.Request) *body {
	if in == nil || r.Body == nil {
		return nil
	}
	if !in.left {
		return in
	}
	if !in.isSendable() {
		r.Body = io.NopCloser(failing{errBodySent})
	}
	return nil
}

// isSendable reports whether the body can be sent from its first byte.
func (in *body) isSendable() bool {
	switch {
	case in == nil:
		return true
	case in.data == nil || in.err != nil:
		return false
	}
	return in.whole || in.rest == nil || in.rest.owner.Load() == nil
}

// probe sees whether anything follows what was read. Also of a body of which the
// declared length was read, the end has to be: it carries trailers, errors, and
// the end of the server's read deadline.
func (in *body) probe(r *http.Request) {
	for {
		n, err := r.Body.Read(in.next[:])
		if n > 0 {
			in.rest = newRest(in.next[:n], r.Body, err)
			return
		}
		if err != nil {
			in.end(err, r.ContentLength)
			return
		}
	}
}

// end takes in how the body ended after data.
func (in *body) end(err error, length int64) {
	switch {
	case err != io.EOF: //nolint:errorlint // only io.EOF itself is the end; what wraps it is a failure
		in.err = err
	case int64(len(in.data)) < length:
		in.err = io.ErrUnexpectedEOF
	default:
		in.whole, in.cut = true, ""
	}
}

// isArriving reports whether the client has more to send than was read.
func (in *body) isArriving() bool { return in != nil && in.rest != nil }

// restore gives r the body to send, from its first byte. It may be called for
// each attempt. It returns what is sent, if that is all in memory. Only a plain
// reader over memory lets net/http send head and body in one write.
//
// Nothing that it sets closes the body: the server still owns it.
func (in *body) restore(r *http.Request) *sending {
	switch {
	case in == nil:
		return nil
	case in.data == nil:
		r.Body = io.NopCloser(failing{errBodyLetGo})
		return nil
	case in.whole:
		return in.restoreWhole(r)
	case in.left:
		in.restoreLeft(r)
		return nil
	case in.err != nil:
		r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(in.data), failing{in.err}))
		return nil
	default:
		r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(in.data), &restReader{in.rest}))
		return nil
	}
}

// restoreWhole gives r the body with its length, however the client sent it. One
// with trailers stays as it is: only chunked ones can carry them.
func (in *body) restoreWhole(r *http.Request) *sending {
	if len(r.Trailer) == 0 {
		r.ContentLength = int64(len(in.data))
		r.TransferEncoding = nil
	}
	if r.ContentLength == 0 {
		r.Body = http.NoBody
		return nil
	}
	in.unsent.Add(1)
	out := &sending{reader: bytes.NewReader(in.data), body: in}
	r.Body = io.NopCloser(out.reader)
	return out
}

// restoreLeft gives r its body as this attempt may read it. If it is not the one that was
// given for the attempt before, Caddy has it whole (request_buffers) and gave it anew.
func (in *body) restoreLeft(r *http.Request) {
	if given, ok := r.Body.(*restReader); !ok || given.rest != in.rest {
		in.rest = newRest(nil, r.Body, nil)
	}
	r.Body = &restReader{in.rest}
}

// sending is a body that one attempt sends from memory.
type sending struct {
	reader *bytes.Reader
	body   *body
	done   atomic.Bool
}

// sent says that it was sent, or will not be: nobody reads it any more. It may be
// called from any goroutine. An attempt of which nobody says so keeps the bytes
// from being used again.
func (s *sending) sent() {
	if s.done.CompareAndSwap(false, true) {
		s.reader.Reset(nil)
		s.body.unsent.Add(-1)
	}
}

// anew returns the body from its first byte, for net/http to send it again where none
// of it was sent. Nobody says when that is done, so the bytes are not used again.
func (s *sending) anew() (io.ReadCloser, error) {
	s.body.unsent.Add(1)
	return io.NopCloser(bytes.NewReader(s.body.data)), nil
}

// letGo drops the bytes and gives back what they took of the budget. Their buffer is
// kept for other requests if nobody can be reading from it.
func (in *body) letGo() {
	if in == nil || in.data == nil {
		return
	}
	if in.whole && in.unsent.Load() == 0 { // what is not whole is sent by readers that are not counted
		in.recycle()
	}
	in.forget()
}

// giveBack gives back what was taken of the budget, once.
func (in *body) giveBack() {
	if in != nil {
		in.held.giveBack()
	}
}

var (
	errBodyLetGo = errors.New("request body was let go when the response began; it cannot be sent again")
	errBodySent  = errors.New("request body was not held in full and is partly sent; it cannot be sent again")
)

// rest is the part of a body that is not held. It can be read once, so it is
// read by the first attempt that gets that far. An earlier attempt may still be
// reading in a goroutine of its own when a later one begins.
type rest struct {
	reader io.Reader
	owner  atomic.Pointer[restReader]
}

// newRest returns the rest that begins with the bytes first, and goes on with the
// body unless reading those gave an error already.
func newRest(first []byte, body io.Reader, err error) *rest {
	if err != nil {
		body = failing{err}
	}
	return &rest{reader: io.MultiReader(bytes.NewReader(first), body)}
}

// restReader is the rest of a body as one attempt sees it.
type restReader struct{ rest *rest }

// Read implements io.Reader.
func (a *restReader) Read(p []byte) (int, error) {
	if !a.rest.owner.CompareAndSwap(nil, a) && a.rest.owner.Load() != a {
		return 0, errBodySent
	}
	return a.rest.reader.Read(p)
}

// Close implements io.Closer. The server closes what is its own.
func (a *restReader) Close() error { return nil }

// failing is the end of a body that could not be read: whoever sends it gets the
// error that reading it gave, so that Caddy answers as it would have.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
