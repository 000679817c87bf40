package radix

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// tries is how often a property is tried: the long form is for LONG=1.
func tries(short, long int) int {
	if os.Getenv("LONG") == "1" {
		return long
	}
	return short
}

// world drives a tree and an oracle through the same random operations.
type world struct {
	rng      *rand.Rand
	tree     *Tree
	oracle   *oracle
	matches  Matches
	workers  []Worker // live ones and some stale ones
	most     int      // workers
	alphabet int      // of chunks; a small one makes prompts collide
	length   int      // of prompts, in chunks
	runs     int      // a chunk is repeated up to so many times
	rewrite  int      // chunks at the end of a prompt that its next turn may change
}

func (w *world) key() Key {
	if w.rng.IntN(10) == 0 {
		bytes := 1 + w.rng.IntN(3)
		return Key{Space: 1, Chunks: []uint64{uint64(1000 + bytes)}, Bytes: bytes}
	}
	k := Key{Space: uint64(w.rng.IntN(2))}
	length := w.rng.IntN(w.length + 1)
	for len(k.Chunks) < length {
		chunk := uint64(w.rng.IntN(w.alphabet))
		for range 1 + w.rng.IntN(w.runs) {
			k.Chunks = append(k.Chunks, chunk)
		}
	}
	k.Bytes = len(k.Chunks) * ChunkBytes
	return k
}

func (w *world) worker() Worker {
	if len(w.workers) == 0 || w.rng.IntN(100) == 0 {
		return Worker{}
	}
	return w.workers[w.rng.IntN(len(w.workers))]
}

func (w *world) step(t *testing.T) {
	switch p := w.rng.IntN(100); {
	case p < 4 && len(w.oracle.workers) < w.most:
		added := w.tree.Add()
		require.NotZero(t, added)
		require.NotContains(t, w.workers, added)
		w.oracle.add(added)
		w.workers = append(w.workers, added)
	case p < 5:
		worker := w.worker()
		w.tree.Remove(worker)
		w.oracle.remove(worker)
		// Stale handles stay in use for a while.
		if len(w.workers) > len(w.oracle.workers)+5 {
			w.workers = slices.DeleteFunc(w.workers, func(worker Worker) bool {
				return w.oracle.workers[worker] == nil
			})
		}
	case p < 7:
		worker, bytes := w.worker(), int64(w.rng.IntN(30*w.length*ChunkBytes/4))
		if w.rng.IntN(2) == 0 {
			bytes = 0
		}
		w.tree.SetCapacity(worker, bytes)
		w.oracle.setCapacity(worker, bytes)
	case p < 17:
		worker, k := w.worker(), w.key()
		keep := w.rng.IntN(k.Bytes + 2)
		w.tree.Retract(worker, k, keep)
		w.oracle.retract(worker, k, keep)
	case p < 22:
		for w.tree.Tend() {
		}
		w.oracle.tend()
	case p < 65:
		worker, k := w.worker(), w.key()
		w.tree.Insert(worker, k)
		w.oracle.insert(worker, k)
	default:
		w.match(t, w.key())
	}
}

func (w *world) match(t *testing.T, k Key) {
	w.tree.Match(k, &w.matches)
	for _, worker := range w.workers {
		bytes, shared := w.oracle.match(worker, k)
		if got := w.matches.Bytes(worker); got != bytes {
			require.Equal(t, bytes, got, "bytes of worker %v", worker)
		}
		// Where the end of a prompt may be rewritten, the tree may miss that what
		// is left is one prompt's end if it lies in more than one node.
		if got := w.matches.Shared(worker); got != shared && (w.rewrite == 0 || shared) {
			require.Equal(t, shared, got, "shared of worker %v", worker)
		}
	}
}

func TestTreeAnswersAsTheOracleDoes(t *testing.T) {
	shapes := []world{
		{most: 1, alphabet: 2, length: 10, runs: 1},
		{most: 4, alphabet: 3, length: 8, runs: 2},
		{most: 64, alphabet: 2, length: 8, runs: 3},
		{most: 65, alphabet: 2, length: 12, runs: 6},
		{most: 300, alphabet: 3, length: 6, runs: 2},
		{most: 2, alphabet: 4, length: 20, runs: 4, rewrite: 3},
		{most: 5, alphabet: 3, length: 12, runs: 2, rewrite: 100},
		{most: 3, alphabet: 2, length: 4000, runs: 1500},
	}
	for seed, shape := range shapes {
		name := fmt.Sprintf("workers=%d/alphabet=%d/length=%d", shape.most, shape.alphabet, shape.length)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := shape
			w.rng = rand.New(rand.NewPCG(uint64(seed), 1))
			w.tree = New(Options{Rewrite: shape.rewrite * ChunkBytes})
			w.oracle = newOracle()
			w.oracle.rewrite = shape.rewrite
			n := tries(20_000, 1_000_000)
			if w.length > 1000 {
				n /= 200
			}
			for i := range n {
				w.step(t)
				if i%1000 == 0 || w.length > 1000 && i%10 == 0 {
					check(t, w.tree)
				}
			}
			check(t, w.tree)
			for _, worker := range w.workers {
				w.tree.Remove(worker)
			}
			for w.tree.Tend() {
			}
			check(t, w.tree)
			require.Zero(t, w.tree.Stats().Nodes)
		})
	}
}
