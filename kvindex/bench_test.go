package kvindex

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
)

// engine feeds an index as an engine would.
type engine struct {
	index  *Index
	worker Worker
	size   int
	naming uint64 // engines with the same one name blocks alike
}

// names returns the engine's names for the blocks of a prompt.
func (e *engine) names(tokens []uint32) []uint64 {
	name, names := e.naming*0x9e3779b97f4a7c15+1, make([]uint64, 0, len(tokens)/e.size)
	for ; len(tokens) >= e.size; tokens = tokens[e.size:] {
		for _, t := range tokens[:e.size] {
			name = fold(name^uint64(t), 0xa0761d6478bd642f) ^ name>>7
		}
		names = append(names, name)
	}
	return names
}

func (e *engine) stored(tokens []uint32) *Stored {
	tokens = tokens[:len(tokens)/e.size*e.size]
	return &Stored{Root: true, Names: e.names(tokens), Tokens: tokens, BlockSize: e.size}
}

func random(rng *rand.Rand, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = rng.Uint32N(150_000)
	}
	return tokens
}

// lookups runs f for each length of prompt, size of blocks and number of
// holders, whose matches all end elsewhere.
func lookups(b *testing.B, f func(b *testing.B, x *Index, p *Prompt, m *Matches)) {
	for _, tokens := range []int{16384, 131072} {
		for _, size := range []int{16, 64} {
			for _, holders := range []int{1, 8, 64} {
				b.Run(fmt.Sprintf("tokens=%d/block=%d/holders=%d", tokens, size, holders), func(b *testing.B) {
					x := New(Options{})
					rng := rand.New(rand.NewPCG(1, 2))
					p := &Prompt{Tokens: random(rng, tokens)}
					for i := range holders {
						e := engine{x, x.Add(), size, 1}
						x.Store(e.worker, e.stored(p.Tokens[:tokens-i*tokens/holders]))
						for range 20 {
							x.Store(e.worker, e.stored(random(rng, 4096)))
						}
					}
					m := new(Matches)
					x.Lookup(p, time.Time{}, m)
					b.ReportAllocs()
					b.ResetTimer()
					f(b, x, p, m)
				})
			}
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	lookups(b, func(b *testing.B, x *Index, p *Prompt, m *Matches) {
		for range b.N {
			x.Lookup(p, time.Time{}, m)
		}
	})
}

func BenchmarkWalk(b *testing.B) {
	lookups(b, func(b *testing.B, x *Index, _ *Prompt, m *Matches) {
		for range b.N {
			x.walk(m)
		}
	})
}

const (
	benchBlocks = 1 << 20
	benchPrompt = 1024 // blocks
)

// events returns the events that store so many blocks, for each engine.
func events(engines []engine, rng *rand.Rand, blocks int) [][]*Stored {
	all := make([][]*Stored, len(engines))
	for range blocks / benchPrompt {
		tokens := random(rng, benchPrompt*16)
		for i := range engines {
			all[i] = append(all[i], engines[i].stored(tokens))
		}
	}
	return all
}

// engines returns engines of one index.
func engines(n int, namings uint64) (*Index, []engine) {
	x := New(Options{MaxBytes: 4 << 30})
	all := make([]engine, n)
	for i := range all {
		all[i] = engine{x, x.Add(), 16, uint64(i) % namings}
	}
	return x, all
}

// changes is an index of a million blocks with some prompts that come and go.
type changes struct {
	*Index
	stored  []*Stored
	dropped []*Dropped
	took    []time.Duration
}

// newChanges has the prompts held by a second worker too, or not.
func newChanges(holders int) (c changes, w Worker) {
	x, all := engines(2, 1)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, s := range events(all[:1], rng, benchBlocks)[0] {
		x.Store(all[0].worker, s)
	}
	c = changes{Index: x, stored: events(all[:1], rng, benchBlocks/16)[0]}
	for _, s := range c.stored {
		if holders > 1 {
			x.Store(all[1].worker, s)
		}
		c.dropped = append(c.dropped, &Dropped{Names: slices.Clone(s.Names)})
	}
	runtime.GC()
	return c, all[0].worker
}

// time calls f for each prompt.
func (c *changes) time(f func(i int)) {
	for i := range c.stored {
		begin := time.Now()
		f(i)
		c.took = append(c.took, time.Since(begin))
	}
}

// report reports the mean time of a block, and that of the fastest tenth,
// which is what it takes where nothing else runs.
func (c *changes) report(b *testing.B) {
	slices.Sort(c.took)
	sum := time.Duration(0)
	for _, d := range c.took {
		sum += d
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(sum)/float64(len(c.took))/benchPrompt, "ns/block")
	b.ReportMetric(float64(c.took[len(c.took)/10])/benchPrompt, "quiet-ns/block")
}

// BenchmarkStore is the time for a block in an index that has a million: of
// new blocks, and of blocks that another worker has, which were removed root
// first a moment ago.
func BenchmarkStore(b *testing.B) {
	for holders, name := range []string{1: "new", 2: "again"} {
		if name == "" {
			continue
		}
		b.Run(name, func(b *testing.B) {
			c, w := newChanges(holders)
			for range b.N {
				c.time(func(i int) { c.Store(w, c.stored[i]) })
				for _, d := range c.dropped {
					c.Drop(w, d)
				}
			}
			c.report(b)
		})
	}
}

// BenchmarkRemove is the time for a block in an index that has a million: of
// blocks that go with their last holder or stay with another, from the root
// down, from the end up, and in an event for each.
func BenchmarkRemove(b *testing.B) {
	for _, order := range []string{"root-first", "leaf-first", "single"} {
		for holders, name := range []string{1: "last", 2: "shared"} {
			if name == "" {
				continue
			}
			b.Run(order+"/"+name, func(b *testing.B) {
				c, w := newChanges(holders)
				if order != "root-first" {
					for _, d := range c.dropped {
						slices.Reverse(d.Names)
					}
				}
				for range b.N {
					for _, s := range c.stored {
						c.Store(w, s)
					}
					c.time(func(i int) { c.drop(w, c.dropped[i], order == "single") })
				}
				c.report(b)
			})
		}
	}
}

func (c *changes) drop(w Worker, d *Dropped, singly bool) {
	if !singly {
		c.Drop(w, d)
		return
	}
	for i := range d.Names {
		c.Drop(w, &Dropped{Names: d.Names[i : i+1]})
	}
}

// BenchmarkMemory is the heap for each block and holder, where engines name
// blocks alike and where each has names of its own.
func BenchmarkMemory(b *testing.B) {
	for _, namings := range []uint64{1, 8} {
		b.Run(fmt.Sprintf("holders=8/namings=%d", namings), func(b *testing.B) {
			for range b.N {
				x, engines := engines(8, namings)
				events := events(engines, rand.New(rand.NewPCG(1, 2)), benchBlocks)
				before := heap()
				for i, e := range engines {
					for _, s := range events[i] {
						x.Store(e.worker, s)
					}
				}
				after := heap()
				stats := x.Stats()
				b.ReportMetric(float64(after-before)/benchBlocks/8, "heap-B/holder")
				b.ReportMetric(float64(stats.Bytes)/benchBlocks/8, "stats-B/holder")
				runtime.KeepAlive(events)
				runtime.KeepAlive(x)
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
