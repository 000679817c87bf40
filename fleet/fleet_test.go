package fleet

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func charge(t *testing.T, w *Worker, tokens int, now time.Time) *Reservation {
	t.Helper()
	r := w.Place(tokens, now)
	require.NotNil(t, r)
	return r
}

func TestTheSameAddressIsTheSameWorker(t *testing.T) {
	f := New()
	a, b := f.Join("a:1"), f.Join("b:1")
	require.NotSame(t, a, b)
	require.Same(t, a, f.Join("a:1"))
	require.Equal(t, []*Worker{a, b}, f.Workers())

	require.False(t, f.Leave(a))
	require.Equal(t, []*Worker{a, b}, f.Workers())
	require.True(t, f.Leave(a))
	require.Equal(t, []*Worker{b}, f.Workers())
	require.Equal(t, 1, f.Len())
}

func TestAWorkerWithOpenRequestsIsKeptUntilTheyEnd(t *testing.T) {
	f := New()
	w := f.Join("a:1")
	first, second := charge(t, w, 10, epoch), charge(t, w, 20, epoch)
	require.True(t, f.Leave(w))
	require.Empty(t, f.Workers(), "nobody uses it")
	require.Equal(t, 1, f.Len(), "but it is still busy")

	first.Release(epoch)
	require.Same(t, w, f.Join("a:1"), "added again, it has its ledger still")
	require.Equal(t, 20, w.Load().Queued())
	require.True(t, f.Leave(w))

	second.Release(epoch)
	require.Zero(t, f.Len())
	require.NotSame(t, w, f.Join("a:1"))
}

func TestPrefillIsReleasedAtTheFirstTokenAndTheRestAtTheEnd(t *testing.T) {
	w := New().Join("a:1")
	r := charge(t, w, 1000, epoch)
	require.Equal(t, 1000, w.Load().Queued())
	require.Equal(t, 1, w.Load().InFlight())
	require.Equal(t, uint64(1), w.Assigned())

	r.FirstToken(epoch.Add(time.Second))
	r.FirstToken(epoch.Add(2 * time.Second))
	require.Zero(t, w.Load().Queued())
	require.Equal(t, 1, w.Load().InFlight())
	require.Equal(t, 1, w.Decoding())

	r.Release(epoch)
	r.Release(epoch)
	r.FirstToken(epoch.Add(3 * time.Second))
	require.Zero(t, w.Load())
	require.Zero(t, w.Decoding())
	require.Equal(t, uint64(1), w.Assigned())
}

func TestALedgerThatMovedRefusesTheCharge(t *testing.T) {
	w := New().Join("a:1")
	seen := w.Load()
	_, ok := w.Charge(seen, 5, epoch)
	require.True(t, ok)
	_, ok = w.Charge(seen, 5, epoch)
	require.False(t, ok)
	_, ok = w.Charge(w.Load(), 5, epoch)
	require.True(t, ok)
	require.Equal(t, 10, w.Load().Queued())
}

func TestALedgerHoldsNoMoreThanItCanWriteDown(t *testing.T) {
	w := New().Join("a:1")
	w.load.Store(maxInFlight)
	require.False(t, w.Load().Fits(0))
	require.Nil(t, w.Place(1, epoch))

	w.load.Store(uint64(maxQueued-5)<<inFlightBits | 7)
	require.True(t, w.Load().Fits(5))
	require.False(t, w.Load().Fits(6))
	require.Nil(t, w.Place(6, epoch))
	require.NotNil(t, w.Place(5, epoch))
	require.Equal(t, maxQueued, w.Load().Queued())
	require.Equal(t, 8, w.Load().InFlight())

	w = New().Join("b:1")
	r := charge(t, w, maxCharge+1, epoch)
	require.Equal(t, maxCharge, r.Tokens())
	r.Release(epoch)
	require.Zero(t, w.Load())
	require.Zero(t, charge(t, w, -1, epoch).Tokens())
}

