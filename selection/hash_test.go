package selection

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/caddy-inference/caddy-inference/fleet"
)

// addressed are idle candidates at some addresses.
func addressed(addresses ...string) []Candidate {
	workers := fleet.New()
	list := make([]Candidate, len(addresses))
	for i, address := range addresses {
		list[i].Worker = workers.Join(address)
	}
	return list
}

// replicas are n addresses of one kind.
func replicas(format string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf(format, i))
	}
	return list
}

func keyOf(i int) uint64 { return xxh3.HashString(fmt.Sprint("key ", i)) }

func hashed(key uint64) Hash { return Hash{Key: key, Next: key, LoadFactor: 1.25, Reason: Owner} }

// chosen returns the address that is chosen for a key.
func chosen(list []Candidate, key uint64) string {
	return list[hashed(key).Decide(1000, list, epoch).Index].Worker.Address()
}

// order returns a key's order, by index.
func order(list []Candidate, key uint64) []int {
	hashed(key).Decide(1000, list, epoch)
	indices := make([]int, len(list))
	for i := range indices {
		indices[i] = i
	}
	slices.SortFunc(indices, func(a, b int) int {
		if list[a].Terms.Rank > list[b].Terms.Rank {
			return -1
		}
		return 1
	})
	return indices
}

// TestAKeysOwnerIsTheSameEverywhere has owners as they were found on another machine:
// routers of several versions may run side by side.
func TestAKeysOwnerIsTheSameEverywhere(t *testing.T) {
	list := addressed(replicas("vllm-%d:8000", 10)...)
	var owners []int
	for i := range 16 {
		owners = append(owners, order(list, keyOf(i))[0])
	}
	require.Equal(t, []int{7, 7, 3, 0, 3, 1, 9, 6, 1, 6, 5, 7, 1, 3, 5, 4}, owners)
}

func TestAKeysOwnerDoesNotDependOnTheOrderOfWorkers(t *testing.T) {
	addresses := replicas("10.0.0.%d:8000", 10)
	list := addressed(addresses...)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		random.Shuffle(len(addresses), func(a, b int) { addresses[a], addresses[b] = addresses[b], addresses[a] })
		require.Equal(t, chosen(list, keyOf(i)), chosen(addressed(addresses...), keyOf(i)))
	}
}

// TestKeysAreSpreadEvenly counts owners of keys that are alike and keys that are not, on
// workers whose addresses are alike.
func TestKeysAreSpreadEvenly(t *testing.T) {
	for _, format := range []string{"vllm-%d:8000", "10.0.0.%d:8000", "127.0.0.1:900%d", "%d"} {
		for name, key := range map[string]func(int) uint64{
			"hashes":  keyOf,
			"numbers": func(i int) uint64 { return uint64(i) },
		} {
			t.Run(format+" "+name, func(t *testing.T) {
				list := addressed(replicas(format, 10)...)
				count := make(map[string]int)
				for i := range 1000 {
					count[chosen(list, key(i))]++
				}
				require.Len(t, count, 10)
				for address, n := range count {
					require.LessOrEqual(t, n, 130, address)
				}
			})
		}
	}
}

// TestAWorkerThatLeavesMovesItsKeysOnly also shows that one which joins takes only what
// it then owns.
func TestAWorkerThatLeavesMovesItsKeysOnly(t *testing.T) {
	addresses := replicas("vllm-%d:8000", 10)
	all, without := addressed(addresses...), addressed(slices.Delete(slices.Clone(addresses), 3, 4)...)
	moved := 0
	for i := range 1000 {
		before, after := chosen(all, keyOf(i)), chosen(without, keyOf(i))
		if before == addresses[3] {
			moved++
			require.Equal(t, addresses[order(all, keyOf(i))[1]], after, "not to the next in the key's order")
			continue
		}
		require.Equal(t, before, after)
	}
	require.InDelta(t, 100, moved, 30)
}

func TestAnOwnerThatCannotBeChosenIsPassedOver(t *testing.T) {
	for _, standing := range []Standing{Unhealthy, Full, Tried} {
		list := addressed(replicas("vllm-%d:8000", 5)...)
		by := order(list, keyOf(1))
		list[by[0]].Standing = standing
		choice := hashed(keyOf(1)).Decide(1000, list, epoch)
		require.Equal(t, by[1], choice.Index)
		require.Equal(t, OwnerUnavailable, choice.Reason)
		list[by[1]].Standing = standing
		require.Equal(t, by[2], hashed(keyOf(1)).Decide(1000, list, epoch).Index)
	}
	list := addressed("a", "b")
	list[0].Standing, list[1].Standing = Tried, Full
	choice, r := Place(hashed(1), 1000, list, epoch)
	require.Equal(t, -1, choice.Index)
	require.Equal(t, None, choice.Reason)
	require.Nil(t, r)
	require.Equal(t, -1, hashed(1).Decide(1000, nil, epoch).Index)
}

