package kvindex

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
)

// story makes random events, and tells them to an index and to the oracle.
type story struct {
	t      *testing.T
	rng    *rand.Rand
	index  *Index
	oracle oracle
	all    []Worker
	naming []int
	size   []int // of blocks, by worker
	now    time.Time

	letters int // how many tokens there are
	counted map[Worker]map[string]uint64
}

// What workers call their blocks.
const (
	alike   = iota // as others do
	own            // in a way of their own
	counter        // 1, 2, 3: the same names for other blocks
	namings = iota
)

func newStory(t *testing.T, seed uint64, o Options, workers int) *story {
	o.Seed = seed + 1
	s := &story{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), index: New(o), oracle: oracle{map[Worker]*oracleWorker{}},
		now: time.Unix(1000, 0), letters: 3, counted: map[Worker]map[string]uint64{},
	}
	for i := range workers {
		s.all = append(s.all, Worker{})
		s.naming = append(s.naming, i%namings)
		s.size = append(s.size, 2+i%2)
		s.hire(i)
	}
	return s
}

func (s *story) hire(i int) {
	if s.all[i] != (Worker{}) {
		s.index.Remove(s.all[i])
		delete(s.oracle.workers, s.all[i])
	}
	s.all[i] = s.index.Add()
	require.NotEqual(s.t, Worker{}, s.all[i])
	s.oracle.workers[s.all[i]] = newOracleWorker()
	s.counted[s.all[i]] = map[string]uint64{}
}

// call returns what a worker calls a block.
func (s *story) call(i int, prompt string) uint64 {
	switch s.naming[i] {
	case alike:
		return xxh3.HashString(prompt)
	case own:
		return xxh3.HashStringSeed(prompt, uint64(i))
	}
	counted := s.counted[s.all[i]]
	if counted[prompt] == 0 {
		counted[prompt] = uint64(len(counted) + 1)
	}
	return counted[prompt]
}

func (s *story) prompt() *Prompt {
	p := &Prompt{Tokens: make([]uint32, s.rng.IntN(30))}
	for i := range p.Tokens {
		p.Tokens[i] = uint32(s.rng.IntN(s.letters))
	}
	if s.rng.IntN(8) == 0 {
		p.Salt = "salt"
	}
	if s.rng.IntN(8) == 0 {
		p.Adapter = "adapter"
	}
	if s.rng.IntN(8) == 0 {
		p.Units = Pairs
	}
	return p
}

func (s *story) tier() Tier {
	if s.rng.IntN(3) > 0 {
		return Device
	}
	return Tier(s.rng.IntN(tiers))
}

// stored returns an event of a part of a prompt.
func (s *story) stored(i int) *Stored {
	size, p := s.size[i], s.prompt()
	from := 0
	blocks := len(p.Tokens) / size
	e := &Stored{Root: true, BlockSize: size, Tier: s.tier(), Adapter: p.Adapter, Salt: p.Salt, Units: p.Units}
	if blocks > 1 && s.rng.IntN(2) == 0 {
		from = 1 + s.rng.IntN(blocks-1)
		e.Root, e.Adapter, e.Salt, e.Units = false, "", "", Tokens
		e.Parent = s.call(i, written(size, p.Adapter, p.Salt, p.Units, p.Tokens[:from*size]))
	}
	e.Tokens = p.Tokens[from*size : blocks*size]
	for n := from + 1; n <= blocks; n++ {
		e.Names = append(e.Names, s.call(i, written(size, p.Adapter, p.Salt, p.Units, p.Tokens[:n*size])))
	}
	return e
}

// dropped returns an event of some blocks of a prompt, in any order.
func (s *story) dropped(i int) *Dropped {
	size, p := s.size[i], s.prompt()
	e := &Dropped{Tier: s.tier()}
	for n := len(p.Tokens) / size; n > 0; n-- {
		if s.rng.IntN(3) > 0 {
			e.Names = append(e.Names, s.call(i, written(size, p.Adapter, p.Salt, p.Units, p.Tokens[:n*size])))
		}
	}
	if s.rng.IntN(2) == 0 {
		s.rng.Shuffle(len(e.Names), func(a, b int) { e.Names[a], e.Names[b] = e.Names[b], e.Names[a] })
	}
	return e
}

func (s *story) store(i int, e *Stored) {
	s.oracle.store(s.all[i], e)
	s.index.Store(s.all[i], e)
}

