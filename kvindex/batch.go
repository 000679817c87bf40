package kvindex

import "sync/atomic"

// Of a million blocks nothing is in the processor's cache, and a line of memory
// takes longer to read than an event should take for a block. But a processor
// reads some dozen lines at a time, if it knows early which, and if there is
// little to do between one and the next. So an event is applied in batches, and
// before a batch come loops that each read one kind of line and do nothing else.
// A branch that is guessed wrong ends what is read ahead: one loop for all would
// take three times as long.

// maxBatch is how many blocks of an event are looked up ahead of their use.
const maxBatch = 64

// mention is a block that an event is about to store or to drop.
type mention struct {
	key  uint64
	name uint64
	hash uint64 // of the name
	id   uint32 // the block, or 0 if it was not found
}

// lines are where the searches for a batch of blocks begin.
type lines [maxBatch]*line

// warm brings the first n lines into the processor's cache.
func (l *lines) warm(n int) {
	for _, line := range l[:n] {
		atomic.LoadUint64(&line.tags) // an ordinary one would be left out
	}
}

// coming finds the next blocks that an event stores, after the one with a key.
func (x *Index) coming(w *worker, e *Stored, from int, key uint64) []mention {
	coming := x.batch[:min(maxBatch, len(e.Names)-from)]
	tokens := e.Tokens[from*e.BlockSize:]
	for i := range coming {
		block := x.hash.block(tokens[:e.BlockSize])
		if from+i < len(e.Media) {
			for _, m := range e.Media[from+i] {
				block = x.hash.media(block, m)
			}
		}
		key = x.hash.next(key, block)
		coming[i].key = key
		tokens = tokens[e.BlockSize:]
	}
	for i, name := range e.Names[from : from+len(coming)] {
		coming[i].name = canonical(name)
		coming[i].hash = x.hash.name(coming[i].name)
	}
	known := x.findAll(coming)
	if w.dialect != nil {
		w.dialect.table.warmAll(coming)
	}
	if known < len(coming) || w.dialect != nil {
		x.names.warmAll(coming)
	}
	x.ample = x.roomForBatch()
	return coming
}

// findAll finds blocks by their keys, and returns how many there are.
func (x *Index) findAll(batch []mention) (known int) {
	var lines lines
	for i := range batch {
		lines[i] = x.blocks.line(batch[i].key)
	}
	lines.warm(len(batch))
	for i := range batch {
		c, l := &batch[i], lines[i]
		c.id = l.first(c.key)
		if c.id == 0 && l.full() || c.id != 0 && x.slab.at(c.id).key.Load() != c.key {
			c.id = x.have(c.key)
			x.blocks.warmBeyond(c.key)
		}
		if c.id != 0 {
			known++
		}
	}
	return known
}

// going finds the next blocks that an event drops.
func (x *Index) going(w *worker, names []uint64) []mention {
	going := x.batch[:len(names)]
	for i, name := range names {
		going[i].name = canonical(name)
		going[i].hash = x.hash.name(going[i].name)
	}
	table := x.names
	if w.dialect != nil {
		table = w.dialect.table
	}
	table.firstAll(going)
	x.warmBlocks(going)
	return going
}

// firstAll finds the first block that each name may mean.
func (t *table) firstAll(batch []mention) {
	var lines lines
	for i := range batch {
		lines[i] = t.line(batch[i].hash)
	}
	lines.warm(len(batch))
	for i := range batch {
		c, l := &batch[i], lines[i]
		if c.id = l.first(c.hash); c.id == 0 && l.full() {
			p := t.seek(c.hash)
			c.id = p.next()
		}
	}
}

// warmBlocks reads the blocks that were found, and where the keys of those are
// that seem to go with their last holder.
func (x *Index) warmBlocks(batch []mention) {
	var lines lines
	n := 0
	for i := range batch {
		if id := batch[i].id; id != 0 {
			if b := x.slab.at(id); b.words.held&(b.words.held-1) == 0 {
				lines[n] = x.blocks.line(b.key.Load())
				n++
			}
		}
	}
	lines.warm(n)
}

// warmAll reads where names are, or will be.
func (t *table) warmAll(batch []mention) {
	var lines lines
	for i := range batch {
		lines[i] = t.line(batch[i].hash)
	}
	lines.warm(len(batch))
	for i := range batch {
		if lines[i].full() {
			t.warmBeyond(batch[i].hash)
		}
	}
}

// warmBeyond reads the line after the one where the search for a hash begins.
func (t *table) warmBeyond(hash uint64) {
	lines := t.of(hash).lines
	atomic.LoadUint64(&lines[(home(hash, len(lines))+1)%len(lines)].tags)
}
