package radix

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// novel returns a prompt of so many chunks that shares nothing with others.
func novel(rng *rand.Rand, chunks int) Key {
	k := Key{Chunks: make([]uint64, chunks), Bytes: chunks * ChunkBytes}
	for i := range k.Chunks {
		k.Chunks[i] = rng.Uint64()
	}
	return k
}

func tend(t *Tree) {
	for t.Tend() {
	}
}

func TestInsertsAloneKeepTheMemoryLimit(t *testing.T) {
	const limit = 1 << 20
	for _, chunks := range []int{1, 16, 128, 1024, 5000} {
		t.Run(fmt.Sprintf("chunks=%d", chunks), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			tree := New(Options{MaxBytes: limit})
			var m Matches
			w := tree.Add()
			for i := range 3 * limit / (8*chunks + 100) {
				k := novel(rng, chunks)
				tree.Insert(w, k)
				require.LessOrEqual(t, tree.Stats().Bytes, int64(limit))
				tree.Match(k, &m)
				require.Equal(t, k.Bytes, m.Bytes(w), "insert %d was not stored", i)
			}
			stats := tree.Stats()
			require.Greater(t, stats.Bytes, int64(limit)*9/10, "the limit is not made use of")
			require.Positive(t, stats.Evicted)
			check(t, tree)
		})
	}
}

func TestSplittingAloneKeepsTheMemoryLimit(t *testing.T) {
	const limit = 128 << 10
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{MaxBytes: limit})
	workers := make([]Worker, 0, 100)
	for range 100 {
		workers = append(workers, tree.Add())
	}
	k := novel(rng, 1000)
	for _, w := range workers {
		tree.Insert(w, k)
	}
	for range 2000 {
		n := 1 + rng.IntN(1000)
		head := Key{Chunks: k.Chunks[:n], Bytes: n * ChunkBytes}
		tree.Insert(workers[rng.IntN(100)], head)
		require.LessOrEqual(t, tree.Stats().Bytes, int64(limit))
	}
	require.Positive(t, tree.Stats().Evicted)
	check(t, tree)
}

func TestTendKeepsAPartOfTheLimitFree(t *testing.T) {
	const limit = 1 << 20
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{MaxBytes: limit})
	w := tree.Add()
	for range 2000 {
		tree.Insert(w, novel(rng, 64))
	}
	tend(tree)
	evicted := tree.Stats().Evicted
	require.LessOrEqual(t, tree.used(), int64(limit-limit/32))
	for range 20 {
		tree.Insert(w, novel(rng, 64))
	}
	require.Equal(t, evicted, tree.Stats().Evicted, "an insert evicted although Tend had made room")
}

