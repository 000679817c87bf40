package radix

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// text is a kind of prompt, and how to make a phrase of it from a number.
type text struct {
	name   string
	phrase func(n uint64) string
}

var texts = []text{
	{"english", func(n uint64) string {
		return fmt.Sprintf("The %dth chapter tells how the harbour was rebuilt after the storm of %d. ", n%97, n)
	}},
	{"chinese", func(n uint64) string {
		return fmt.Sprintf("第%d章讲述了港口在暴风雨之后如何重建，以及第%d位船长的故事。", n%97, n)
	}},
	{"agent", func(n uint64) string {
		return fmt.Sprintf("{\"tool\":\"read_file\",\"arguments\":{\"path\":\"src/module_%d/main.go\",\"line\":%d}}\n", n%97, n)
	}},
	{"escaped", func(n uint64) string {
		return fmt.Sprintf("func step%d() {\\n\\tfmt.Println(\\\"%d\\\\u00e9\\\")\\n}\\n", n%97, n)
	}},
}

var sizes = []struct {
	name  string
	bytes int
}{
	{"200B", 200},
	{"2KiB", 2 << 10},
	{"16KiB", 16 << 10},
	{"128KiB", 128 << 10},
	{"1MiB", 1 << 20},
}

// prompt returns a prompt of so many bytes.
func (x text) prompt(bytes int) []byte {
	var b strings.Builder
	for n := uint64(0); b.Len() < bytes; n++ {
		b.WriteString(x.phrase(n * 0x9e3779b97f4a7c15 >> 40))
	}
	return []byte(b.String()[:bytes])
}

// benchmark runs f for each size, text, case and number of workers, with a
// tree whose workers hold the prompt in case of a hit. In the cold case the
// prompt begins differently each time.
func benchmark(b *testing.B, f func(r *route)) {
	for _, size := range sizes {
		for _, text := range texts {
			for _, kind := range []string{"hit", "cold"} {
				for _, workers := range []int{1, 4, 16, 64} {
					name := fmt.Sprintf("size=%s/text=%s/case=%s/workers=%d", size.name, text.name, kind, workers)
					b.Run(name, func(b *testing.B) {
						r := newRoute(b, text.prompt(size.bytes), workers)
						b.ReportAllocs()
						b.SetBytes(int64(size.bytes))
						for n := uint64(0); b.Loop(); n++ {
							if kind == "cold" {
								r.vary(n)
							}
							f(r)
						}
					})
				}
			}
		}
	}
}

// route is what routing one prompt takes.
type route struct {
	tree    *Tree
	workers []Worker
	chunker *Chunker
	prompt  []byte
	key     Key
	matches Matches
}

func newRoute(b *testing.B, prompt []byte, workers int) *route {
	r := &route{tree: New(Options{}), chunker: NewChunker(1), prompt: prompt}
	r.chunk()
	for range workers {
		w := r.tree.Add()
		r.tree.Insert(w, r.key)
		r.workers = append(r.workers, w)
	}
	r.tree.Match(r.key, &r.matches)
	require.Equal(b, r.key.Bytes, r.matches.Bytes(r.workers[workers-1]))
	return r
}

func (r *route) chunk() {
	r.chunker.Reset()
	_, _ = r.chunker.Write(r.prompt)
	r.key = r.chunker.Key(0)
}

// vary makes the prompt a new one.
func (r *route) vary(n uint64) {
	binary.LittleEndian.PutUint64(r.prompt, n)
	r.key.Chunks[0] = n
}

func BenchmarkMatch(b *testing.B) {
	benchmark(b, func(r *route) {
		r.tree.Match(r.key, &r.matches)
	})
}

func BenchmarkInsert(b *testing.B) {
	benchmark(b, func(r *route) {
		r.tree.Insert(r.workers[0], r.key)
	})
}

// BenchmarkRoute is all a request costs here: chunk, match and insert.
func BenchmarkRoute(b *testing.B) {
	benchmark(b, func(r *route) {
		r.chunk()
		r.tree.Match(r.key, &r.matches)
		r.tree.Insert(r.workers[0], r.key)
	})
}

func BenchmarkChunker(b *testing.B) {
	for _, size := range sizes {
		b.Run("size="+size.name, func(b *testing.B) {
			r := newRoute(b, texts[0].prompt(size.bytes), 1)
			b.ReportAllocs()
			b.SetBytes(int64(size.bytes))
			for b.Loop() {
				r.chunk()
			}
		})
	}
}

// BenchmarkTurn is a turn of one of many conversations, long after its last:
// a path of many nodes, all of which become the newest.
func BenchmarkTurn(b *testing.B) {
	for _, turns := range []int{2, 16, 64} {
		b.Run(fmt.Sprintf("turns=%d", turns), func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 2))
			tree := New(Options{})
			workers := []Worker{tree.Add(), tree.Add(), tree.Add(), tree.Add()}
			keys := make([]Key, 1000)
			for i := range keys {
				keys[i] = novel(rng, 8*turns)
				for turn := range turns {
					n := 8 * (turn + 1)
					tree.Insert(workers[i%4], Key{Chunks: keys[i].Chunks[:n], Bytes: n * ChunkBytes})
				}
			}
			var m Matches
			b.ReportAllocs()
			for i := 0; b.Loop(); i = (i + 1) % len(keys) {
				tree.Match(keys[i], &m)
				tree.Insert(workers[i%4], keys[i])
			}
		})
	}
}

// BenchmarkTend is one full step: how long the lock is held at a time.
func BenchmarkTend(b *testing.B) {
	for _, holders := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("holders=%d", holders), func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 2))
			tree := New(Options{})
			var workers []Worker
			for range holders {
				workers = append(workers, tree.Add())
			}
			for b.Loop() {
				b.StopTimer()
				tree.SetMaxBytes(DefaultMaxBytes)
				for tree.Stats().Nodes < 20_000 {
					k := novel(rng, 16)
					for _, w := range workers {
						tree.Insert(w, k)
					}
				}
				tree.SetMaxBytes(1)
				b.StartTimer()
				tree.Tend()
			}
		})
	}
}

func BenchmarkMatchInParallel(b *testing.B) {
	r := newRoute(b, texts[0].prompt(16<<10), 16)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var m Matches
		for pb.Next() {
			r.tree.Match(r.key, &m)
		}
	})
}
