package kvindex

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The phantom prefix: cases in which event-fed indexes were seen to report
// blocks that nobody holds, or to hide some that somebody does. A prompt of
// 16,384 tokens is 1,024 blocks of 16.

type phantom struct {
	t     *testing.T
	index *Index
	rng   *rand.Rand
}

func newPhantom(t *testing.T) *phantom {
	return &phantom{t, New(Options{}), rand.New(rand.NewPCG(1, 2))}
}

func (f *phantom) engine() engine { return engine{f.index, f.index.Add(), 16, 1} }

func (f *phantom) store(e engine, tokens []uint32) {
	a := f.index.Store(e.worker, e.stored(tokens))
	require.Equal(f.t, Applied{Credited: len(tokens) / e.size}, a)
}

// blocks returns how many blocks of a prompt and one more token are held.
func (f *phantom) blocks(e engine, tokens []uint32) int {
	var m Matches
	f.index.Lookup(&Prompt{Tokens: append(slices.Clone(tokens), 1)}, time.Time{}, &m)
	check(f.t, f.index)
	return m.Held(e.worker) / e.size
}

func TestPhantomPromptsThatDifferInAStampNearTheTopShareOnlyWhatIsAboveIt(t *testing.T) {
	f := newPhantom(t)
	e, a := f.engine(), random(f.rng, 16384)
	f.store(e, a)
	b := slices.Clone(a)
	for i := range 4 {
		b[100+i]++
	}
	require.Equal(t, 1024, f.blocks(e, a))
	require.Equal(t, 6, f.blocks(e, b))
}

func TestPhantomHalfAPromptOfOneAndAnotherPromptOfTheNextAddUpToNeither(t *testing.T) {
	f := newPhantom(t)
	first, second, a := f.engine(), f.engine(), random(f.rng, 16384)
	f.store(first, a)
	b := slices.Clone(a)
	b[100]++
	f.store(second, b[:8192])
	require.Equal(t, 6, f.blocks(first, b))
	require.Equal(t, 512, f.blocks(second, b))
	require.Equal(t, 6, f.blocks(second, a))
}

func TestPhantomARemovalInTheMiddleEndsTheMatchThere(t *testing.T) {
	f := newPhantom(t)
	e, a := f.engine(), random(f.rng, 16384)
	f.store(e, a)
	s := e.stored(a)
	f.index.Drop(e.worker, &Dropped{Names: s.Names[10:11]})
	require.Equal(t, 10, f.blocks(e, a))

	// It comes back, and what follows it had never gone.
	f.index.Store(e.worker, &Stored{Parent: s.Names[9], Names: s.Names[10:11], Tokens: a[160:176], BlockSize: 16})
	require.Equal(t, 1024, f.blocks(e, a))
}

func TestPhantomBlocksThatAreEqualAtSomePositionsProveNothingOfThoseBetween(t *testing.T) {
	f := newPhantom(t)
	e, a, b := f.engine(), random(f.rng, 129*16), random(f.rng, 129*16)
	f.store(e, a)
	for _, at := range []int{0, 64, 128} {
		copy(b[at*16:], a[at*16:(at+1)*16])
	}
	require.Equal(t, 1, f.blocks(e, b))
}

func TestPhantomBlocksWhoseParentWasLostAreNotTakenForTheBeginningOfAPrompt(t *testing.T) {
	f := newPhantom(t)
	e, a := f.engine(), random(f.rng, 64)
	s := e.stored(a)
	lost := &Stored{Parent: s.Names[1], Names: s.Names[2:], Tokens: a[32:], BlockSize: 16}
	require.Equal(t, Applied{Orphans: 2}, f.index.Store(e.worker, lost))
	require.Zero(t, f.blocks(e, a))
	require.Zero(t, f.blocks(e, a[32:]), "two blocks were taken for a prompt")
	require.Zero(t, f.index.Stats().Blocks)

	// A replay brings all of it.
	f.store(e, a)
	require.Equal(t, Applied{Credited: 2}, f.index.Store(e.worker, lost))
	require.Equal(t, 4, f.blocks(e, a))
}

func TestPhantomAllHoldersOfAPromptAreSeenHoweverMany(t *testing.T) {
	f := newPhantom(t)
	a := random(f.rng, 1600)
	var engines []engine
	for range 200 {
		engines = append(engines, f.engine())
		f.store(engines[len(engines)-1], a)
	}
	var m Matches
	f.index.Lookup(&Prompt{Tokens: append(slices.Clone(a), 1)}, time.Time{}, &m)
	for _, e := range engines {
		require.Equal(t, 1600, m.Held(e.worker))
	}
	check(t, f.index)
	require.Equal(t, 100, f.index.Stats().Blocks)
}