func TestTheHeapIsWhatStatsSay(t *testing.T) {
	for _, shape := range []struct {
		name            string
		chunks, workers int
	}{
		{"prompts of 16 KiB", 128, 1},
		{"prompts of 2 KiB", 16, 1},
		{"prompts of 1 MiB", 8192, 4},
		{"many holders", 64, 100},
	} {
		t.Run(shape.name, func(t *testing.T) {
			const limit = 16 << 20
			before := heap()
			tree, inserted := New(Options{MaxBytes: limit}), 0
			rng := rand.New(rand.NewPCG(1, 2))
			var workers []Worker
			for range shape.workers {
				workers = append(workers, tree.Add())
			}
			// Prompts in a conversation: a new one, or one that goes on from
			// one of the last few.
			var recent [8]Key
			for tree.Stats().Evicted < 5_000 && inserted < 200_000 {
				i := rng.IntN(len(recent))
				k := novel(rng, 1+rng.IntN(2*shape.chunks))
				if n := len(recent[i].Chunks); n > 0 && n < 4*shape.chunks && rng.IntN(3) > 0 {
					k.Chunks = append(recent[i].Chunks[:rng.IntN(n):n], k.Chunks...)
					k.Bytes = len(k.Chunks) * ChunkBytes
				}
				recent[i] = k
				for range 1 + rng.IntN(min(5, shape.workers)) {
					tree.Insert(workers[rng.IntN(shape.workers)], k)
				}
				inserted++
			}
			require.Positive(t, tree.Stats().Evicted)
			require.Greater(t, tree.Stats().Bytes, int64(limit)*9/10)
			used := heap() - before
			require.InEpsilon(t, tree.Stats().Bytes, used, 0.1)
			require.LessOrEqual(t, used, int64(limit)*11/10)
			check(t, tree)
			runtime.KeepAlive(tree)
		})
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestMemoryIsATwelfthOfThePromptsByStatsAndByTheHeap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const prompts, chunks = 20_000, 16 << 10 / ChunkBytes
	k := novel(rng, chunks)
	before := heap()
	tree := New(Options{})
	w := tree.Add()
	for range prompts {
		renew(rng, k)
		tree.Insert(w, k)
	}
	used := heap() - before
	require.Equal(t, int64(prompts*chunks*ChunkBytes), tree.Held(w))
	require.InEpsilon(t, tree.Stats().Bytes, used, 0.1)
	require.Less(t, float64(max(used, tree.Stats().Bytes))/float64(tree.Held(w)), 1.0/12)
}

// renew makes a key another one.
func renew(rng *rand.Rand, k Key) {
	for i := range k.Chunks {
		k.Chunks[i] = rng.Uint64()
	}
}

func TestTheHeapStaysWithinTheLimitWhateverComesAndGoes(t *testing.T) {
	for _, shape := range []struct {
		name   string
		chunks func(rng *rand.Rand) int
	}{
		{"prompts of 2 KiB", func(*rand.Rand) int { return 16 }},
		{"prompts of 16 KiB", func(*rand.Rand) int { return 128 }},
		{"prompts of all sizes", func(rng *rand.Rand) int { return 1 + rng.IntN(1<<rng.IntN(12)) }},
	} {
		t.Run(shape.name, func(t *testing.T) {
			const limit = 16 << 20
			c := newChurn()
			before, spansBefore := heap(), spans()
			c.begin(limit)
			for round := range 6 {
				c.run(shape.chunks, limit/2)
				require.LessOrEqual(t, c.tree.Stats().Bytes, int64(limit))
				require.LessOrEqual(t, heap()-before, int64(limit)*11/10, "round %d", round)
				// What the collector cannot give to others, as something is left in it.
				require.LessOrEqual(t, spans()-spansBefore, int64(limit)*11/10, "round %d", round)
			}
			require.Positive(t, c.tree.Stats().Evicted)
			runtime.KeepAlive(c)
		})
	}
}

// spans returns the memory of the parts of the heap in which something is in use.
func spans() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// churn is what goes on in front of many engines: prompts that are new or go on from one of
// the last ones, engines that fail, that are restarted, and whose caches are small.
type churn struct {
	rng     *rand.Rand
	tree    *Tree
	workers [16]Worker
	recent  [32]Key
	prompts int
}

func newChurn() *churn {
	c := &churn{rng: rand.New(rand.NewPCG(1, 2))}
	for i := range c.recent {
		c.recent[i].Chunks = make([]uint64, 0, 8<<10)
	}
	return c
}

func (c *churn) begin(limit int64) {
	c.tree = New(Options{MaxBytes: limit})
	for i := range c.workers {
		c.workers[i] = c.tree.Add()
	}
	c.tree.SetCapacity(c.workers[0], limit)
}

// run has an engine restarted, and inserts prompts until that many bytes of fingerprints
// and nodes were new.
func (c *churn) run(chunks func(*rand.Rand) int, bytes int) {
	i := 1 + c.rng.IntN(len(c.workers)-1)
	gone := c.workers[i]
	c.tree.Remove(gone)
	c.workers[i] = c.tree.Add()
	c.tree.Insert(gone, c.recent[0])
	for ; bytes > 0; c.prompts++ {
		n := chunks(c.rng)
		bytes -= n*8 + nodeBytes
		k := c.next(n)
		for range 1 + c.rng.IntN(3) {
			c.tree.Insert(c.workers[c.rng.IntN(len(c.workers))], k)
		}
		if c.rng.IntN(10) == 0 {
			c.tree.Retract(c.workers[c.rng.IntN(len(c.workers))], k, k.Bytes/2)
		}
		if c.rng.IntN(20) == 0 {
			c.tree.Tend()
		}
	}
}

// next returns a prompt with so many new chunks.
func (c *churn) next(chunks int) Key {
	k := &c.recent[c.rng.IntN(len(c.recent))]
	shared := 0
	if n := len(k.Chunks); n > 0 && n+chunks <= cap(k.Chunks) && c.rng.IntN(2) == 0 {
		shared = 1 + c.rng.IntN(n)
	}
	k.Chunks = k.Chunks[:shared+chunks]
	renew(c.rng, Key{Chunks: k.Chunks[shared:]})
	k.Bytes = len(k.Chunks) * ChunkBytes
	return *k
}

func TestMemoryBetweenWhatStaysComesBack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{})
	stays, goes := tree.Add(), tree.Add()
	keys := make([]Key, 2_000)
	for i := range keys {
		keys[i] = novel(rng, 1+rng.IntN(200))
		tree.Insert(stays, keys[i])
		for range 3 {
			tree.Insert(goes, novel(rng, 1+rng.IntN(200)))
		}
	}
	full := tree.Stats().Bytes
	tree.Remove(goes)
	for tree.Tend() {
		require.LessOrEqual(t, tree.work, tendWork+10)
	}
	require.Less(t, tree.Stats().Bytes, full*4/10)
	check(t, tree)
	var m Matches
	for _, k := range keys {
		tree.Match(k, &m)
		require.Equal(t, k.Bytes, m.Bytes(stays))
	}
}

