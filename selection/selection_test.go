package selection

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/fleet"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func candidates(n int) []Candidate {
	f := fleet.New()
	list := make([]Candidate, n)
	for i := range list {
		list[i].Worker = f.Join(fmt.Sprintf("w%d:8000", i))
	}
	return list
}

func TestOfTwoThatHoldAsMuchTheSurerIsTaken(t *testing.T) {
	tests := map[string]struct {
		held, doubt []int
		queued      int // on the second
		want        int
		reason      Reason
	}{
		"as much":                           {[]int{800, 800}, []int{100, 0}, 0, 1, Hit},
		"as much, and nothing is sure":      {[]int{800, 800}, []int{100, 50}, 0, 1, Hit},
		"a little more, and less sure":      {[]int{850, 800}, []int{100, 0}, 0, 1, Hit},
		"much more, though less sure":       {[]int{900, 500}, []int{100, 0}, 0, 0, Hit},
		"the surer one is busy":             {[]int{800, 800}, []int{100, 0}, 500, 0, LoadOutweighed},
		"what nobody is sure of is nothing": {[]int{0, 80}, []int{0, 80}, 10, 0, NothingHeld},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			list := candidates(2)
			for i := range list {
				list[i].Held, list[i].Doubt, list[i].Private = test.held[i], test.doubt[i], true
			}
			if test.queued > 0 {
				require.NotNil(t, list[1].Worker.Place(test.queued, epoch))
			}
			choice, reservation := Place(Cost{}, 1000, list, epoch)
			require.Equal(t, test.want, choice.Index)
			require.Equal(t, test.reason, choice.Reason)
			require.Equal(t, test.held[test.want], choice.Held, "it is told as it is")
			require.Equal(t, 1000-test.held[test.want]+test.doubt[test.want], reservation.Tokens())
		})
	}
}

func TestTheLeastWaitWins(t *testing.T) {
	tests := []struct {
		name   string
		held   []int
		queued []int
		want   int
		reason Reason
	}{
		{"the one that holds the prompt", []int{0, 900, 0}, []int{0, 0, 0}, 1, Hit},
		{"the one that holds the most", []int{500, 900, 400}, []int{0, 0, 0}, 1, Hit},
		{"a short queue does not outweigh a hit", []int{0, 900, 0}, []int{0, 700, 0}, 1, Hit},
		{"a long queue does", []int{0, 900, 0}, []int{0, 1500, 10}, 0, LoadOutweighed},
		{"a lesser hit with a shorter queue", []int{0, 900, 800}, []int{0, 1500, 10}, 2, LoadOutweighed},
		{"nobody holds any", []int{0, 0, 0}, []int{50, 20, 70}, 1, NothingHeld},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			list := candidates(len(test.held))
			for i := range list {
				list[i].Held = test.held[i]
				list[i].Private = true
				require.NotNil(t, list[i].Worker.Place(test.queued[i], epoch))
			}
			choice := Cost{}.Decide(1000, list, epoch)
			require.Equal(t, test.want, choice.Index)
			require.Equal(t, test.reason, choice.Reason)
			require.Equal(t, test.held[test.want], choice.Held)
			if choice.BestHeld > 0 {
				require.Equal(t, choice.BestHeld, test.held[choice.Best])
			} else {
				require.Equal(t, -1, choice.Best)
			}
			require.Equal(t, max(test.held[0], test.held[1], test.held[2]), choice.BestHeld)
			require.Equal(t, 1000, choice.Tokens)
		})
	}
}

func TestDecidingChangesNothing(t *testing.T) {
	list := candidates(4)
	for range 10 {
		Cost{}.Decide(1000, list, epoch)
	}
	for _, c := range list {
		require.Zero(t, c.Worker.Load())
		require.Zero(t, c.Worker.Assigned())
		require.Zero(t, c.Worker.Recent(epoch))
	}
}