// TestTheLedgerIsZeroWhenAllHaveLeft ends thousands of requests at once in every
// way and order there is.
func TestTheLedgerIsZeroWhenAllHaveLeft(t *testing.T) {
	f := New()
	w := f.Join("a:1")
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 0))
			for range 2000 {
				r := w.Place(random.IntN(5000), epoch)
				steps := []func(){func() { r.FirstToken(epoch.Add(time.Second)) }, func() { r.Release(epoch) }, func() { r.Release(epoch) }, func() { r.Learn(1000) }}
				random.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
				var both sync.WaitGroup
				for _, step := range steps {
					both.Go(step)
				}
				if d := w.Decoding(); d < 0 {
					t.Errorf("%d requests decoding", d)
				}
				both.Wait()
			}
		})
	}
	wait.Wait()
	require.Zero(t, w.Load())
	require.Zero(t, w.Decoding())
	require.Equal(t, uint64(16_000), w.Assigned())
}

func TestRecentWorkHalvesEveryHalfLife(t *testing.T) {
	w := New().Join("a:1")
	require.Zero(t, w.Recent(epoch))
	charge(t, w, 1000, epoch)
	require.InDelta(t, 1000, w.Recent(epoch), 1)
	require.InDelta(t, 500, w.Recent(epoch.Add(RecentHalfLife)), 1)
	charge(t, w, 1000, epoch.Add(RecentHalfLife))
	require.InDelta(t, 1500, w.Recent(epoch.Add(RecentHalfLife)), 1)
	require.InDelta(t, 750, w.Recent(epoch.Add(2*RecentHalfLife)), 1)
	require.InDelta(t, 0, w.Recent(epoch.Add(24*time.Hour)), 1e-6)
	require.InDelta(t, 1500, w.Recent(epoch), 1, "a clock that goes back does not add work")
	charge(t, w, 100, epoch)
	require.InDelta(t, 1600, w.Recent(epoch.Add(RecentHalfLife)), 1, "nor lose any")
}

func TestAPromptBeyondMeasureIsNoMoreRecentWork(t *testing.T) {
	w := New().Join("a:1")
	charge(t, w, 10_000_000, epoch)
	require.InDelta(t, maxRecent, w.Recent(epoch), 1)
	require.InDelta(t, 1, w.RecentRequests(epoch), 0.01)
	require.InDelta(t, 0.5, w.RecentRequests(epoch.Add(RecentHalfLife)), 0.01)
}

func TestARequestThatCameToNothingIsNoRecentWork(t *testing.T) {
	w := New().Join("a:1")
	served := charge(t, w, 1000, epoch)
	refused := charge(t, w, 5000, epoch)
	later := epoch.Add(RecentHalfLife / 2)
	refused.Void(later)
	refused.Void(later)
	require.InDelta(t, 1000*0.7071, w.Recent(later), 2)
	require.Equal(t, 6000, w.Load().Queued(), "it is released as any other")
	served.Release(epoch)
	refused.Release(epoch)
	require.Zero(t, w.Load())
	served.Void(later)
	require.InDelta(t, 0, w.Recent(later), 2)
}

// TestPrefillRateIsThatOfASerialQueue plays an engine that prefills 5,000 tokens
// a second, one prompt after another, under a queue and without.
func TestPrefillRateIsThatOfASerialQueue(t *testing.T) {
	for _, gap := range []time.Duration{0, 100 * time.Millisecond, 5 * time.Second} {
		random := rand.New(rand.NewPCG(1, uint64(gap)))
		w := New().Join("a:1")
		var queue []*Reservation
		arrival, free := epoch, epoch
		for range 200 {
			arrival = arrival.Add(gap)
			queue = append(queue, charge(t, w, 300+random.IntN(4000), arrival))
		}
		for _, r := range queue {
			start := free
			if r.Charged().After(start) {
				start = r.Charged()
			}
			free = start.Add(time.Duration(float64(r.Tokens()) / 5000 * float64(time.Second)))
			r.FirstToken(free)
			r.Learn(r.Tokens())
			r.Release(epoch)
		}
		require.InEpsilon(t, 5000, w.PrefillRate(free), 0.01, "a request every %s", gap)
	}
}

