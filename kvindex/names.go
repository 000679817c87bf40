package kvindex

// Engines name blocks by hashes of their own. Workers that hash alike share
// one name a block, kept in the block itself. A worker that calls a block
// something else has a dialect for such blocks. So what a name means to a
// worker is always what that worker said it means: a name counts only while
// the worker holds the block that it stored under it.

// dialect is what one worker calls blocks whose common name is another.
type dialect struct {
	table *table // blocks by name
	names map[uint32]*[pageBlocks]uint64
	used  map[uint32]int // names in the page
}

const dialectPageBytes = pageBlocks*8 + 64

func newDialect() *dialect {
	return &dialect{table: newTable(dense), names: map[uint32]*[pageBlocks]uint64{}, used: map[uint32]int{}}
}

// bytes returns the memory of a dialect.
func (d *dialect) bytes() int64 {
	if d == nil {
		return 0
	}
	return d.table.bytes() + int64(len(d.names))*dialectPageBytes
}

// name returns what the block is called, or 0.
func (d *dialect) name(id uint32) uint64 {
	if p := d.names[id/pageBlocks]; p != nil {
		return p[id%pageBlocks]
	}
	return 0
}

func (d *dialect) add(hash uint64, name uint64, id uint32) {
	number := id / pageBlocks
	p := d.names[number]
	if p == nil {
		p = new([pageBlocks]uint64)
		d.names[number] = p
	}
	p[id%pageBlocks] = name
	d.used[number]++
	d.table.add(hash, id)
}

func (d *dialect) remove(hash uint64, id uint32) {
	number := id / pageBlocks
	d.table.remove(hash, id)
	d.names[number][id%pageBlocks] = 0
	if d.used[number]--; d.used[number] == 0 {
		delete(d.names, number)
		delete(d.used, number)
	}
}

// canonical spares 0, which is no name.
func canonical(name uint64) uint64 {
	if name == 0 {
		return 0x9e3779b97f4a7c15
	}
	return name
}

// called returns the block that the worker holds and calls by a name, or 0.
func (x *Index) called(w *worker, name uint64) uint32 {
	return x.named(w, x.hash.name(name), name)
}

// named does the same where the hash of the name is known.
func (x *Index) named(w *worker, hash, name uint64) uint32 {
	if w.dialect != nil {
		for p := w.dialect.table.seek(hash); ; {
			id := p.next()
			if id == 0 {
				break
			}
			if w.dialect.name(id) == name {
				return id
			}
		}
	}
	id := x.common(hash, name)
	if id == 0 || !x.holds(w, id) || w.dialect != nil && w.dialect.name(id) != 0 {
		return 0
	}
	return id
}

// common returns the block with a common name, or 0.
func (x *Index) common(hash, name uint64) uint32 {
	for p := x.names.seek(hash); ; {
		id := p.next()
		if id == 0 || x.slab.at(id).name == name {
			return id
		}
	}
}

// nameOf returns what the worker calls a block that it holds.
func (x *Index) nameOf(w *worker, id uint32) uint64 {
	if w.dialect != nil {
		if name := w.dialect.name(id); name != 0 {
			return name
		}
	}
	return x.slab.at(id).name
}

// christen gives a block its common name, and reports whether it may have it:
// it has none yet, nor does another block have this one.
func (x *Index) christen(id uint32, hash, name uint64) bool {
	b := x.slab.at(id)
	if b.name != 0 || x.common(hash, name) != 0 {
		return false
	}
	b.name = name
	x.names.add(hash, id)
	return true
}

// call gives a block that the worker does not hold the name under which it
// will. It reports false if there is no room.
func (x *Index) call(w *worker, id uint32, hash, name uint64) bool {
	if x.slab.at(id).name == name || x.christen(id, hash, name) {
		return true
	}
	if !x.room(dialectPageBytes) {
		return false
	}
	if w.dialect == nil {
		w.dialect = newDialect()
		x.dialects += w.dialect.bytes()
	}
	x.dialects -= w.dialect.bytes()
	w.dialect.add(hash, name, id)
	x.dialects += w.dialect.bytes()
	return true
}

// uncall forgets what the worker called a block that it holds no more.
func (x *Index) uncall(w *worker, id uint32) {
	d := w.dialect
	if d == nil || d.name(id) == 0 {
		return
	}
	x.dialects -= d.bytes()
	d.remove(x.hash.name(d.name(id)), id)
	x.dialects += d.bytes()
}
