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
	r := &cacheAware{
		tree:       radix.New(radix.Options{Rewrite: radix.DefaultRewrite}),
		handles:    make([]radix.Worker, o.Engines),
		candidates: make([]selection.Candidate, o.Engines),
	}
	workers := fleet.New()
	for i := range o.Engines {
		r.candidates[i].Worker = workers.Join(fmt.Sprint(i))
		r.handles[i] = r.tree.Add()
		r.tree.SetCapacity(r.handles[i], int64(o.believed())*tokenBytes)
	}
	return r.place
}

type cacheAware struct {
	tree       *radix.Tree
	handles    []radix.Worker
	candidates []selection.Candidate
	matches    radix.Matches
}

func (c *cacheAware) place(r *trace.Request, now time.Time) Decision {
	k := key(r)
	c.tree.Match(k, &c.matches)
	for i, handle := range c.handles {
		c.candidates[i].Held = c.matches.Bytes(handle) / tokenBytes
		c.candidates[i].Private = !c.matches.Shared(handle)
	}
	choice, reservation := selection.Place(selection.Cost{}, r.Input, c.candidates, now)
	c.tree.Insert(c.handles[choice.Index], k)
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
