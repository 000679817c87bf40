package radix

import (
	"cmp"
	"maps"
	"slices"
)

// oracle does what a Tree does in the slow and obvious way: one record for
// each worker and each prefix it holds. It knows no memory limit.
type oracle struct {
	clock   int
	rewrite int // chunks
	workers map[Worker]*belief
	removed []*belief // until the next tend
	holders map[prefix]int
	kids    map[prefix]int // stored prefixes one chunk longer
	uses    map[prefix]int // different prompts that passed, since it was last not stored
}

// prefix names a space and the chunks up to some place.
type prefix uint64

// belief is what one worker holds.
type belief struct {
	capacity int64
	held     int64
	prefixes map[prefix]record
	kids     map[prefix]int
}

type record struct {
	parent prefix
	bytes  int // covered by the last chunk
	depth  int
	used   int // when
}

func newOracle() *oracle {
	return &oracle{
		workers: map[Worker]*belief{},
		holders: map[prefix]int{},
		kids:    map[prefix]int{},
		uses:    map[prefix]int{},
	}
}

// prefixes returns the names of all prefixes of a key, shortest first.
func prefixes(k Key) []prefix {
	path := make([]prefix, 0, len(k.Chunks))
	at := fold(k.Space, 1)
	for _, chunk := range k.Chunks {
		at = fold(at, chunk+2)
		path = append(path, prefix(at))
	}
	return path
}

func (o *oracle) add(w Worker) {
	o.workers[w] = &belief{prefixes: map[prefix]record{}, kids: map[prefix]int{}}
}

func (o *oracle) remove(w Worker) {
	if b := o.workers[w]; b != nil {
		o.removed = append(o.removed, b)
		delete(o.workers, w)
	}
}

func (o *oracle) setCapacity(w Worker, bytes int64) {
	if b := o.workers[w]; b != nil {
		b.capacity = max(bytes, 0)
	}
}

func (o *oracle) insert(w Worker, k Key) {
	b := o.workers[w]
	if b == nil {
		return
	}
	path := prefixes(k)
	if b.capacity > 0 && int64(k.covers()) > b.capacity {
		path = path[:b.capacity/ChunkBytes]
	}
	if len(path) == 0 {
		return
	}
	o.clock++
	parent := prefix(0)
	novel := o.holders[path[len(path)-1]] == 0
	for depth, at := range path {
		if novel || o.holders[at] == 0 {
			o.uses[at]++
		}
		bytes := ChunkBytes - int(k.missing())
		if old, ok := b.prefixes[at]; ok {
			bytes = old.bytes
		} else {
			o.take(b, at, parent, bytes)
		}
		b.prefixes[at] = record{parent: parent, bytes: bytes, depth: depth, used: o.clock}
		parent = at
	}
	o.trim(b)
}

func (o *oracle) take(b *belief, at, parent prefix, bytes int) {
	b.held += int64(bytes)
	b.kids[parent]++
	o.holders[at]++
	if o.holders[at] == 1 {
		o.kids[parent]++
	}
}

func (o *oracle) drop(b *belief, at prefix) {
	r := b.prefixes[at]
	delete(b.prefixes, at)
	b.held -= int64(r.bytes)
	b.kids[r.parent]--
	o.holders[at]--
	if o.holders[at] == 0 {
		o.kids[r.parent]--
		delete(o.uses, at)
	}
}

// trim drops what was used least recently, the end of a prompt first.
func (o *oracle) trim(b *belief) {
	if b.capacity == 0 || b.held <= b.capacity {
		return
	}
	all := make([]prefix, 0, len(b.prefixes))
	for at := range b.prefixes {
		all = append(all, at)
	}
	slices.SortFunc(all, func(x, y prefix) int {
		return cmp.Or(
			cmp.Compare(b.prefixes[x].used, b.prefixes[y].used),
			cmp.Compare(b.prefixes[y].depth, b.prefixes[x].depth),
		)
	})
	for _, at := range all {
		if b.held <= b.capacity {
			return
		}
		o.drop(b, at)
	}
}

func (o *oracle) tend() {
	for _, b := range o.removed {
		for at := range b.prefixes {
			o.drop(b, at)
		}
	}
	o.removed = nil
	for _, b := range o.workers {
		o.trim(b)
	}
}

func (o *oracle) retract(w Worker, k Key, keep int) {
	b := o.workers[w]
	if b == nil {
		return
	}
	end := 0
	var held []prefix
	for _, at := range prefixes(k) {
		r, ok := b.prefixes[at]
		if !ok {
			break
		}
		held = append(held, at)
		end += r.bytes
	}
	for _, at := range slices.Backward(held) {
		if end <= keep || b.kids[at] > 0 {
			return
		}
		end -= b.prefixes[at].bytes
		o.drop(b, at)
	}
}

func (o *oracle) match(w Worker, k Key) (bytes int, shared bool) {
	b := o.workers[w]
	if b == nil {
		return 0, true
	}
	last := prefix(0)
	for _, at := range prefixes(k) {
		r, ok := b.prefixes[at]
		if !ok {
			break
		}
		bytes += r.bytes
		last = at
	}
	if bytes == 0 {
		return 0, true
	}
	if o.uses[last] > 1 {
		return bytes, true
	}
	return bytes, !o.endsWithin(last, o.rewrite)
}

// endsWithin tells whether nothing is stored below at but the end of one prompt,
// so many chunks of it at most.
func (o *oracle) endsWithin(at prefix, chunks int) bool {
	if o.kids[at] == 0 {
		return true
	}
	if o.kids[at] > 1 || chunks == 0 {
		return false
	}
	beliefs := append(slices.Collect(maps.Values(o.workers)), o.removed...)
	for _, b := range beliefs {
		for below, r := range b.prefixes {
			if r.parent == at {
				return o.uses[below] == 1 && o.endsWithin(below, chunks-1)
			}
		}
	}
	return false
}
