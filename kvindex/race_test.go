package kvindex

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLookupsAmongEventsSeeWhatIsSteadyAndNothingThatNeverWas has workers that
// store and drop and clear, so that blocks and lanes change hands all the
// time, while others look up.
func TestLookupsAmongEventsSeeWhatIsSteadyAndNothingThatNeverWas(t *testing.T) {
	x, engines, tokens := fleet(6)
	steady, half := engines[0], engines[1]
	x.Store(steady.worker, steady.stored(tokens))
	ctx, stop := context.WithCancel(t.Context())
	var events, lookups sync.WaitGroup
	events.Go(func() { x.Run(ctx) })
	events.Go(func() {
		s := half.stored(tokens[:320])
		for ctx.Err() == nil {
			x.Store(half.worker, s)
			x.Drop(half.worker, &Dropped{Names: s.Names[5:]})
			x.Clear(half.worker)
		}
	})
	for i, e := range engines[2:] {
		events.Go(func() { churn(ctx, e, uint64(i)) })
	}
	for range 2 {
		lookups.Go(func() {
			var m Matches
			p := &Prompt{Tokens: tokens}
			for i := range 3000 {
				x.Lookup(p, time.Unix(int64(i), 0), &m)
				if !within(m.Held(steady.worker), 640, 640) || !within(m.Held(half.worker), 0, 320) {
					t.Errorf("%d and %d tokens", m.Held(steady.worker), m.Held(half.worker))
				}
				for _, e := range engines[2:] {
					if m.Held(e.worker) != 0 {
						t.Errorf("%d tokens that the worker never had", m.Held(e.worker))
					}
				}
				x.Expect(half.worker, &m, time.Unix(int64(i), 0))
			}
		})
	}
	lookups.Wait()
	stop()
	events.Wait()
	check(t, x)
	require.Equal(t, 640, held(x, steady.worker, &Prompt{Tokens: tokens}))
}

func within(n, least, most int) bool { return least <= n && n <= most }

// churn stores and drops prompts of its own, and begins anew now and then.
func churn(ctx context.Context, e engine, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	for ctx.Err() == nil {
		s := e.stored(random(rng, 256))
		e.index.Store(e.worker, s)
		if rng.IntN(2) == 0 {
			e.index.Drop(e.worker, &Dropped{Names: s.Names})
		}
		if rng.IntN(4) == 0 {
			e.index.Clear(e.worker)
		}
	}
}

func TestABlockInThePlaceOfAnotherBeginsInANewEpoch(t *testing.T) {
	x := New(Options{})
	before := x.epoch.Load()
	id := x.create(1, 0)
	require.Equal(t, before, x.epoch.Load(), "there was no other block")
	for key := range uint64(3) {
		before = x.epoch.Load()
		x.prune(id)
		require.Zero(t, x.slab.at(id).key.Load())
		require.Equal(t, id, x.create(key+2, 0))
		require.Greater(t, x.epoch.Load(), before)
	}
}