func TestALoadOverTheBoundIsPassedOver(t *testing.T) {
	const second = defaultRate // tokens
	type load struct{ requests, tokens int }
	for _, test := range []struct {
		name   string
		factor float64
		held   int    // by the owner
		loads  []load // in the key's order
		want   int    // place in the order
	}{
		{"all idle", 1.25, 0, []load{{}, {}, {}, {}}, 0},
		{"all alike", 1, 0, []load{{1, second}, {1, second}, {1, second}, {1, second}}, 0},
		{"the owner has a long prompt", 1.25, 0, []load{{1, second}, {}, {}, {}}, 1},
		{"the first two have", 1.25, 0, []load{{1, second}, {1, 2 * second}, {}, {}}, 2},
		{"just at the bound", 1.25, 0, []load{{1, 12500}, {1, 9167}, {1, 9167}, {1, 9166}}, 0},
		{"just over the bound", 1.25, 0, []load{{1, 12600}, {1, 9134}, {1, 9133}, {1, 9133}}, 1},
		{"a larger factor", 4, 0, []load{{1, second}, {}, {}, {}}, 0},
		{"a moment's wait", 1.25, 0, []load{{1, second / 10}, {}, {}, {}}, 0},
		{"more than a moment's", 1.25, 0, []load{{1, second/10 + 10}, {}, {}, {}}, 1},
		{"what it holds takes as long to compute", 1.25, 2 * second, []load{{1, 2 * second}, {}, {}, {}}, 0},
		{"what it holds takes less long", 1.25, second, []load{{1, 2 * second}, {}, {}, {}}, 1},
		{"a few requests", 1.25, 0, []load{{3, 0}, {}, {}, {}}, 0},
		{"more than a few", 1.25, 0, []load{{4, 0}, {}, {}, {}}, 1},
		{"many on all", 1.25, 0, []load{{18, 0}, {15, 0}, {15, 0}, {15, 0}}, 0},   // 19 of 64
		{"just its part", 1.25, 0, []load{{19, 0}, {15, 0}, {15, 0}, {14, 0}}, 0}, // 20 of 64
		{"more than its part", 1.25, 0, []load{{20, 0}, {15, 0}, {15, 0}, {15, 0}}, 1},
		{"what it holds is no reason for many requests", 1.25, 10 * second, []load{{20, 0}, {15, 0}, {15, 0}, {15, 0}}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			list := addressed(replicas("vllm-%d:8000", len(test.loads))...)
			by := order(list, keyOf(7))
			for place, load := range test.loads {
				for i := range load.requests {
					r := list[by[place]].Worker.Place(load.tokens, epoch)
					if i > 0 || load.tokens == 0 {
						r.FirstToken(epoch)
					}
				}
			}
			list[by[0]].Held = test.held
			choice := Hash{Key: keyOf(7), Next: keyOf(7), LoadFactor: test.factor, Reason: Affinity}.Decide(second, list, epoch)
			require.Equal(t, test.want, slices.Index(by, choice.Index))
			if test.want == 0 {
				require.Equal(t, Affinity, choice.Reason)
				return
			}
			require.Equal(t, OverBound, choice.Reason)
			require.True(t, list[by[0]].Terms.Over)
			if test.held > 0 {
				require.Equal(t, by[0], choice.Best)
				require.Equal(t, test.held, choice.BestHeld)
				require.Zero(t, choice.Held)
			}
		})
	}
}

// TestAWorkerThatHangsIsNoMeasureForTheOthers has one of four hang, and the owner of a key
// have too much to do, or the other way round.
func TestAWorkerThatHangsIsNoMeasureForTheOthers(t *testing.T) {
	for _, hung := range []int{0, 3} {
		for _, late := range []time.Duration{10 * time.Second, 2 * time.Minute} {
			list := addressed(replicas("vllm-%d:8000", 4)...)
			by := order(list, keyOf(7))
			list[by[hung]].Worker.Place(100, epoch).Expect(fleet.Streamed, epoch)
			list[by[hung]].Held = 8_000_000 // which is worth a long wait, but not for what may be stuck
			now := epoch.Add(late)
			busy := by[3-hung]
			for range 3 {
				list[busy].Worker.Place(53_000, now)
			}
			want := by[1]
			choice := hashed(keyOf(7)).Decide(1000, list, now)
			require.Positive(t, list[by[hung]].Terms.Overdue)
			require.Equal(t, want, choice.Index)
			require.Equal(t, OverBound, choice.Reason)
			require.True(t, list[by[hung]].Terms.Over, "it may be stuck")
			require.True(t, list[busy].Terms.Over)
		}
	}
}

