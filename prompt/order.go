package prompt

import "bytes"

// run is a stretch of Segments: one field's, to be put into its place later.
type run struct{ lo, hi int }

func (p *Prompt) since(lo int) run { return run{lo, len(p.Segments)} }

// lift moves the segments from lo on into spare, to be put back in another order.
func (p *Prompt) lift(lo int) {
	p.spare = append(p.spare[:0], p.Segments[lo:]...)
	p.Segments = p.Segments[:lo]
}

// put puts back a run that was lifted from lo on.
func (p *Prompt) put(lo int, r run) {
	if r.hi > r.lo {
		p.Segments = append(p.Segments, p.spare[r.lo-lo:r.hi-lo]...)
	}
}

// arrange puts the parts of the prompt into their order.
func (p *Prompt) arrange(r *request) {
	end := 0
	ordered := true
	for _, part := range r.parts {
		if part.hi > part.lo {
			ordered = ordered && part.lo == end
			end = part.hi
		}
	}
	if ordered {
		p.Segments = p.Segments[:end]
		return
	}
	p.lift(0)
	for _, part := range r.parts {
		p.put(0, part)
	}
}

// maxSorted bounds the work of sorting, which is quadratic. No real object has as many keys,
// nor any whose two names together are longer than maxCompared.
const (
	maxSorted   = 64
	maxCompared = 1 << 10
)

// sortPairs orders the pairs of a name and a value from lo on by name, for objects whose
// key order means nothing, and leaves the last of those with the same name.
func (p *Prompt) sortPairs(lo int) {
	s := p.Segments[lo:]
	if len(s) > 2*maxSorted {
		return
	}
	for i := 2; i < len(s); i += 2 {
		for j := i; j > 0 && p.compare(s[j], s[j-2]) < 0; j -= 2 {
			s[j], s[j+1], s[j-2], s[j-1] = s[j-2], s[j-1], s[j], s[j+1]
		}
	}
	n := 0
	for i := 0; i < len(s); i += 2 {
		if n > 0 && p.compare(s[i], s[n-2]) == 0 {
			n -= 2
		}
		s[n], s[n+1] = s[i], s[i+1]
		n += 2
	}
	p.Segments = p.Segments[:lo+n]
}

// compare compares two names as they stand in the key stream.
func (p *Prompt) compare(a, b Segment) int {
	rawA, rawB := p.Raw(a), p.Raw(b)
	if a.Canonical() && b.Canonical() || a.size+b.size > maxCompared {
		return bytes.Compare(rawA, rawB)
	}
	lo := len(p.decoded)
	p.decoded = appendCanonicalText(p.decoded, rawA)
	mid := len(p.decoded)
	p.decoded = appendCanonicalText(p.decoded, rawB)
	order := bytes.Compare(p.decoded[lo:mid], p.decoded[mid:])
	p.decoded = p.decoded[:lo]
	return order
}

// appendCanonicalText appends the inside of a JSON string in its shortest escaping.
func appendCanonicalText(b, raw []byte) []byte {
	done := 0
	for i := skipCanonical(raw, 0); i < len(raw); i = skipCanonical(raw, i) {
		r, n, _ := rewritable(raw[i:])
		b = appendCanonical(append(b, raw[done:i]...), r)
		i += n
		done = i
	}
	return append(b, raw[done:]...)
}