func TestEveryCandidateHasItsTerms(t *testing.T) {
	list := candidates(3)
	list[1].Held, list[1].Private = 600, true
	list[2].Standing = Unhealthy
	require.NotNil(t, list[1].Worker.Place(800, epoch))
	choice := Cost{}.Decide(1000, list, epoch)

	require.Equal(t, 0, choice.Index)
	require.Equal(t, 1000, list[0].Terms.Uncached)
	require.InDelta(t, workWeight*1000/defaultRate, list[0].Terms.Cost, 1e-9)
	require.Equal(t, 400, list[1].Terms.Uncached)
	require.InDelta(t, 800.0/defaultRate, list[1].Terms.Wait, 1e-9)
	require.InDelta(t, workWeight*400/defaultRate, list[1].Terms.Prefill, 1e-9)
	require.InDelta(t, float64(decodeTokens)/defaultRate, list[1].Terms.Decode, 1e-9)
	require.Zero(t, list[1].Terms.Spread, "its own past is worth staying for")
	require.InDelta(t, workWeight*1000/defaultRate, list[2].Terms.Cost, 1e-9, "those that cannot be chosen are explained too")
}

func TestOnlyAvailableCandidatesAreChosen(t *testing.T) {
	for _, standing := range []Standing{Unhealthy, Full, Tried} {
		list := candidates(3)
		list[0].Held, list[0].Standing = 900, standing
		list[1].Held = 100
		choice := Cost{}.Decide(1000, list, epoch)
		require.Equal(t, 1, choice.Index, standing)
		require.Equal(t, HolderUnavailable, choice.Reason, standing)
		require.Equal(t, 900, choice.BestHeld)
	}
	list := candidates(2)
	list[0].Standing, list[1].Standing = Tried, Full
	choice, reservation := Place(Cost{}, 1000, list, epoch)
	require.Equal(t, -1, choice.Index)
	require.Equal(t, None, choice.Reason)
	require.Nil(t, reservation)
	require.Equal(t, -1, Cost{}.Decide(1000, nil, epoch).Index)
}

func TestTiesGoToTheFewestAssigned(t *testing.T) {
	list := candidates(4)
	for i := range 40 {
		_, r := Place(Cost{}, 100, list, epoch.Add(time.Duration(i)*time.Hour)) // nothing recent is left
		r.Release(epoch)
	}
	for _, c := range list {
		require.Equal(t, uint64(10), c.Worker.Assigned())
	}
}

// learn has a worker show a prefill rate.
func learn(w *fleet.Worker, rate float64, now time.Time) {
	for range 8 {
		r := w.Place(2000, now)
		now = now.Add(time.Duration(2000 / rate * float64(time.Second)))
		r.FirstToken(now)
		r.Learn(2000)
		r.Release(epoch)
	}
}

func TestASlowerWorkerGetsLess(t *testing.T) {
	list := candidates(2)
	learn(list[0].Worker, 2000, epoch)
	learn(list[1].Worker, 8000, epoch.Add(6*time.Second))
	now := epoch.Add(8 * time.Second)
	for range 50 {
		Place(Cost{}, 1000, list, now)
	}
	slow, fast := list[0].Worker.Load().InFlight(), list[1].Worker.Load().InFlight()
	require.Equal(t, 50, slow+fast)
	require.Less(t, slow, 20)
	require.Greater(t, slow, 5)
}

// TestRatesThatDifferByNoiseAreTies places prompts on workers of nearly the same
// speed, one whose speed is not known, and one that is much slower.
func TestRatesThatDifferByNoiseAreTies(t *testing.T) {
	list := candidates(4)
	for i, rate := range []float64{8000, 8900, 7400} {
		learn(list[i].Worker, rate, epoch)
	}
	odd := candidates(5)
	learn(odd[4].Worker, 200, epoch.Add(-79*time.Second))
	copy(odd, list)
	now := epoch.Add(5 * time.Second)
	for range 40 {
		_, r := Place(Cost{}, 1000, odd, now)
		r.Release(epoch)
	}
	for _, c := range odd[:4] {
		require.InDelta(t, 16, c.Worker.Assigned(), 1)
	}
	require.Equal(t, uint64(8), odd[4].Worker.Assigned(), "one that is much slower changes nothing about that")
}

// TestASlowWorkerDoesNotHaveOneOfTheFastTakeAll is a fleet of which the slow one and
// one of the fast are known first.
func TestASlowWorkerDoesNotHaveOneOfTheFastTakeAll(t *testing.T) {
	for _, slower := range []float64{1.5, 2, 3, 5} {
		list := candidates(4)
		learn(list[0].Worker, 8000/slower, epoch)
		learn(list[1].Worker, 8000, epoch.Add(10*time.Second))
		now := epoch.Add(13 * time.Second)
		for range 60 {
			_, r := Place(Cost{}, 1000, list, now)
			r.Release(now)
		}
		for _, c := range list[2:] {
			require.Greater(t, c.Worker.Assigned(), uint64(15), "one is %v times slower", slower)
		}
	}
}

