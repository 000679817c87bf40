// Package coding undoes the content codings of HTTP, as a Content-Encoding field names
// them: gzip, deflate, br and zstd, one on top of the other if need be.
//
// It is made for bodies that anybody may have sent, and that are looked into but not
// believed. What can be decoded is, up to the first byte that cannot. No more memory is
// taken than Codings.Memory tells, whatever a body claims to need; no more is read than
// was given and some, so that a reader who stops at a bound has bounded the work too. No
// goroutine is started.
package coding

import "strings"

// most is how many codings of one body are undone, as many as curl undoes.
const most = 5

// Codings are what was done to a body, in the order in which it was done.
type Codings struct {
	n    int
	list [most]kind
}

// kind is one coding.
type kind uint8

const (
	identity kind = iota
	gzipped
	deflated
	brotlied
	zstandard
	kinds
)

// memory is what decoding takes at most, in bytes: windows, tables, input, and what was
// let go while a window grew.
var memory = [kinds]int64{
	gzipped:   128 << 10,
	deflated:  256 << 10, // it may be of either form, and each has its own
	brotlied:  40 << 20,
	zstandard: 10 << 20,
}

// Parse reads the values of Content-Encoding fields. It reports whether what they name
// can be undone: not if one is unknown, or there are too many.
func Parse(fields []string) (codings Codings, known bool) {
	for _, field := range fields {
		for name := range strings.SplitSeq(field, ",") {
			k, known := kindOf(strings.Trim(name, " \t"))
			switch {
			case !known:
				return Codings{}, false
			case k == identity:
				continue
			case codings.n == most:
				return Codings{}, false
			}
			codings.list[codings.n] = k
			codings.n++
		}
	}
	return codings, true
}

// kindOf returns the coding of a name. A list may have empty elements, which say nothing.
func kindOf(name string) (k kind, known bool) {
	switch {
	case name == "" || strings.EqualFold(name, "identity"):
		return identity, true
	case strings.EqualFold(name, "gzip") || strings.EqualFold(name, "x-gzip"):
		return gzipped, true
	case strings.EqualFold(name, "deflate"):
		return deflated, true
	case strings.EqualFold(name, "br"):
		return brotlied, true
	case strings.EqualFold(name, "zstd"):
		return zstandard, true
	default:
		return 0, false
	}
}

// None reports whether nothing was done to the body.
func (c Codings) None() bool { return c.n == 0 }

// Memory returns how much memory undoing them takes at most, in bytes, beside the
// encoded and the decoded body.
func (c Codings) Memory() int64 {
	n := int64(0)
	for _, k := range c.list[:c.n] {
		n += memory[k]
	}
	return n
}