// oddity is an event that no sane engine sends.
func (s *story) oddity(i int) {
	e := s.stored(i)
	if len(e.Names) == 0 {
		return
	}
	n := s.rng.IntN(len(e.Names))
	switch s.rng.IntN(4) {
	case 0: // its own parent
		e.Root, e.Parent = false, e.Names[n]
	case 1: // one name twice
		e.Names[n] = e.Names[s.rng.IntN(len(e.Names))]
	case 2: // another name for a block
		e.Names[n] = s.rng.Uint64N(50)
	case 3: // a parent that never was
		e.Root, e.Parent = false, s.rng.Uint64()
	}
	s.store(i, e)
}

func (s *story) step() {
	i := s.rng.IntN(len(s.all))
	w := s.all[i]
	switch n := s.rng.IntN(1000); {
	case n < 350:
		s.store(i, s.stored(i))
	case n < 650:
		e := s.dropped(i)
		s.oracle.drop(w, e)
		s.index.Drop(w, e)
	case n < 655:
		s.oracle.clear(w)
		s.index.Clear(w)
	case n < 657:
		s.hire(i)
	case n < 660:
		s.size[i] = 5 - s.size[i]
	case n < 700:
		s.now = s.now.Add(time.Duration(s.rng.IntN(300)) * time.Millisecond)
	case n < 720:
		s.index.Tend()
	default:
		s.ask(n)
	}
}

// ask looks a prompt up, and sends it somewhere if n is small.
func (s *story) ask(n int) {
	p := s.prompt()
	var m Matches
	s.index.Lookup(p, s.now, &m)
	for i, w := range s.all {
		for t := range Tier(tiers) {
			require.Equal(s.t, s.oracle.held(w, p, t), m.HeldIn(w, t), "worker %d, tier %d", i, t)
		}
		soon := m.Expected(w)
		require.Equal(s.t, s.oracle.expects(w, p, s.now), soon, "worker %d", i)
	}
	if n < 760 {
		w := s.all[s.rng.IntN(len(s.all))]
		s.index.Expect(w, &m, s.now)
		s.oracle.expect(w, p, s.now)
	}
}

func TestTheIndexKnowsWhatTheOracleKnows(t *testing.T) {
	steps := 12_000
	if os.Getenv("LONG") != "" {
		steps = 1_000_000
	}
	for _, workers := range []int{1, 6, 70} {
		s := newStory(t, uint64(workers), Options{}, workers)
		for i := range steps / 3 {
			if s.step(); i%3 == 0 && s.rng.IntN(20) == 0 {
				s.oddity(s.rng.IntN(workers))
			}
			if i%2000 == 0 {
				check(t, s.index)
			}
		}
		check(t, s.index)
		for _, w := range s.all {
			s.index.Remove(w)
		}
		for s.index.Tend() {
			continue
		}
		check(t, s.index)
		require.Zero(t, s.index.Stats().Blocks, "removed workers left something behind")
	}
}

func TestAtTheLimitTheIndexKnowsNoMoreThanTheOracle(t *testing.T) {
	const limit = 256 << 10
	steps := 6_000
	if os.Getenv("LONG") != "" {
		steps = 500_000
	}
	s := newStory(t, 9, Options{MaxBytes: limit}, 8)
	s.letters = 7
	for i := range s.naming {
		s.naming[i] %= counter // an evicted block's name must not be used anew
		s.size[i] = 2
	}
	less := 0
	for i := range steps {
		at := s.rng.IntN(len(s.all))
		switch w := s.all[at]; {
		case s.rng.IntN(4) > 0:
			s.store(at, s.stored(at))
		case s.rng.IntN(20) == 0:
			s.oracle.clear(w)
			s.index.Clear(w)
		default:
			e := s.dropped(at)
			s.oracle.drop(w, e)
			s.index.Drop(w, e)
		}
		require.LessOrEqual(t, s.index.Stats().Bytes, int64(limit))
		less += s.askAtMost()
		if i%2000 == 0 {
			check(t, s.index)
		}
	}
	check(t, s.index)
	require.Positive(t, s.index.Stats().Evicted)
	require.Positive(t, less, "nothing was forgotten that anybody asked for")
}

func (s *story) askAtMost() (less int) {
	p := s.prompt()
	var m Matches
	s.index.Lookup(p, s.now, &m)
	for _, w := range s.all {
		for t := range Tier(tiers) {
			held := s.oracle.held(w, p, t)
			require.LessOrEqual(s.t, m.HeldIn(w, t), held)
			if m.HeldIn(w, t) < held {
				less++
			}
		}
	}
	return less
}
