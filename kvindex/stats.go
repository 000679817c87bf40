package kvindex

// Counts count since the beginning.
type Counts struct {
	Credited  uint64 // blocks, see Applied
	Orphans   uint64
	Unknown   uint64
	Refused   uint64
	Evicted   uint64 // blocks that the memory limit cost
	Clamped   uint64 // copies that were not counted any more
	Corrected uint64 // blocks of which Correct forgot copies
	Ambiguous uint64 // blocks that a worker has under two names, part of Refused
	Restarts  uint64 // workers whose events showed that they had begun anew
	Blinded   uint64 // workers that are credited with nothing, see Holding.Blind
}

// Stats describe an index.
type Stats struct {
	Counts
	Workers  int
	Blocks   int // known, held by whomever
	Bytes    int64
	MaxBytes int64
	Expected int // places at which a prompt is expected somewhere
}

// Stats returns the index's statistics.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	return Stats{
		Counts:   x.counts,
		Workers:  len(x.workers) - len(x.free),
		Blocks:   x.slab.live,
		Bytes:    x.bytes(),
		MaxBytes: x.limit,
		Expected: x.expected.size(),
	}
}

// Holding describes what an index knows of a worker.
type Holding struct {
	Counts

	// BlockSize is how many tokens a block has, or 0 before the first event.
	BlockSize int

	// Blocks are how many the worker holds, for each tier and cache group.
	Blocks int

	// Blind says in words why nothing is credited to the worker, if so. It stays
	// until the worker is removed.
	Blind string
}

// Holding returns what is known of a worker.
func (x *Index) Holding(w Worker) Holding {
	x.mu.Lock()
	defer x.mu.Unlock()
	wk := x.worker(w)
	if wk == nil {
		return Holding{}
	}
	h := Holding{Counts: wk.counts, BlockSize: wk.size, Blind: wk.blind}
	for _, g := range wk.groups {
		for _, l := range g.lanes {
			if l != noLane {
				h.Blocks += x.lanes[l].held
			}
		}
	}
	return h
}

func (x *Index) count(w *worker, a Applied) {
	for _, c := range []*Counts{&x.counts, &w.counts} {
		c.Credited += uint64(a.Credited) //nolint:gosec // not negative
		c.Orphans += uint64(a.Orphans)   //nolint:gosec // not negative
		c.Unknown += uint64(a.Unknown)   //nolint:gosec // not negative
		c.Refused += uint64(a.Refused)   //nolint:gosec // not negative
	}
}

// bytes returns the memory of the index.
func (x *Index) bytes() int64 {
	return x.slab.bytes() + x.blocks.bytes() + x.names.bytes() + x.dialects + x.copies.bytes() +
		int64(x.waiting)*pendingBytes + int64(len(x.lanes))*laneBytes + x.expected.bytes()
}
