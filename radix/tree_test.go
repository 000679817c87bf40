package radix

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestTheZeroWorkerHoldsNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	k := novel(rng, 10)
	for _, tree := range []*Tree{New(Options{}), New(Options{})} {
		var m Matches
		none := Worker{}
		require.Zero(t, m.Bytes(none))
		require.True(t, m.Shared(none))
		tree.Insert(none, k)
		tree.Retract(none, k, 0)
		tree.SetCapacity(none, 1)
		tree.Remove(none)
		tree.Match(k, &m)
		require.Zero(t, m.Bytes(none))
		require.Zero(t, tree.Held(none))
		require.Zero(t, tree.Stats().Nodes)
		require.NotEqual(t, none, tree.Add())
		tree.Insert(none, k)
		require.Zero(t, tree.Stats().Nodes)
	}
}

func TestAnEmptyKeyIsNoPrompt(t *testing.T) {
	tree := New(Options{})
	w := tree.Add()
	var m Matches
	tree.Insert(w, Key{Space: 1})
	tree.Match(Key{Space: 1}, &m)
	tree.Retract(w, Key{Space: 1}, 0)
	require.Zero(t, m.Bytes(w))
	require.True(t, m.Shared(w))
	require.Zero(t, tree.Stats().Nodes)
}

func TestRemoveIsOneStepHoweverMuchIsHeld(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{})
	w, other := tree.Add(), tree.Add()
	k := novel(rng, 100)
	tree.Insert(w, k)
	tree.Insert(other, k)
	for range 10_000 {
		tree.Insert(w, novel(rng, 1))
	}
	nodes := tree.Stats().Nodes

	tree.work = 0
	tree.Remove(w)
	require.Zero(t, tree.work)
	require.Equal(t, nodes, tree.Stats().Nodes)

	var m Matches
	tree.Match(k, &m)
	require.Zero(t, m.Bytes(w))
	require.Zero(t, tree.Held(w))
	require.Equal(t, k.Bytes, m.Bytes(other))

	tend(tree)
	require.Equal(t, 1, tree.Stats().Nodes)
	check(t, tree)
}

func TestATendStepIsBounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{})
	workers := make([]Worker, 0, 200)
	for range 200 {
		workers = append(workers, tree.Add())
	}
	for range 300 {
		k := novel(rng, 200)
		for _, w := range workers {
			tree.Insert(w, k)
		}
	}
	for i, w := range workers {
		if i%2 == 0 {
			tree.Remove(w)
		} else {
			tree.SetCapacity(w, 1000*ChunkBytes+int64(i)*7*ChunkBytes)
		}
	}
	steps := 0
	for more := true; more; steps++ {
		more = tree.Tend()
		// The last thing of a step may be a split, which passes all holders.
		require.LessOrEqual(t, tree.work, tendWork+len(workers)+maxEdge/copyWork+2)
	}
	require.Greater(t, steps, 50)
	check(t, tree)
	for i, w := range workers {
		if i%2 == 1 {
			require.Equal(t, int64(1000*ChunkBytes+i*7*ChunkBytes), tree.Held(w))
		}
	}
}

func TestASlotIsReusedOnlyWhenNothingOfItsOwnerIsLeft(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{})
	k := novel(rng, 10)
	var m Matches

	first := tree.Add()
	tree.Insert(first, k)
	tree.Match(k, &m)
	tree.Remove(first)
	second := tree.Add()
	require.NotEqual(t, first.slot, second.slot)

	tend(tree)
	third := tree.Add()
	require.Equal(t, first.slot, third.slot)
	require.NotEqual(t, first, third)
	require.Equal(t, k.Bytes, m.Bytes(first), "a match is of its moment")
	require.Zero(t, m.Bytes(third), "a new worker inherited a match")

	tree.Insert(third, k)
	tree.Match(k, &m)
	require.Zero(t, m.Bytes(first), "an old handle found the new owner's match")
	require.Equal(t, k.Bytes, m.Bytes(third))

	// A worker that held nothing leaves its slot at once.
	tree.Remove(second)
	require.Equal(t, second.slot, tree.Add().slot)
	check(t, tree)
}

func TestWorkersAreBounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{})
	k := novel(rng, 3)
	workers := make([]Worker, 0, MaxWorkers)
	for range MaxWorkers {
		w := tree.Add()
		require.NotZero(t, w)
		tree.Insert(w, k)
		workers = append(workers, w)
	}
	require.Zero(t, tree.Add())

	var m Matches
	tree.Match(k, &m)
	for _, w := range workers {
		require.Equal(t, k.Bytes, m.Bytes(w))
	}

	tree.Remove(workers[70])
	require.Zero(t, tree.Add(), "the slot still has an owner's bit")
	tend(tree)
	require.NotZero(t, tree.Add())
	require.Zero(t, tree.Add())
	check(t, tree)
}

func TestEachWorkerHasItsOwnMatch(t *testing.T) {
	for _, count := range []int{1, 2, 63, 64, 65, 128, 256, 300} {
		rng := rand.New(rand.NewPCG(1, uint64(count)))
		tree := New(Options{})
		k := novel(rng, 1000)
		var workers []Worker
		var want []int
		for range count {
			w := tree.Add()
			n := rng.IntN(1001)
			tree.Insert(w, Key{Chunks: k.Chunks[:n], Bytes: n * ChunkBytes})
			workers, want = append(workers, w), append(want, n*ChunkBytes)
		}
		check(t, tree)
		var m Matches
		tree.Match(k, &m)
		for i, w := range workers {
			require.Equal(t, want[i], m.Bytes(w), "worker %d of %d", i, count)
		}
		// The other way round, each holder leaves again.
		for _, i := range rng.Perm(count) {
			tree.Remove(workers[i])
			tend(tree)
			want[i] = 0
			tree.Match(k, &m)
			for j, w := range workers {
				require.Equal(t, want[j], m.Bytes(w), "worker %d of %d", j, count)
			}
		}
		check(t, tree)
	}
}

func TestLongPromptsAreChainsOfBoundedEdges(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{})
	w := tree.Add()
	k := novel(rng, 5*maxEdge+10)
	tree.Insert(w, k)
	require.Equal(t, 6, tree.Stats().Nodes)
	var m Matches
	for _, n := range []int{1, maxEdge - 1, maxEdge, maxEdge + 1, 3 * maxEdge, len(k.Chunks)} {
		other := novel(rng, n+5)
		copy(other.Chunks, k.Chunks[:n])
		tree.Match(other, &m)
		require.Equal(t, n*ChunkBytes, m.Bytes(w))
		require.Equal(t, n < len(k.Chunks), m.Shared(w), "leaving a prompt after %d of its chunks", n)
	}
}

func TestChildrenOfATrunkAreFoundInAFewSteps(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{})
	w := tree.Add()
	trunk := novel(rng, 4)
	const children = 50_000
	k := Key{Chunks: make([]uint64, 5), Bytes: 5 * ChunkBytes}
	copy(k.Chunks, trunk.Chunks)
	buckets := tree.index.buckets
	for i := range children {
		k.Chunks[4] = rng.Uint64()
		tree.Insert(w, k)
		require.LessOrEqual(t, tree.index.buckets-buckets, uint64(1), "insert %d rebuilt the table", i)
		buckets = tree.index.buckets
	}
	check(t, tree)
	longest := 0
	for b := range tree.index.buckets {
		length := 0
		for id := *tree.index.head(b); id != 0; id = tree.nodes.at(id).next {
			length++
		}
		longest = max(longest, length)
	}
	require.LessOrEqual(t, longest, 16)

	// And back, one bucket at a time as well.
	tree.Remove(w)
	for tree.Tend() {
		require.LessOrEqual(t, buckets-tree.index.buckets, uint64(2*tendWork))
		buckets = tree.index.buckets
	}
	check(t, tree)
	require.EqualValues(t, segmentBuckets, tree.index.buckets)
}

func TestMatchAndARepeatedInsertAllocateNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{})
	k := novel(rng, 3000)
	var m Matches
	var w Worker
	for range 70 {
		w = tree.Add()
		tree.Insert(w, k)
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		tree.Match(k, &m)
		tree.Insert(w, k)
	}))
}

func TestRunTendsAsSoonAsThereIsSomethingToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 1 << 20
		rng := rand.New(rand.NewPCG(1, 2))
		tree := New(Options{MaxBytes: limit})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			tree.Run(ctx)
			close(done)
		}()

		w := tree.Add()
		for range limit / 1024 {
			tree.Insert(w, novel(rng, 128))
		}
		synctest.Wait()
		require.False(t, tree.crowded())

		tree.SetCapacity(w, 1000*ChunkBytes)
		synctest.Wait()
		require.Equal(t, int64(1000*ChunkBytes), tree.Held(w))

		tree.SetMaxBytes(limit / 20)
		synctest.Wait()
		require.LessOrEqual(t, tree.Stats().Bytes, int64(limit/20))

		tree.Remove(w)
		synctest.Wait()
		require.Zero(t, tree.Stats().Nodes)

		cancel()
		<-done
	})
}

func TestConcurrentUseLeavesAConsistentTree(t *testing.T) {
	tree := New(Options{MaxBytes: 256 << 10})
	ctx, cancel := context.WithCancel(t.Context())
	var background, users sync.WaitGroup
	background.Go(func() { tree.Run(ctx) })
	rounds := tries(3_000, 200_000)
	for user := range 6 {
		users.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(user), 3))
			w := world{rng: rng, tree: tree, alphabet: 20, length: 30, runs: 3}
			var m Matches
			worker := tree.Add()
			for range rounds {
				k := w.key()
				tree.Match(k, &m)
				if bytes := m.Bytes(worker); bytes > k.Bytes {
					t.Errorf("a match of %d bytes for a prompt of %d", bytes, k.Bytes)
				}
				tree.Insert(worker, k)
				switch rng.IntN(50) {
				case 0:
					tree.Remove(worker)
					worker = tree.Add()
				case 1:
					tree.SetCapacity(worker, int64(rng.IntN(100_000)))
				case 2:
					tree.Retract(worker, k, rng.IntN(k.Bytes+1))
				case 3:
					_ = tree.Stats()
				}
			}
		})
	}
	users.Wait()
	cancel()
	background.Wait()
	check(t, tree)
	tend(tree)
	check(t, tree)
}

// FuzzTree plays any sequence of operations against the oracle, until a memory
// limit that it does not know makes the tree forget.
func FuzzTree(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 1, 1, 2, 3, 1, 1, 2, 4})
	f.Add([]byte{0, 0, 0, 0, 4, 0, 9, 1, 0, 255, 1, 0, 250, 2, 0, 255, 3, 0, 255, 5, 0, 0, 6, 0, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		tree, oracle := New(Options{}), newOracle()
		var workers []Worker
		var m Matches
		limited := false
		for ; len(script) >= 3; script = script[3:] {
			op, who, what := script[0]%8, script[1], script[2]
			var w Worker
			if len(workers) > 0 {
				w = workers[int(who)%len(workers)]
			}
			k := bitKey(what)
			keep := int(who) * 5
			switch op {
			case 0:
				w = tree.Add()
				oracle.add(w)
				workers = append(workers, w)
			case 1:
				tree.Insert(w, k)
				oracle.insert(w, k)
			case 2:
				tree.Retract(w, k, keep)
				oracle.retract(w, k, keep)
			case 3:
				tree.Match(k, &m)
				for _, w := range workers {
					bytes, shared := oracle.match(w, k)
					if limited {
						require.LessOrEqual(t, m.Bytes(w), k.Bytes)
						continue
					}
					require.Equal(t, bytes, m.Bytes(w))
					require.Equal(t, shared, m.Shared(w))
				}
			case 4:
				tree.SetCapacity(w, int64(what)*20)
				oracle.setCapacity(w, int64(what)*20)
			case 5:
				tree.Remove(w)
				oracle.remove(w)
			case 6:
				tend(tree)
				oracle.tend()
			case 7:
				tree.SetMaxBytes(7_000 + 100*int64(what))
				limited = true
			}
		}
		check(t, tree)
	})
}

