package kvindex

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fleet is some engines with blocks of 16 tokens, and a prompt.
func fleet(workers int) (*Index, []engine, []uint32) {
	x := New(Options{})
	var engines []engine
	for range workers {
		engines = append(engines, engine{x, x.Add(), 16, 1})
	}
	return x, engines, random(rand.New(rand.NewPCG(3, 4)), 641)
}

func held(x *Index, w Worker, p *Prompt) int {
	var m Matches
	x.Lookup(p, time.Time{}, &m)
	return m.Held(w)
}

func TestTheLastTokenIsNeverHeld(t *testing.T) {
	x, engines, tokens := fleet(1)
	e := engines[0]
	x.Store(e.worker, e.stored(tokens))
	for n, want := range map[int]int{0: 0, 1: 0, 16: 0, 17: 16, 32: 16, 33: 32, 640: 624, 641: 640} {
		require.Equal(t, want, held(x, e.worker, &Prompt{Tokens: tokens[:n]}), "%d tokens", n)
	}
}

func TestWhatSeparatesCachesSeparatesMatches(t *testing.T) {
	x, engines, tokens := fleet(1)
	e := engines[0]
	tokens = tokens[:33]
	media := []Media{{Identifier: "cat", Offset: 10, Length: 10}}
	prompts := []*Prompt{
		{Tokens: tokens},
		{Tokens: tokens, Salt: "a"},
		{Tokens: tokens, Salt: "b"},
		{Tokens: tokens, Adapter: "a"},
		{Tokens: tokens, Adapter: "a", Salt: "a"},
		{Tokens: tokens, Units: Pairs},
		{Tokens: tokens, Media: media},
		{Tokens: tokens, Media: []Media{{Identifier: "dog", Offset: 10, Length: 10}}},
		{Tokens: tokens, Media: []Media{{Identifier: "cat", Offset: 9, Length: 10}}},
	}
	for i, p := range prompts {
		s := e.stored(tokens)
		for j := range s.Names {
			s.Names[j] += uint64(i)
		}
		s.Adapter, s.Salt, s.Units = p.Adapter, p.Salt, p.Units
		for _, m := range p.Media {
			s.Media = [][]MediaKey{{{m.Identifier, m.Offset}}, {{m.Identifier, m.Offset - 16}}}
		}
		for _, q := range prompts[i:] {
			require.Zero(t, held(x, e.worker, q))
		}
		require.Equal(t, Applied{Credited: 2}, x.Store(e.worker, s))
		require.Equal(t, 32, held(x, e.worker, p))
	}
	beyond := &Prompt{Tokens: tokens, Media: []Media{{Identifier: "cat", Offset: 16, Length: 1}}}
	require.Equal(t, 16, held(x, e.worker, beyond), "an item changed the block before it")
	check(t, x)
}

func TestPairsAreOneFewerThanTokens(t *testing.T) {
	require.Empty(t, AppendPairs(nil, nil))
	require.Empty(t, AppendPairs(nil, []uint32{1}))
	require.Equal(t, []uint32{Pair(1, 2), Pair(2, 3)}, AppendPairs(nil, []uint32{1, 2, 3}))
	require.NotEqual(t, Pair(1, 2), Pair(2, 1))
}

func TestBytesAndIntegersNameTheSameBlock(t *testing.T) {
	// The same block as vLLM names it in either form.
	digest := make([]byte, 32)
	digest[0], digest[24], digest[31] = 9, 1, 2
	require.EqualValues(t, 1<<56|2, NameOf(digest))
	require.NotEqual(t, NameOf([]byte{1}), NameOf([]byte{2}))
}

func TestEachCopyTakesARemoval(t *testing.T) {
	x, engines, tokens := fleet(1)
	e := engines[0]
	s, p := e.stored(tokens[:32]), &Prompt{Tokens: tokens}
	for range 3 {
		x.Store(e.worker, s)
	}
	for range 2 {
		require.Zero(t, x.Drop(e.worker, &Dropped{Names: s.Names}).Unknown)
		require.Equal(t, 32, held(x, e.worker, p))
	}
	x.Drop(e.worker, &Dropped{Names: s.Names})
	require.Zero(t, held(x, e.worker, p))
	require.Equal(t, Applied{Unknown: 2}, x.Drop(e.worker, &Dropped{Names: s.Names}))

	for range 100 {
		x.Store(e.worker, s)
	}
	for range maxCopies {
		require.Equal(t, 32, held(x, e.worker, p))
		x.Drop(e.worker, &Dropped{Names: s.Names})
	}
	require.Zero(t, held(x, e.worker, p))
	require.EqualValues(t, 2*(100-maxCopies), x.Stats().Clamped)
	require.Zero(t, x.Stats().Blocks)
	check(t, x)
}

