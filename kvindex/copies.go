package kvindex

// maxCopies is how many copies of a block are counted for a worker. Engines
// send one removal for each copy: vLLM makes one more each time it computes
// the last block of a wholly cached prompt again. Four were the most seen of
// real copies. A client that asks vLLM to report held blocks again adds
// copies that do not exist, as many as it likes, and each would keep the
// block alive beyond its removal; [Index.Correct] brings them down.
const maxCopies = 8

// maxRepeated is how many counts above one are kept, for each MiB of limit.
const maxRepeatedPerMiB = 1024

const copyBytes = 40

// holder is a lane's hold of a block.
type holder struct {
	id   uint32
	lane lane
}

// copies counts the copies beyond the first. Few blocks have any.
type copies struct {
	extra map[holder]uint8
}

func (c *copies) bytes() int64 { return int64(len(c.extra)) * copyBytes }

// repeat counts one more copy of a block that the lane holds already.
func (x *Index) repeat(id uint32, l lane) {
	h := holder{id, l}
	n := x.copies.extra[h]
	if n >= maxCopies-1 {
		x.counts.Clamped++
		return
	}
	if n == 0 && int64(len(x.copies.extra)) >= x.limit>>20*maxRepeatedPerMiB+maxRepeatedPerMiB {
		x.counts.Clamped++
		return
	}
	x.copies.extra[h] = n + 1
	x.slab.at(id).flags |= repeated
}

// unrepeat takes a copy beyond the first away, and reports whether there was
// one.
func (x *Index) unrepeat(id uint32, l lane) bool {
	if x.slab.at(id).flags&repeated == 0 {
		return false
	}
	h := holder{id, l}
	switch n := x.copies.extra[h]; n {
	case 0:
		return false
	case 1:
		delete(x.copies.extra, h)
	default:
		x.copies.extra[h] = n - 1
	}
	return true
}

// single forgets all copies but the first.
func (x *Index) single(id uint32, l lane) (changed bool) {
	if x.slab.at(id).flags&repeated == 0 {
		return false
	}
	h := holder{id, l}
	_, changed = x.copies.extra[h]
	delete(x.copies.extra, h)
	return changed
}