// TestAWorkerThatWasSlowOnceIsTriedAgain lets time pass after a worker has shown
// itself slow, while the others are as they were.
func TestAWorkerThatWasSlowOnceIsTriedAgain(t *testing.T) {
	list := candidates(3)
	learn(list[0].Worker, 20, epoch.Add(-time.Hour))
	slow := list[0].Worker.Assigned()
	now := epoch
	for range 200 {
		now = now.Add(time.Second)
		_, r := Place(Cost{}, 1000, list, now)
		at := now.Add(125 * time.Millisecond)
		r.FirstToken(at)
		r.Learn(1000)
		r.Release(epoch)
	}
	require.Greater(t, list[0].Worker.Assigned(), slow+30, "it is as fast as the others now")
}

// TestASharedBeginningIsCopiedWhenItsHolderHasPaidForIt sends openings that share
// 1,500 tokens, one after another, to an idle fleet: the first holder must not get
// them all, nor may every one of them pay for a copy.
func TestASharedBeginningIsCopiedWhenItsHolderHasPaidForIt(t *testing.T) {
	list := candidates(4)
	holders, copies := map[int]bool{}, 0
	for i := range 40 {
		for j := range list {
			list[j].Held = 0
			if holders[j] {
				list[j].Held = 1500
			}
		}
		choice, r := Place(Cost{}, 1900, list, epoch.Add(time.Duration(i)*time.Second))
		r.Release(epoch)
		if choice.Held == 0 {
			copies++
			if i > 0 {
				require.Equal(t, Spread, choice.Reason)
				require.Equal(t, 1500, choice.BestHeld)
				require.Equal(t, 1500, list[choice.Best].Held)
			}
		}
		holders[choice.Index] = true
	}
	require.Len(t, holders, 4)
	require.Equal(t, 4, copies)
}

// TestNobodyWaitsForACopy has a worker that was added late, which by its work of
// late should have the next copy: not while others would serve the request sooner.
func TestNobodyWaitsForACopy(t *testing.T) {
	list := candidates(3)
	for _, c := range list[:2] {
		c.Worker.Place(100_000, epoch).Release(epoch)
	}
	list[0].Held = 1500
	late := list[2].Worker
	choice, r := Place(Cost{}, 1900, list, epoch)
	require.Equal(t, 2, choice.Index)
	choice = Cost{}.Decide(1900, list, epoch)
	require.Equal(t, 0, choice.Index, "the first copy is still being made")
	r.FirstToken(epoch)
	r.Release(epoch)
	require.Zero(t, late.Load())
}

// TestSamplesOfOnePromptWaitForTheFirst sends twelve copies of a prompt at once to an
// idle fleet: most wait for an engine that computes it already.
func TestSamplesOfOnePromptWaitForTheFirst(t *testing.T) {
	list := candidates(8)
	engines := make(map[int]bool)
	for range 12 {
		choice, _ := Place(Cost{}, 8000, list, epoch)
		list[choice.Index].Held = 8000
		engines[choice.Index] = true
	}
	require.LessOrEqual(t, len(engines), 2)
}

// TestProgressOfALargePrefillCounts has two engines with equal queues, of which one
// turned to its large prompt first: after four seconds that one is nearly done.
func TestProgressOfALargePrefillCounts(t *testing.T) {
	const small, large = defaultRate / 10, 5 * defaultRate
	list := candidates(2)
	for i, sizes := range [][]int{{large, small, small}, {small, small, large}} {
		for _, size := range sizes {
			list[i].Worker.Place(size, epoch)
		}
	}
	require.Equal(t, list[0].Worker.Load(), list[1].Worker.Load())
	require.Equal(t, 0, Cost{}.Decide(1000, list, epoch.Add(4*time.Second)).Index)
	require.InDelta(t, 1.2, list[0].Terms.Wait, 1e-9)
	require.InDelta(t, 5.1, list[1].Terms.Wait, 1e-9, "a prefill is never more than done")
}