func TestNamesMeanWhatTheirWorkerSaid(t *testing.T) {
	x, engines, tokens := fleet(2)
	a, b := engines[0], engines[1]
	other := random(rand.New(rand.NewPCG(5, 6)), 33)
	counted := func(tokens []uint32) *Stored {
		return &Stored{Root: true, Names: []uint64{1, 2}, Tokens: tokens[:32], BlockSize: 16}
	}
	x.Store(a.worker, counted(tokens))
	x.Store(b.worker, counted(other))
	require.Equal(t, 32, held(x, a.worker, &Prompt{Tokens: tokens[:33]}))
	require.Equal(t, 32, held(x, b.worker, &Prompt{Tokens: other}))
	require.Zero(t, held(x, b.worker, &Prompt{Tokens: tokens[:33]}))

	// What a calls 3 is nothing to b.
	x.Store(a.worker, &Stored{Parent: 2, Names: []uint64{3}, Tokens: tokens[32:48], BlockSize: 16})
	lost := &Stored{Parent: 3, Names: []uint64{4}, Tokens: tokens[48:64], BlockSize: 16}
	require.Equal(t, Applied{Orphans: 1}, x.Store(b.worker, lost))
	require.Equal(t, Applied{Credited: 1}, x.Store(a.worker, lost))
	require.Equal(t, Applied{Unknown: 1}, x.Drop(b.worker, &Dropped{Names: []uint64{3}}))

	x.Drop(b.worker, &Dropped{Names: []uint64{2}})
	require.Equal(t, 16, held(x, b.worker, &Prompt{Tokens: other}))
	require.Equal(t, 64, held(x, a.worker, &Prompt{Tokens: tokens[:65]}))
	check(t, x)
}

func TestTiersAreCountedApart(t *testing.T) {
	x, engines, tokens := fleet(1)
	e := engines[0]
	s := e.stored(tokens[:64])
	on := func(t Tier, from, to int) {
		x.Store(e.worker, &Stored{
			Root: from == 0, Parent: s.Names[max(from-1, 0)], Names: s.Names[from:to],
			Tokens: tokens[from*16 : to*16], BlockSize: 16, Tier: t,
		})
	}
	depths := func() (d [tiers]int) {
		var m Matches
		x.Lookup(&Prompt{Tokens: tokens[:65]}, time.Time{}, &m)
		for t := range d {
			d[t] = m.HeldIn(e.worker, Tier(t)) / 16
		}
		check(t, x)
		return d
	}
	on(Device, 0, 2)
	on(Host, 2, 3)
	on(Remote, 3, 4)
	require.Equal(t, [tiers]int{2, 3, 3, 4}, depths())
	on(Host, 0, 2)
	x.Drop(e.worker, &Dropped{Names: s.Names[:1]})
	require.Equal(t, [tiers]int{0, 3, 3, 4}, depths(), "the first block is on the host only")
	on(Device, 2, 4)
	require.Equal(t, [tiers]int{0, 4, 4, 4}, depths())
	on(Device, 0, 1)
	require.Equal(t, [tiers]int{4, 4, 4, 4}, depths())
}

func TestAnotherBlockSizeIsAnEngineThatBeganAnew(t *testing.T) {
	x, engines, tokens := fleet(2)
	e, other := engines[0], engines[1]
	x.Store(e.worker, e.stored(tokens))
	x.Store(other.worker, other.stored(tokens))
	e.size = 64
	x.Store(e.worker, e.stored(tokens[:128]))
	require.Equal(t, 128, held(x, e.worker, &Prompt{Tokens: tokens}))
	require.Equal(t, 640, held(x, other.worker, &Prompt{Tokens: tokens}), "one lookup knows both sizes")
	require.Equal(t, 64, x.Holding(e.worker).BlockSize)
	require.EqualValues(t, 1, x.Holding(e.worker).Restarts)
	check(t, x)
}

func TestClearForgetsAtOnceAndTendTakesTheMemoryBack(t *testing.T) {
	x, engines, tokens := fleet(2)
	for _, e := range engines {
		x.Store(e.worker, e.stored(tokens))
	}
	x.Clear(engines[0].worker)
	require.Zero(t, held(x, engines[0].worker, &Prompt{Tokens: tokens}))
	require.Equal(t, 640, held(x, engines[1].worker, &Prompt{Tokens: tokens}))

	// A store between two clears of one batch counts, and no older one.
	x.Store(engines[0].worker, engines[0].stored(tokens[:32]))
	require.Equal(t, 32, held(x, engines[0].worker, &Prompt{Tokens: tokens}))
	x.Remove(engines[1].worker)
	x.Remove(engines[1].worker)
	require.Equal(t, Applied{Refused: 1}, x.Store(engines[1].worker, &Stored{Names: []uint64{1}}))
	require.Equal(t, 40, x.Stats().Blocks)
	for x.Tend() {
		continue
	}
	require.Equal(t, 2, x.Stats().Blocks)
	require.Equal(t, 1, x.Stats().Workers)
	check(t, x)
}