func TestATrunkInUseSurvivesAnyNumberOfPrompts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{MaxBytes: 1 << 20})
	a, b := tree.Add(), tree.Add()
	trunk := novel(rng, 64)
	var m Matches
	for i := range 20_000 {
		tree.Insert(b, novel(rng, 8))
		if i%1000 == 0 {
			tree.Match(trunk, &m)
			require.True(t, i == 0 || m.Bytes(a) == trunk.Bytes, "the trunk was evicted")
			k := novel(rng, 8)
			k.Chunks = append(trunk.Chunks[:64:64], k.Chunks...)
			tree.Insert(a, k)
		}
	}
	require.Positive(t, tree.Stats().Evicted)
}

func TestALowerLimitIsReachedInSmallSteps(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{MaxBytes: 16 << 20})
	w := tree.Add()
	for range 50_000 {
		tree.Insert(w, novel(rng, 10))
	}
	tree.SetMaxBytes(4 << 20)
	steps := 0
	for nodes := tree.Stats().Nodes; tree.Tend(); steps++ {
		left := tree.Stats().Nodes
		require.LessOrEqual(t, nodes-left, tendWork)
		nodes = left
	}
	require.Greater(t, steps, 10)
	require.LessOrEqual(t, tree.Stats().Bytes, int64(4<<20))
	require.Greater(t, tree.Stats().Bytes, int64(4<<20)*9/10)
	check(t, tree)
}

func TestAnEmptiedTreeGivesItsMemoryBack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{})
	empty := tree.Stats().Bytes
	w := tree.Add()
	for range 20_000 {
		tree.Insert(w, novel(rng, 4))
	}
	full := tree.Stats().Bytes
	tree.Remove(w)
	tend(tree)
	check(t, tree)
	require.Zero(t, tree.Stats().Nodes)
	// What finds the pages stays, in hope of more.
	require.Less(t, tree.Stats().Bytes-empty, full/25)
}

// TestUnderALimitTheTreeClaimsNoMoreThanTheOracle runs random operations in
// trees that must evict all the time.
func TestUnderALimitTheTreeClaimsNoMoreThanTheOracle(t *testing.T) {
	for seed, shape := range []world{
		{most: 2, alphabet: 30, length: 40, runs: 2},
		{most: 70, alphabet: 10, length: 12, runs: 3},
		{most: 5, alphabet: 100, length: 3000, runs: 1000},
	} {
		t.Run(fmt.Sprintf("workers=%d/length=%d", shape.most, shape.length), func(t *testing.T) {
			t.Parallel()
			w := shape
			w.rng = rand.New(rand.NewPCG(uint64(seed), 2))
			w.tree = New(Options{MaxBytes: 64 << 10})
			w.oracle = newOracle()
			n := tries(6_000, 300_000)
			if w.length > 1000 {
				n /= 20
			}
			for i := range n {
				w.stepUnderLimit(t)
				if i%500 == 0 {
					check(t, w.tree)
					w.tree.SetMaxBytes(int64(32+w.rng.IntN(64)) << 10)
					tend(w.tree)
					// The oracle never evicts: start it, and all, afresh.
					w.renew()
				}
			}
			check(t, w.tree)
			require.Positive(t, w.tree.Stats().Evicted)
		})
	}
}

func (w *world) stepUnderLimit(t *testing.T) {
	worker, k := w.worker(), w.key()
	switch p := w.rng.IntN(100); {
	case p < 5 && len(w.workers) < w.most:
		added := w.tree.Add()
		w.oracle.add(added)
		w.workers = append(w.workers, added)
	case p < 15:
		keep := w.rng.IntN(k.Bytes + 2)
		w.tree.Retract(worker, k, keep)
		w.oracle.retract(worker, k, keep)
	case p < 17:
		w.tree.Tend()
	case p < 80:
		w.tree.Insert(worker, k)
		w.oracle.insert(worker, k)
	default:
		w.tree.Match(k, &w.matches)
		for _, worker := range w.workers {
			bytes, _ := w.oracle.match(worker, k)
			require.LessOrEqual(t, w.matches.Bytes(worker), bytes)
		}
	}
	require.LessOrEqual(t, w.tree.Stats().Bytes, w.tree.Stats().MaxBytes+2*pageBytes)
}

