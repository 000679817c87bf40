package radix

// Retract takes back an Insert of a prompt that the worker did not serve after
// all: the worker no longer holds anything of it beyond its first keep bytes,
// except what other prompts that it was sent go on from.
func (t *Tree) Retract(w Worker, k Key, keep int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.worker(w)
	if s == nil || len(k.Chunks) == 0 {
		return
	}
	t.work = 0
	t.retractions.Add(1)
	t.dropBeyond(s, k, keep)
	t.room(0, 0) // a split takes memory
}

// Retractions returns how often Retract was called. As long as it is what it was before
// an Insert, nothing has taken that Insert back. It waits for nobody.
func (t *Tree) Retractions() uint64 { return t.retractions.Load() }

func (t *Tree) dropBeyond(s *worker, k Key, keep int) {
	id, end := t.held(s, k)
	for id != 0 && end > keep {
		n := t.nodes.at(id)
		if t.crowds.link(n, s.list.slot).below > 0 {
			return
		}
		parent, start := n.parent, end-n.bytes()
		if kept := max(keep-start, 0) / ChunkBytes; kept > 0 {
			t.split(id, kept)
		}
		t.drop(s, id)
		id, end = parent, start
	}
}

// held returns the last node on the prompt's path that the worker holds, and
// the length of prompt to its end in bytes. It returns 0 if that node goes on
// differently: then it is another prompt's.
func (t *Tree) held(s *worker, k Key) (last uint32, end int) {
	first, rest := k.root(), k.Chunks[1:]
	for {
		id := t.index.find(last, first)
		if id == 0 {
			return last, end
		}
		n := t.nodes.at(id)
		if !t.crowds.holds(n, s.list.slot) {
			return last, end
		}
		same := t.edges.common(n, rest)
		if same < int(n.rest) {
			return 0, 0
		}
		last = id
		end += n.bytes()
		if same == len(rest) {
			return last, end
		}
		first, rest = rest[same], rest[same+1:]
	}
}