func TestClearingAgainAndAgainNeedsNoMoreLanesThanThereAre(t *testing.T) {
	x, engines, tokens := fleet(3)
	for range 3 * maxLanes {
		for _, e := range engines[:2] {
			x.Store(e.worker, e.stored(tokens[:32]))
			x.Clear(e.worker)
		}
	}
	require.LessOrEqual(t, len(x.lanes), maxLanes)
	e := engines[2]
	x.Store(e.worker, e.stored(tokens))
	require.Equal(t, 640, held(x, e.worker, &Prompt{Tokens: tokens}))
	check(t, x)
}

func TestMalformedEventsChangeNothing(t *testing.T) {
	x, engines, tokens := fleet(1)
	w := engines[0].worker
	for name, s := range map[string]*Stored{
		"no size":      {Root: true, Names: []uint64{1}, Tokens: tokens[:16]},
		"huge size":    {Root: true, Names: []uint64{1}, Tokens: tokens[:16], BlockSize: 1 << 40},
		"few tokens":   {Root: true, Names: []uint64{1}, Tokens: tokens[:15], BlockSize: 16},
		"many tokens":  {Root: true, Names: []uint64{1}, Tokens: tokens[:32], BlockSize: 16},
		"no tier":      {Root: true, Names: []uint64{1}, Tokens: tokens[:16], BlockSize: 16, Tier: 4},
		"own parent":   {Parent: 1, Names: []uint64{1}, Tokens: tokens[:16], BlockSize: 16},
		"not a worker": nil,
	} {
		if s == nil {
			require.Equal(t, Applied{Refused: 1}, x.Store(Worker{}, &Stored{Names: []uint64{1}}), name)
			continue
		}
		require.Equal(t, Applied{Refused: 1}, x.Store(w, s), name)
	}
	require.Zero(t, x.Stats().Blocks)
	require.Zero(t, held(x, Worker{}, &Prompt{Tokens: tokens}))
}

func TestWhatIsExpectedIsNotTakenForHeldAndExpires(t *testing.T) {
	x, engines, tokens := fleet(2)
	e, other := engines[0], engines[1]
	x.Store(e.worker, e.stored(tokens[:64]))
	now, m := time.Unix(100, 0), new(Matches)
	ask := func(tokens []uint32) {
		x.Lookup(&Prompt{Tokens: tokens}, now, m)
	}
	ask(tokens)
	x.Expect(e.worker, m, now)
	x.Expect(other.worker, m, now) // no event of it was seen yet
	for n, want := range map[int]int{16: 0, 17: 16, 33: 32, 321: 320, 641: 640} {
		ask(tokens[:n])
		require.Equal(t, want, m.Expected(e.worker), "%d tokens", n)
		require.Equal(t, want, m.Expected(other.worker), "%d tokens", n)
		require.LessOrEqual(t, m.Held(e.worker), 64)
		require.Zero(t, m.Held(other.worker))
	}
	require.Positive(t, x.Stats().Expected)

	x.Clear(other.worker)
	ask(tokens)
	require.Zero(t, m.Expected(other.worker), "a cleared worker is expected to hold something")
	now = now.Add(ExpectFor - 1)
	ask(tokens)
	require.Equal(t, 640, m.Expected(e.worker))
	now = now.Add(1)
	ask(tokens)
	require.Zero(t, m.Expected(e.worker))
	x.Expect(e.worker, m, now)
	require.LessOrEqual(t, x.Stats().Expected, 40, "what had expired is kept")
}

func TestExpectationsAreBounded(t *testing.T) {
	x, engines, _ := fleet(1)
	rng := rand.New(rand.NewPCG(1, 2))
	now, m := time.Unix(100, 0), new(Matches)
	for range 2 * maxExpectations / 40 {
		x.Lookup(&Prompt{Tokens: random(rng, 1025)}, now, m)
		x.Expect(engines[0].worker, m, now)
		require.LessOrEqual(t, x.Stats().Expected, maxExpectations)
	}
	x.Lookup(&Prompt{Tokens: random(rng, 1025)}, now, m)
	x.Expect(engines[0].worker, m, now)
	require.LessOrEqual(t, cap(x.expected.order), 4*maxExpectations)
}

