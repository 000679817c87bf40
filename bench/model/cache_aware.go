package model

import (
	"fmt"
	"time"

	"github.com/caddy-inference/caddy-inference/fleet"
	"github.com/caddy-inference/caddy-inference/radix"
	"github.com/caddy-inference/caddy-inference/selection"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// tokenBytes is the text that a token stands for.
const tokenBytes = 4

// CacheAware places requests as the policy cache_aware does, by the code that it
// consists of: match, choose, charge, insert.
func CacheAware(o Options) Placement {
	b := newBelieving(o)
	return func(r *trace.Request, now time.Time) Decision { return b.place(selection.Cost{}, r, now) }
}

// Thresholds places requests as the policy cache_aware does with `scoring threshold`, by
// the values that it has where none are given.
func Thresholds(o Options) Placement {
	b := newBelieving(o)
	rule := selection.Thresholds{Share: 0.3, Absolute: 64, Relative: 1.5}
	return func(r *trace.Request, now time.Time) Decision { return b.place(rule, r, now) }
}

// believing is what the plugin's policies have in common: ledgers, and a tree of what was
// sent where.
type believing struct {
	tree       *radix.Tree
	handles    []radix.Worker
	candidates []selection.Candidate
	matches    radix.Matches
}

func newBelieving(o Options) *believing {
	b := &believing{
		tree:       radix.New(radix.Options{Rewrite: radix.DefaultRewrite}),
		handles:    make([]radix.Worker, o.Engines),
		candidates: make([]selection.Candidate, o.Engines),
	}
	workers := fleet.New()
	for i := range o.Engines {
		b.candidates[i].Worker = workers.Join(fmt.Sprint(i))
		b.handles[i] = b.tree.Add()
		b.tree.SetCapacity(b.handles[i], int64(o.believed())*tokenBytes)
	}
	return b
}

// place places a request that comes now by a rule.
func (b *believing) place(by selection.Rule, r *trace.Request, now time.Time) Decision {
	k := key(r)
	b.tree.Match(k, &b.matches)
	for i, handle := range b.handles {
		b.candidates[i].Held = b.matches.Bytes(handle) / tokenBytes
		b.candidates[i].Private = !b.matches.Shared(handle)
	}
	choice, reservation := selection.Place(by, r.Input, b.candidates, now)
	reservation.Expect(fleet.Streamed, now)
	b.tree.Insert(b.handles[choice.Index], k)
	return Decision{
		Engine: choice.Index,
		FirstToken: func(uncached int, now time.Time) {
			reservation.FirstToken(now)
			reservation.Learn(uncached)
		},
		End: reservation.Release,
	}
}

// key makes up the fingerprints of a request's text from the ids of its blocks.
func key(r *trace.Request) radix.Key {
	const each = trace.BlockTokens * tokenBytes / radix.ChunkBytes
	k := radix.Key{Space: 1, Chunks: make([]uint64, r.Input*tokenBytes/radix.ChunkBytes)}
	for i := range k.Chunks {
		k.Chunks[i] = r.Blocks[i/each]*each + uint64(i%each)
	}
	k.Bytes = len(k.Chunks) * radix.ChunkBytes
	return k
}