func TestAnOwnerThatIsOverdueAsAllAreKeepsItsKeys(t *testing.T) {
	list := addressed(replicas("vllm-%d:8000", 4)...)
	by := order(list, keyOf(7))
	for i := range list {
		list[i].Worker.Place(100, epoch).Expect(fleet.Streamed, epoch)
	}
	choice := hashed(keyOf(7)).Decide(1000, list, epoch.Add(time.Minute))
	require.Positive(t, list[by[0]].Terms.Overdue)
	require.Equal(t, by[0], choice.Index)
	require.Equal(t, Owner, choice.Reason)
}

// TestWhatHasOneKeyIsToldApartWhenItsOwnerIsOverloaded has requests of one key that
// belong to many conversations.
func TestWhatHasOneKeyIsToldApartWhenItsOwnerIsOverloaded(t *testing.T) {
	list := addressed(replicas("vllm-%d:8000", 10)...)
	owner := order(list, keyOf(0))[0]
	crowd := list[owner].Worker.Place(100*defaultRate, epoch)
	count := make(map[int]int)
	for i := range 900 {
		h := Hash{Key: keyOf(0), Next: keyOf(1 + i), LoadFactor: 1.25, Reason: Owner}
		choice := h.Decide(1000, list, epoch)
		require.Equal(t, OverBound, choice.Reason)
		require.Equal(t, choice.Index, h.Decide(1000, list, epoch).Index)
		count[choice.Index]++
		list[owner].Standing = Unhealthy
		require.Equal(t, order(list, keyOf(0))[1], h.Decide(1000, list, epoch).Index, "one that is down has one successor")
		list[owner].Standing = Available
	}
	require.Len(t, count, 9)
	for _, n := range count {
		require.InDelta(t, 100, n, 35)
	}
	crowd.Release(epoch)
	require.Equal(t, owner, hashed(keyOf(0)).Decide(1000, list, epoch).Index)
}

// TestIfAllAreOverTheBoundTheLeastCostDecides has one worker with one long prompt and
// one with many requests.
func TestIfAllAreOverTheBoundTheLeastCostDecides(t *testing.T) {
	list := addressed("a", "b")
	list[0].Worker.Place(10*defaultRate, epoch)
	for range 40 {
		list[1].Worker.Place(0, epoch).FirstToken(epoch)
	}
	for i := range 20 {
		choice := hashed(keyOf(i)).Decide(1000, list, epoch)
		require.True(t, list[0].Terms.Over)
		require.True(t, list[1].Terms.Over)
		require.Equal(t, 1, choice.Index)
	}
}

// TestOneKeyDoesNotOverloadItsOwner places requests of one key from many goroutines.
func TestOneKeyDoesNotOverloadItsOwner(t *testing.T) {
	const workers, callers, each = 10, 8, 50
	list := addressed(replicas("vllm-%d:8000", workers)...)
	var wait sync.WaitGroup
	for range callers {
		wait.Go(func() {
			mine := slices.Clone(list)
			for range each {
				Place(hashed(keyOf(1)), 100, mine, epoch)
			}
		})
	}
	wait.Wait()
	for _, c := range list {
		require.LessOrEqual(t, float64(c.Worker.Load().InFlight()), 1.25*callers*each/workers)
		require.Less(t, float64(c.Worker.Load().Queued()), 1.25*100*callers*each/workers+100+shortWait*defaultRate)
	}
}

func TestAHashFillsInEveryTerm(t *testing.T) {
	list := addressed(replicas("vllm-%d:8000", 3)...)
	list[1].Standing, list[2].Held = Unhealthy, 600
	list[2].Worker.Place(800, epoch)
	choice := hashed(keyOf(1)).Decide(1000, list, epoch)
	require.Equal(t, 1000, choice.Tokens)
	require.Equal(t, 2, choice.Best)
	require.Equal(t, 600, choice.BestHeld)
	for _, c := range list {
		require.NotZero(t, c.Terms.Rank)
		require.Equal(t, 1000-c.Held, c.Terms.Uncached)
		require.Positive(t, c.Terms.Cost)
	}
	require.InDelta(t, 800.0/defaultRate, list[2].Terms.Wait, 1e-9)
	require.Zero(t, list[0].Worker.Load(), "deciding charges nobody")
	require.Zero(t, list[0].Worker.Assigned())
}

func BenchmarkPlaceByHash(b *testing.B) {
	for _, n := range []int{4, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			list, by := addressed(replicas("vllm-%d:8000", n)...), hashed(keyOf(1))
			b.ReportAllocs()
			for b.Loop() {
				_, r := Place(by, 1000, list, epoch)
				r.Release(epoch)
			}
		})
	}
}