// renew removes all workers.
func (w *world) renew() {
	for _, worker := range w.workers {
		w.tree.Remove(worker)
		w.oracle.remove(worker)
	}
	w.workers = nil
	if w.rng.IntN(2) == 0 {
		tend(w.tree)
	}
	w.oracle.tend()
}

func TestAnInsertLeavesALongTrimToTend(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{})
	w := tree.Add()
	const capacity = 10_000 * ChunkBytes
	tree.SetCapacity(w, capacity)
	for range 10_000 {
		tree.Insert(w, novel(rng, 1))
	}
	k := novel(rng, 9_000)
	tree.Insert(w, k)
	require.LessOrEqual(t, tree.work, insertWork+2)
	require.Greater(t, tree.Held(w), int64(capacity))
	check(t, tree)

	tend(tree)
	require.Equal(t, int64(capacity), tree.Held(w))
	var m Matches
	tree.Match(k, &m)
	require.Equal(t, k.Bytes, m.Bytes(w))
	check(t, tree)
}

func TestAnInsertThatFindsNoRoomInTimeStoresTheHead(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{MaxBytes: 2 << 20})
	w := tree.Add()
	for tree.Stats().Evicted == 0 {
		tree.Insert(w, novel(rng, 1))
	}
	k := novel(rng, 100_000)
	tree.Insert(w, k)
	require.LessOrEqual(t, tree.work, insertWork+2)
	require.LessOrEqual(t, tree.Stats().Bytes, int64(2<<20))
	var m Matches
	tree.Match(k, &m)
	require.Positive(t, m.Bytes(w))
	require.Less(t, m.Bytes(w), k.Bytes)
	check(t, tree)
}

func TestRetractingKeepsTheMemoryLimit(t *testing.T) {
	const limit = 256 << 10
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{MaxBytes: limit})
	a, b := tree.Add(), tree.Add()
	var keys []Key
	for tree.Stats().Evicted == 0 {
		k := novel(rng, 100)
		tree.Insert(a, k)
		tree.Insert(b, k)
		keys = append(keys, k)
	}
	// Each splits an edge that the other worker holds as a whole.
	for _, k := range keys[len(keys)/2:] {
		tree.Retract(b, k, 50*ChunkBytes)
		require.LessOrEqual(t, tree.Stats().Bytes, int64(limit))
	}
	check(t, tree)
}

func TestTrimmingChunkByChunkCopiesLittleAndFreesTheMemory(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{})
	w := tree.Add()
	tree.SetCapacity(w, maxEdge*ChunkBytes)
	old := novel(rng, maxEdge)
	tree.Insert(w, old)
	work := 0
	for range maxEdge - 10 {
		tree.Insert(w, novel(rng, 1))
		work += tree.work
	}
	require.Less(t, work, 2*maxEdge)
	require.Equal(t, 1, tree.edges.live())
	var m Matches
	tree.Match(old, &m)
	require.Equal(t, 10*ChunkBytes, m.Bytes(w))
	check(t, tree)
}

func TestHoldersThatLeaveGiveTheirMemoryBack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{})
	keys := make([]Key, 100)
	for i := range keys {
		keys[i] = novel(rng, 10)
	}
	workers := make([]Worker, 100)
	for i := range workers {
		workers[i] = tree.Add()
		for _, k := range keys {
			tree.Insert(workers[i], k)
		}
	}
	leave := func(workers []Worker) {
		for _, w := range workers {
			for _, k := range keys {
				tree.Retract(w, k, 0)
			}
		}
		check(t, tree)
	}
	full := tree.crowds.bytes()
	leave(workers[:90])
	require.Less(t, tree.crowds.bytes(), full/3)
	leave(workers[90:99])
	leave(workers[99:])
	require.Zero(t, tree.Stats().Nodes)
	// Of each length that there were arrays of, one page stays.
	require.Less(t, tree.crowds.bytes(), full/8)
}

func TestAllWorkersThatThereCanBeHoldOnePrompt(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{})
	k := novel(rng, 10)
	workers := make([]Worker, MaxWorkers)
	for i := range workers {
		workers[i] = tree.Add()
		tree.Insert(workers[i], k)
	}
	require.Zero(t, tree.Add(), "one more than there can be")
	var m Matches
	tree.Match(k, &m)
	for _, w := range workers {
		require.Equal(t, k.Bytes, m.Bytes(w))
	}
	for _, w := range workers[1:] {
		tree.Remove(w)
	}
	tend(tree)
	tree.Match(k, &m)
	require.Equal(t, k.Bytes, m.Bytes(workers[0]))
	require.NotZero(t, tree.Add())
	check(t, tree)
}