func TestTiesGoToTheFewestRequestsOfLate(t *testing.T) {
	list := candidates(2)
	list[0].Worker.Place(30_000, epoch).Release(epoch)
	for range 3 {
		list[1].Worker.Place(100, epoch).Release(epoch)
	}
	require.Equal(t, 0, Cost{}.Decide(1000, list, epoch).Index, "one large prompt keeps nobody away for long")
	later := epoch.Add(time.Hour)
	for range 2 {
		list[0].Worker.Place(100, later).Release(epoch)
	}
	require.Equal(t, 1, Cost{}.Decide(1000, list, later).Index, "what was long ago does not count")
}

// TestAPromptThatIsSentAgainStays repeats a prompt that one worker holds almost
// all of, while the others have nothing to do.
func TestAPromptThatIsSentAgainStays(t *testing.T) {
	list := candidates(4)
	list[1].Worker.Place(81, epoch).Release(epoch)
	for range 10 {
		list[1].Held = 81
		choice, r := Place(Cost{}, 81, list, epoch)
		r.Release(epoch)
		require.Equal(t, 1, choice.Index)
		require.Equal(t, Hit, choice.Reason)
	}
}

func TestAConversationStaysWithItsPastWhileItsWorkerIsBusierThanOthers(t *testing.T) {
	list := candidates(4)
	list[2].Held, list[2].Private = 800, true
	w := list[2].Worker
	w.Place(100_000, epoch).Release(epoch) // much work of late, but none queued
	choice := Cost{}.Decide(1000, list, epoch)
	require.Equal(t, 2, choice.Index)
	require.Equal(t, Hit, choice.Reason)
}

// TestChoicesMadeAtOnceSeeEachOther places many equal requests at the same time:
// as choosing and charging are one step, no worker may get two before another
// has one.
func TestChoicesMadeAtOnceSeeEachOther(t *testing.T) {
	shared := candidates(5)
	var wait sync.WaitGroup
	for range 50 {
		wait.Go(func() {
			mine := append([]Candidate(nil), shared...)
			for range 20 {
				Place(Cost{}, 100, mine, epoch)
			}
		})
	}
	wait.Wait()
	for _, c := range shared {
		require.Equal(t, 200, c.Worker.Load().InFlight(), c.Worker.Address())
		require.Equal(t, 20_000, c.Worker.Load().Queued())
	}
}

// TestTheWaitShrinksAsTheOldestPrefillProceeds looks at a queue of two while time
// passes: first the oldest prefill proceeds, then it is late, which says nothing
// about the other one.
func TestTheWaitShrinksAsTheOldestPrefillProceeds(t *testing.T) {
	list := candidates(1)
	w := list[0].Worker
	first := w.Place(8000, epoch)
	w.Place(8000, epoch)
	for _, test := range []struct{ after, wait float64 }{{0, 2}, {0.25, 1.75}, {1, 1}, {5, 1}} {
		now := epoch.Add(time.Duration(test.after * float64(time.Second)))
		Cost{}.Decide(100, list, now)
		require.InDelta(t, test.wait, list[0].Terms.Wait, 1e-6, "after %v s", test.after)
	}
	done := epoch.Add(5 * time.Second)
	first.FirstToken(done)
	Cost{}.Decide(100, list, done)
	require.InDelta(t, 1, list[0].Terms.Wait, 1e-6)
	Cost{}.Decide(100, list, done.Add(500*time.Millisecond))
	require.InDelta(t, 0.5, list[0].Terms.Wait, 1e-6)
	first.Release(done)
	Cost{}.Decide(100, list, done.Add(500*time.Millisecond))
	require.InDelta(t, 0.5, list[0].Terms.Wait, 1e-6, "a request that decodes is not in the queue")
}

// TestTheWaitForTheNextPrefillBeginsWhenOneIsGivenUp has the client of the oldest
// prefill leave when it is nearly done.
func TestTheWaitForTheNextPrefillBeginsWhenOneIsGivenUp(t *testing.T) {
	list := candidates(1)
	w := list[0].Worker
	first := w.Place(8000, epoch)
	w.Place(8000, epoch)
	left := epoch.Add(900 * time.Millisecond)
	first.Release(left)
	Cost{}.Decide(100, list, left)
	require.InDelta(t, 1, list[0].Terms.Wait, 1e-6)
	Cost{}.Decide(100, list, left.Add(250*time.Millisecond))
	require.InDelta(t, 0.75, list[0].Terms.Wait, 1e-6)
}

