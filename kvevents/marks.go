package kvevents

import "github.com/zeebo/xxh3"

// markCount is how many of the latest batches are told apart from ones of an engine's
// other life with the same number.
const markCount = 64

// marks remembers the latest batches by their fingerprints. A batch has the time in it at
// which it was published, so no two lives of an engine have the same.
type marks struct {
	ring [markCount]mark
}

type mark struct {
	seq, sum uint64
	set      bool
}

func (m *marks) add(seq uint64, payload []byte) {
	m.ring[seq%markCount] = mark{seq, xxh3.Hash(payload), true}
}

// find says whether the batch of a number is remembered, and whether it is this one.
func (m *marks) find(seq uint64, payload []byte) (remembered, same bool) {
	k := m.ring[seq%markCount]
	if !k.set || k.seq != seq {
		return false, false
	}
	return true, k.sum == xxh3.Hash(payload)
}