func TestNamesThatWaitAreBounded(t *testing.T) {
	x, engines, _ := fleet(2)
	s := &Stored{Root: true, Tokens: []uint32{1}, BlockSize: 16, Kind: SlidingWindow, Window: 64}
	for i := range uint64(maxPending) {
		s.Names = append(s.Names, i+1)
	}
	require.Equal(t, Applied{Credited: maxPending}, x.Store(engines[0].worker, s))
	require.Equal(t, Applied{Refused: maxPending}, x.Store(engines[1].worker, s))
	require.Zero(t, x.Drop(engines[0].worker, &Dropped{Names: s.Names[:10]}).Unknown)
	require.Equal(t, 10, x.Store(engines[1].worker, s).Credited)
	x.Clear(engines[0].worker)
	require.Equal(t, maxPending, x.Store(engines[1].worker, s).Credited)
	check(t, x)
}

func TestWorkersAreBounded(t *testing.T) {
	x := New(Options{})
	for range MaxWorkers {
		require.NotZero(t, x.Add())
	}
	require.Zero(t, x.Add())
}

func TestTheHeapIsWhatStatsSay(t *testing.T) {
	for _, namings := range []uint64{1, 8} {
		before := heap()
		x := New(Options{})
		for i := range uint64(8) {
			e := engine{x, x.Add(), 16, i % namings}
			rng := rand.New(rand.NewPCG(1, 2))
			for range 20 {
				x.Store(e.worker, e.stored(random(rng, 16384)))
			}
		}
		bytes := int64(heap() - before)
		require.InEpsilon(t, bytes, x.Stats().Bytes, 0.1)
		each := float64(bytes) / 8 / 20480
		t.Logf("%d namings: %.1f bytes a block and holder", namings, each)
		require.Less(t, each, map[uint64]float64{1: 15, 8: 32}[namings])
	}
}

func TestALowerLimitIsKept(t *testing.T) {
	x := New(Options{MaxBytes: 3 << 20})
	rng := rand.New(rand.NewPCG(1, 2))
	e := engine{x, x.Add(), 16, 1}
	var last []uint32
	for range 100 {
		last = random(rng, 16385)
		x.Store(e.worker, e.stored(last))
		require.LessOrEqual(t, x.Stats().Bytes, int64(3<<20))
	}
	require.Equal(t, 16384, held(x, e.worker, &Prompt{Tokens: last}), "the last prompt was evicted")
	for _, limit := range []int64{2 << 20, 1 << 20, 100_000, 1} {
		x.SetMaxBytes(limit)
		for x.Tend() {
			continue
		}
		check(t, x)
		require.True(t, x.Stats().Bytes <= limit || x.Stats().Blocks == 0)
	}
	require.Zero(t, x.Stats().Blocks)
	require.Equal(t, Applied{Refused: 1024}, x.Store(e.worker, e.stored(last)))
	x.SetMaxBytes(0)
	require.Equal(t, Applied{Credited: 1024}, x.Store(e.worker, e.stored(last)))
}

func TestPromptsThatAreHitStayLongest(t *testing.T) {
	x := New(Options{MaxBytes: 3 << 20})
	rng := rand.New(rand.NewPCG(1, 2))
	e := engine{x, x.Add(), 16, 1}
	hot := random(rng, 16385)
	x.Store(e.worker, e.stored(hot))
	for range 60 {
		x.Store(e.worker, e.stored(random(rng, 16384)))
		require.Equal(t, 16384, held(x, e.worker, &Prompt{Tokens: hot}))
	}
	require.Positive(t, x.Stats().Evicted)
}

func TestLookupAllocatesNothing(t *testing.T) {
	x, engines, tokens := fleet(8)
	for i, e := range engines {
		s := e.stored(tokens[:64*(i+1)])
		s.Tier = Tier(i % tiers)
		x.Store(e.worker, s)
	}
	m, p, now := new(Matches), &Prompt{Tokens: tokens}, time.Unix(1, 0)
	x.Lookup(p, now, m)
	x.Expect(engines[0].worker, m, now)
	require.Zero(t, testing.AllocsPerRun(100, func() { x.Lookup(p, now, m) }))
}

func TestAHashDependsOnEveryTokenAndItsPlace(t *testing.T) {
	h := newHasher(1)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{1, 2, 3, 7, 16, 17, 32, 64} {
		tokens := random(rng, 4*size)
		keys := h.appendKeys(nil, &Prompt{Tokens: tokens}, size)
		require.Len(t, keys, 4)
		for i := range tokens {
			changed := slices.Clone(tokens)
			changed[i] ^= 1 << rng.IntN(32)
			got := h.appendKeys(nil, &Prompt{Tokens: changed}, size)
			require.Equal(t, keys[:i/size], got[:i/size])
			for n := i / size; n < 4; n++ {
				require.NotEqual(t, keys[n], got[n])
			}
		}
		swapped := slices.Clone(tokens)
		swapped[0], swapped[1] = tokens[1], tokens[0]
		require.NotEqual(t, keys[3], h.appendKeys(nil, &Prompt{Tokens: swapped}, size)[3])
	}
}