// TestTheSpreadFadesAsQueuesFill weighs recent work less the more workers have a
// queue, which says the same.
func TestTheSpreadFadesAsQueuesFill(t *testing.T) {
	list := candidates(4)
	list[0].Worker.Place(8000, epoch).Release(epoch)
	list[0].Held = 16_000
	for busy, want := range []float64{1, 0.31640625, 0.0625, 0.00390625} {
		if busy > 0 {
			require.NotNil(t, list[busy].Worker.Place(100, epoch))
		}
		Cost{}.Decide(24_000, list, epoch)
		least := 0.0
		if busy == 3 {
			least = 100.0 / defaultRate
		}
		require.InDelta(t, want*(1-least), list[0].Terms.Spread, 1e-6, "%d busy", busy)
	}
}

func TestAFullLedgerIsNotChosen(t *testing.T) {
	list := candidates(2)
	for size := 1 << 30; size > 0; size >>= 1 {
		for list[0].Worker.Place(size, epoch) != nil {
			continue
		}
	}
	require.False(t, list[0].Worker.Load().Fits(1000))
	list[0].Held = 1000
	choice, r := Place(Cost{}, 1000, list, epoch)
	require.Equal(t, 1, choice.Index)
	require.Equal(t, Full, list[0].Standing)
	require.NotNil(t, r)
	require.Nil(t, Force(1<<30, list[0], epoch))
}

func TestForcedChoicesAreCharged(t *testing.T) {
	list := candidates(1)
	r := Force(0, list[0], epoch)
	require.Equal(t, 1, list[0].Worker.Load().Queued(), "a request without a prompt counts as well")
	r.Release(epoch)
	list[0].Held = 300
	r = Force(1000, list[0], epoch)
	require.Equal(t, 700, list[0].Worker.Load().Queued())
	r.Release(epoch)
	require.Zero(t, list[0].Worker.Load())
}

// TestDecideAgreesWithTheObviousRule compares with a rule written out the long way.
func TestDecideAgreesWithTheObviousRule(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		list := candidates(1 + random.IntN(8))
		tokens := random.IntN(5000)
		for i := range list {
			c := &list[i]
			c.Held = random.IntN(tokens + 1)
			c.Private = random.IntN(2) == 0
			c.Standing = Standing(max(0, random.IntN(6)-2))
			for range random.IntN(3) {
				r := c.Worker.Place(random.IntN(3000), epoch)
				if random.IntN(2) == 0 {
					r.Release(epoch)
				}
			}
		}
		best, bestCost := -1, 0.0
		least, available, idle := math.Inf(1), 0.0, 0.0
		for _, c := range list {
			if c.Standing != Available {
				continue
			}
			available++
			least = min(least, c.Worker.Recent(epoch))
			if c.Worker.Load().Queued() == 0 {
				idle++
			}
		}
		for i, c := range list {
			if c.Standing != Available {
				continue
			}
			load := c.Worker.Load()
			cost := (float64(load.Queued()+decodeTokens*load.InFlight()) + workWeight*float64(tokens-c.Held)) / defaultRate
			if !c.Private {
				most := float64(min(c.Held, spreadShare*(tokens-c.Held)))
				cost += min(math.Pow(idle/available, 4)*(c.Worker.Recent(epoch)-least), workWeight*most) / defaultRate
			}
			if best < 0 || cost < bestCost-1e-12 || cost < bestCost+1e-12 && c.Worker.Assigned() < list[best].Worker.Assigned() {
				best, bestCost = i, cost
			}
		}
		choice := Cost{}.Decide(tokens, list, epoch)
		if best < 0 {
			require.Equal(t, -1, choice.Index)
			continue
		}
		require.InDelta(t, bestCost, list[choice.Index].Terms.Cost, 1e-9)
	}
}

func BenchmarkPlace(b *testing.B) {
	for _, n := range []int{1, 4, 16, 64} {
		b.Run(fmt.Sprintf("workers=%d", n), func(b *testing.B) {
			list := candidates(n)
			list[0].Held = 900
			b.ReportAllocs()
			now := epoch
			for b.Loop() {
				now = now.Add(time.Millisecond)
				_, r := Place(Cost{}, 1000, list, now)
				r.Release(epoch)
			}
		})
	}
}
