package kvindex

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
)

// hybrid is an engine with several cache groups, and what each holds.
type hybrid struct {
	rng    *rand.Rand
	index  *Index
	worker Worker
	groups []*Stored // one of each, without blocks
	held   []map[string]int
}

const hybridSize = 2

func newHybrid(rng *rand.Rand, x *Index, window int) *hybrid {
	h := &hybrid{rng: rng, index: x, worker: x.Add()}
	for i, kind := range []string{SlidingWindow, FullAttention, SlidingWindow, LatentAttention}[:2+rng.IntN(3)] {
		g := &Stored{Group: i, Kind: kind, BlockSize: hybridSize}
		if kind == SlidingWindow {
			g.Window = window
		}
		h.groups = append(h.groups, g)
		h.held = append(h.held, map[string]int{})
	}
	return h
}

func hybridName(tokens []uint32) uint64 {
	return xxh3.HashString(tell("", tokens))
}

// compute stores a prompt as vLLM does: what groups with windows hold of it,
// by name, and all of it in the others.
func (h *hybrid) compute(tokens []uint32) {
	blocks := len(tokens) / hybridSize
	order := h.rng.Perm(len(h.groups))
	slices.SortStableFunc(order, func(a, b int) int { return h.groups[b].Window - h.groups[a].Window })
	for _, i := range order {
		e := *h.groups[i]
		e.Root, e.Tokens = true, tokens[:blocks*hybridSize]
		for n := 1; n <= blocks; n++ {
			head := tokens[:n*hybridSize]
			if e.Window > 0 && h.rng.IntN(3) == 0 {
				continue
			}
			e.Names = append(e.Names, hybridName(head))
			h.held[i][tell("", head)] = min(h.held[i][tell("", head)]+1, maxCopies)
		}
		h.index.Store(h.worker, &e)
	}
}

func (h *hybrid) evict(tokens []uint32) {
	i := h.rng.IntN(len(h.groups))
	for n := len(tokens) / hybridSize; n > 0; n-- {
		head := tokens[:n*hybridSize]
		if h.rng.IntN(2) == 0 {
			h.index.Drop(h.worker, &Dropped{Names: []uint64{hybridName(head)}, Group: i})
			h.held[i][tell("", head)] = max(0, h.held[i][tell("", head)]-1)
		}
	}
}

// hit returns what the engine finds, by the letter of the rule.
func (h *hybrid) hit(tokens []uint32) int {
	for blocks := (len(tokens) - 1) / hybridSize; blocks > 0; blocks-- {
		if h.hits(tokens, blocks) {
			return blocks * hybridSize
		}
	}
	return 0
}

func (h *hybrid) hits(tokens []uint32, blocks int) bool {
	for i, g := range h.groups {
		first := 1
		if g.Window > 0 {
			first = max(1, blocks-(g.Window-1+hybridSize-1)/hybridSize+1)
		}
		for n := first; n <= blocks; n++ {
			if h.held[i][tell("", tokens[:n*hybridSize])] == 0 {
				return false
			}
		}
	}
	return true
}

func TestASlidingWindowNeedsTheEndOfAMatchAndFullAttentionAllOfIt(t *testing.T) {
	hits := 0
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 3))
		x := New(Options{Seed: 5})
		var engines []*hybrid
		for range 1 + rng.IntN(40) {
			engines = append(engines, newHybrid(rng, x, 2+rng.IntN(9)))
		}
		prompt := func() []uint32 {
			p := make([]uint32, rng.IntN(24))
			for i := range p {
				p[i] = uint32(rng.IntN(2) / (1 + i%2))
			}
			return p
		}
		for range 400 {
			h := engines[rng.IntN(len(engines))]
			if rng.IntN(3) > 0 {
				h.compute(prompt())
			} else {
				h.evict(prompt())
			}
			p := append(prompt(), 0)
			var m Matches
			x.Lookup(&Prompt{Tokens: p}, time.Time{}, &m)
			for _, h := range engines {
				require.Equal(t, h.hit(p), m.Held(h.worker))
				if m.Held(h.worker) > 0 {
					hits++
				}
			}
		}
		check(t, x)
	}
	require.Greater(t, hits, 1000)
}

func TestAGroupThatComesLateTakesBackWhatTheOthersProved(t *testing.T) {
	x := New(Options{})
	e := engine{x, x.Add(), 16, 1}
	tokens := random(rand.New(rand.NewPCG(1, 2)), 64)
	held := func() int {
		var m Matches
		x.Lookup(&Prompt{Tokens: append(slices.Clone(tokens), 1)}, time.Time{}, &m)
		check(t, x)
		return m.Held(e.worker)
	}
	x.Store(e.worker, e.stored(tokens))
	require.Equal(t, 64, held())

	second := e.stored(tokens[:32])
	second.Group = 1
	x.Store(e.worker, second)
	require.Equal(t, 32, held(), "blocks that the second group lacks were credited")
	x.Drop(e.worker, &Dropped{Names: second.Names[:1], Group: 0})
	require.Zero(t, held())
	x.Store(e.worker, e.stored(tokens[:16]))
	require.Equal(t, 32, held())
}

func TestAWorkerWhoseCacheFollowsUnknownRulesIsCreditedWithNothing(t *testing.T) {
	for _, test := range []struct {
		name  string
		event Stored
		why   string
	}{
		{"kind", Stored{Group: 1, Kind: "mamba", BlockSize: 16}, `it has a cache group of kind "mamba", whose matches follow rules of their own`},
		{"window", Stored{Group: 1, Kind: SlidingWindow, BlockSize: 16}, "it has a sliding window and does not say how long it is"},
		{"size", Stored{Group: 1, BlockSize: 32}, "its cache groups have blocks of 16 and of 32 tokens"},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := New(Options{})
			e := engine{x, x.Add(), 16, 1}
			p := &Prompt{Tokens: random(rand.New(rand.NewPCG(1, 2)), 65)}
			x.Store(e.worker, e.stored(p.Tokens))
			x.Store(e.worker, &test.event)
			require.Equal(t, Applied{Refused: 4}, x.Store(e.worker, e.stored(p.Tokens)))
			var m Matches
			x.Lookup(p, time.Time{}, &m)
			require.Zero(t, m.Held(e.worker))
			require.Equal(t, test.why, x.Holding(e.worker).Blind)
			require.EqualValues(t, 1, x.Stats().Blinded)
			check(t, x)
		})
	}
}
