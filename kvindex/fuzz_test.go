package kvindex

import (
	"testing"
	"time"
)

// FuzzEvents makes events and lookups of the input, whatever it is: each byte
// says what to do, and those after it with what.
func FuzzEvents(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 1, 2, 2, 0, 3, 1, 2, 4, 5, 6, 7, 0, 0, 1, 1, 2, 1})
	f.Add([]byte{0, 9, 9, 9, 0, 9, 9, 9, 1, 9, 1, 9, 2, 0, 3, 9, 9, 4, 200, 5, 6})
	f.Add([]byte("stories of blocks that come and go, and come again in another order"))
	f.Fuzz(func(t *testing.T, input []byte) {
		if len(input) > 1<<12 {
			return
		}
		s := newStory(t, 1, Options{MaxBytes: 1 << 20}, 4)
		in := fuzzed{input}
		for len(in.left) > 0 {
			in.step(s)
		}
		check(t, s.index)
	})
}

type fuzzed struct {
	left []byte
}

func (f *fuzzed) next() int {
	if len(f.left) == 0 {
		return 0
	}
	b := f.left[0]
	f.left = f.left[1:]
	return int(b)
}

func (f *fuzzed) tokens() []uint32 {
	tokens := make([]uint32, f.next()%24)
	for i := range tokens {
		tokens[i] = uint32(f.next() % 4)
	}
	return tokens
}

func (f *fuzzed) step(s *story) {
	do, i := f.next(), f.next()%4
	switch do % 8 {
	case 0, 1, 2:
		s.store(i, f.stored())
	case 3, 4:
		e := &Dropped{Tier: Tier(f.next() % tiers)}
		for range f.next() % 8 {
			e.Names = append(e.Names, uint64(f.next()%32))
		}
		s.oracle.drop(s.all[i], e)
		s.index.Drop(s.all[i], e)
	case 5:
		s.oracle.clear(s.all[i])
		s.index.Clear(s.all[i])
	case 6:
		s.index.Tend()
		s.now = s.now.Add(time.Second)
	case 7:
		f.ask(s)
	}
}

func (f *fuzzed) stored() *Stored {
	e := &Stored{BlockSize: 2 + f.next()%2, Tier: Tier(f.next() % tiers), Root: f.next()%2 == 0, Parent: uint64(f.next() % 32)}
	e.Tokens = f.tokens()
	e.Tokens = e.Tokens[:len(e.Tokens)/e.BlockSize*e.BlockSize]
	for range len(e.Tokens) / e.BlockSize {
		e.Names = append(e.Names, uint64(f.next()%32)+1)
	}
	return e
}

func (f *fuzzed) ask(s *story) {
	p := &Prompt{Tokens: f.tokens()}
	var m Matches
	s.index.Lookup(p, s.now, &m)
	for i, w := range s.all {
		for t := range Tier(tiers) {
			if want, got := s.oracle.held(w, p, t), m.HeldIn(w, t); want != got {
				s.t.Fatalf("worker %d holds %d tokens in tier %d, not %d", i, want, t, got)
			}
		}
	}
}