// TestNobodyLooksFastForHavingLargePrompts has two engines that take 50 ms for any
// prompt, and one that takes twice as long; each is given prompts of other sizes.
func TestNobodyLooksFastForHavingLargePrompts(t *testing.T) {
	f := New()
	workers := []*Worker{f.Join("a:1"), f.Join("b:1"), f.Join("c:1")}
	random := rand.New(rand.NewPCG(3, 3))
	now := epoch
	for range 40 {
		for i, w := range workers {
			tokens := 300 + random.IntN(600)
			if i == 0 || random.IntN(4) == 0 {
				tokens *= 40
			}
			r := charge(t, w, tokens, now)
			took := 50 * time.Millisecond
			if i == 2 {
				took *= 2
			}
			r.FirstToken(now.Add(took))
			r.Learn(tokens)
			r.Release(now)
			now = now.Add(200 * time.Millisecond)
		}
	}
	a, b, c := workers[0].PrefillRate(now), workers[1].PrefillRate(now), workers[2].PrefillRate(now)
	require.InEpsilon(t, a, b, 0.25)
	require.InEpsilon(t, a, 2*c, 0.25)
}

func TestSmallPrefillsTeachNothing(t *testing.T) {
	w := New().Join("a:1")
	r := charge(t, w, 100, epoch)
	r.Learn(10_000) // no first token yet
	first := epoch.Add(time.Second)
	r.FirstToken(first)
	for range minSamples {
		r.Learn(minLearned - 1)
	}
	require.Zero(t, w.PrefillRate(first))
	for range minSamples {
		require.Zero(t, w.PrefillRate(first), "too few to tell")
		r.Learn(minLearned)
	}
	require.InDelta(t, minLearned, w.PrefillRate(first), 1)
	require.InDelta(t, minLearned, w.PrefillRate(first.Add(rateLife)), 1)
	require.Zero(t, w.PrefillRate(first.Add(rateLife+1)), "nothing has confirmed it since")

	again := first.Add(2 * rateLife)
	for n := range minSamples {
		require.Zero(t, w.PrefillRate(again), "what was long ago is no sample: %d", n)
		r = charge(t, w, 1000, again)
		again = again.Add(time.Second)
		r.FirstToken(again)
		r.Learn(1000)
	}
	require.Positive(t, w.PrefillRate(again))
	w.ForgetRate()
	require.Zero(t, w.PrefillRate(again))
}

func TestPrefillRateFollowsAnEngineThatChanges(t *testing.T) {
	w := New().Join("a:1")
	now := epoch
	run := func(rate float64, tokens int) {
		for done := 0; done < tokens; done += 1000 {
			r := charge(t, w, 1000, now)
			now = now.Add(time.Duration(1000 / rate * float64(time.Second)))
			r.FirstToken(now)
			r.Learn(1000)
			r.Release(epoch)
		}
	}
	run(8000, 500_000)
	require.InEpsilon(t, 8000, w.PrefillRate(now), 0.01)
	run(2000, 500_000)
	require.InEpsilon(t, 2000, w.PrefillRate(now), 0.05)
}

func TestCapacityIsNeverNegative(t *testing.T) {
	w := New().Join("a:1")
	require.Zero(t, w.Capacity())
	w.SetCapacity(524_288)
	require.Equal(t, 524_288, w.Capacity())
	w.SetCapacity(-1)
	require.Zero(t, w.Capacity())
}

func BenchmarkChargeAndRelease(b *testing.B) {
	w := New().Join("a:1")
	b.ReportAllocs()
	for b.Loop() {
		r, _ := w.Charge(w.Load(), 1000, epoch)
		r.FirstToken(epoch)
		r.Release(epoch)
	}
}