// bitKey returns a prompt of up to 14 chunks of two kinds.
func bitKey(b byte) Key {
	if b < 4 {
		return Key{Space: 1, Chunks: []uint64{uint64(100 + b)}, Bytes: 1 + int(b)}
	}
	var k Key
	for ; b > 1; b >>= 1 {
		k.Chunks = append(k.Chunks, uint64(b&1), 7)
	}
	k.Bytes = len(k.Chunks) * ChunkBytes
	return k
}

func TestAWorkerRemovedWhileItWaitsForTendLeavesItsSlotOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{})
	w := tree.Add()
	k := novel(rng, 10)
	tree.Insert(w, k)
	tree.SetCapacity(w, ChunkBytes)
	tree.Retract(w, k, 0)
	tree.Remove(w)
	check(t, tree)
	tend(tree)
	first, second := tree.Add(), tree.Add()
	require.NotEqual(t, first, second)
	check(t, tree)
}

func TestAPromptThatIsSentAgainIsNoSecondOne(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	tree := New(Options{})
	a, b := tree.Add(), tree.Add()
	first := novel(rng, 20)
	next := novel(rng, 30)
	copy(next.Chunks, first.Chunks)
	for range 3 {
		tree.Insert(a, first)
		tree.Insert(b, first)
	}
	var m Matches
	tree.Match(next, &m)
	require.False(t, m.Shared(a))
	require.False(t, m.Shared(b))
	tree.Insert(a, next)
	tree.Match(first, &m)
	require.True(t, m.Shared(a), "one went on from there")
}

func TestANextTurnMayRewriteTheEndOfThePromptBefore(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	tree := New(Options{Rewrite: 16*ChunkBytes - 1})
	w := tree.Add()
	first := novel(rng, 100)
	tree.Insert(w, first)
	turn := func(before Key, kept int) Key {
		k := novel(rng, len(before.Chunks)+50)
		copy(k.Chunks, before.Chunks[:kept])
		return k
	}
	var m Matches
	for kept, shared := range map[int]bool{100: false, 99: false, 84: false, 83: true, 10: true} {
		tree.Match(turn(first, kept), &m)
		require.Equal(t, kept*ChunkBytes, m.Bytes(w))
		require.Equal(t, shared, m.Shared(w), "%d of 100 chunks kept", kept)
	}

	second := turn(first, 90)
	tree.Insert(w, second)
	tree.Match(turn(second, 140), &m)
	require.False(t, m.Shared(w), "the turn after the next, too")
	tree.Match(turn(first, 90), &m)
	require.True(t, m.Shared(w), "two prompts went on from there")
	tree.Match(turn(first, 95), &m)
	require.False(t, m.Shared(w), "the first prompt is still there to be continued")
}

func TestRetractionsAreTheSameOnlyAsLongAsNothingIsTakenBack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tree := New(Options{})
	w, k := tree.Add(), novel(rng, 10)
	before := tree.Retractions()
	tree.Insert(w, k)
	tree.Insert(w, novel(rng, 10))
	tree.Match(k, new(Matches))
	require.Equal(t, before, tree.Retractions())
	tree.Retract(w, k, 0)
	require.NotEqual(t, before, tree.Retractions())
}
