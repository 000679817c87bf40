package fleet

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// after returns a time so many seconds from the epoch.
func after(seconds float64) time.Time {
	return epoch.Add(time.Duration(seconds * float64(time.Second)))
}

// newWatched returns a worker that has prefilled 1000 tokens a second up to the epoch.
func newWatched(t *testing.T) *Worker {
	t.Helper()
	w := New().Join("a:1")
	for i := range 2 * minSamples {
		at := float64(i - 2*minSamples)
		r := charge(t, w, 1000, after(at))
		r.FirstToken(after(at + 1))
		r.Learn(1000)
		r.Release(after(at + 1))
	}
	require.InDelta(t, 1000, w.PrefillRate(epoch), 1)
	return w
}

// expect places a request that is to be answered in some form.
func expect(t *testing.T, w *Worker, answer Answer, tokens int, seconds float64) *Reservation {
	t.Helper()
	r := charge(t, w, tokens, after(seconds))
	r.Expect(answer, after(seconds))
	return r
}

// requireOverdue says for how many seconds something should have been heard of w.
func requireOverdue(t *testing.T, w *Worker, at, seconds float64) {
	t.Helper()
	require.InDelta(t, seconds, w.Overdue(after(at)).Seconds(), 0.001, "after %v s", at)
}

// TestAWorkerIsOverdueWhenItsWorkTakesMuchTooLong has requests wait: each is given 2 s,
// and 4 times as long as it should take.
func TestAWorkerIsOverdueWhenItsWorkTakesMuchTooLong(t *testing.T) {
	w := newWatched(t)
	requireOverdue(t, w, 100, 0)
	first := expect(t, w, Streamed, 1000, 0)
	requireOverdue(t, w, 6, 0)
	requireOverdue(t, w, 7, 1)
	second := expect(t, w, Streamed, 5000, 7)
	requireOverdue(t, w, 7, 1) // it is no excuse that more are waiting
	requireOverdue(t, w, 67, 61)
	first.FirstToken(after(67))
	requireOverdue(t, w, 67, 0)
	requireOverdue(t, w, 89, 0) // 2 s, and 4 times 5
	requireOverdue(t, w, 90, 1)
	second.FirstToken(after(90))
	requireOverdue(t, w, 1000, 0)
}

// TestTheWorkOfAllWhoWaitIsGivenItsTime has two come while one waits: an engine may turn
// to them first.
func TestTheWorkOfAllWhoWaitIsGivenItsTime(t *testing.T) {
	w := newWatched(t)
	first := expect(t, w, Streamed, 1000, 0)
	expect(t, w, Streamed, 2000, 1)
	third := expect(t, w, Streamed, 3000, 2)
	requireOverdue(t, w, 26, 0)
	requireOverdue(t, w, 27, 1)
	third.FirstToken(after(26))
	requireOverdue(t, w, 40, 0)
	first.Release(after(35)) // gives up: what is left is given its own time
	requireOverdue(t, w, 37, 0)
	requireOverdue(t, w, 38, 1)
}

// TestNoOrderOfPrefillsIsOverdue has an engine of half the speed take random prompts in
// random order, and some clients leave.
func TestNoOrderOfPrefillsIsOverdue(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		w := newWatched(t)
		now := 0.0
		var waiting []*Reservation
		for range 50 {
			for range random.IntN(4) {
				waiting = append(waiting, expect(t, w, Streamed, random.IntN(20_000), now))
			}
			if len(waiting) == 0 {
				continue
			}
			i := random.IntN(len(waiting))
			r := waiting[i]
			waiting = append(waiting[:i], waiting[i+1:]...)
			if random.IntN(4) == 0 {
				r.Release(after(now))
				continue
			}
			now += float64(r.Tokens()) / 500
			requireOverdue(t, w, now, 0)
			r.FirstToken(after(now))
			requireOverdue(t, w, now, 0)
		}
	}
}

// TestASilentWorkerIsRememberedWhenNobodyWaits has clients give up: the worker must not
// look idle, but be tried again, by one request at a time.
func TestASilentWorkerIsRememberedWhenNobodyWaits(t *testing.T) {
	w := newWatched(t)
	first, second := expect(t, w, Streamed, 1000, 0), expect(t, w, Streamed, 0, 1)
	first.Release(after(16))
	requireOverdue(t, w, 16, 10)
	second.Release(after(26))
	requireOverdue(t, w, 26, 20)
	requireOverdue(t, w, 36, 10) // it counts down
	requireOverdue(t, w, 46, 0)
	requireOverdue(t, w, 1000, 0)

	test := expect(t, w, Streamed, 1000, 100)
	requireOverdue(t, w, 100, 20) // and goes on where it was
	requireOverdue(t, w, 180, 100)
	test.Release(after(180))
	requireOverdue(t, w, 180, 60) // with a bound
	requireOverdue(t, w, 240, 0)
	test = expect(t, w, Streamed, 1000, 300)
	requireOverdue(t, w, 300, 60)
	test.FirstToken(after(301))
	requireOverdue(t, w, 301, 0)
	expect(t, w, Streamed, 1000, 302).Release(after(305))
	requireOverdue(t, w, 306, 0)
}

// TestClientsThatLeaveEarlyAreNoEvidence has clients leave one after the other, before the
// worker should have answered.
func TestClientsThatLeaveEarlyAreNoEvidence(t *testing.T) {
	for name, c := range map[string]struct {
		tokens int
		waited float64
	}{
		"nothing to compute": {0, 0.1},
		"little to compute":  {300, 0.3},
		"much to compute":    {20_000, 15},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatched(t)
			now := 0.0
			for range 200 {
				r := expect(t, w, Streamed, c.tokens, now)
				now += c.waited
				requireOverdue(t, w, now, 0)
				r.Release(after(now))
				requireOverdue(t, w, now, 0)
				now += 0.01
			}
		})
	}
}

// TestClientsThatLeaveABusyWorkerAreNoEvidence has them leave while it answers others.
func TestClientsThatLeaveABusyWorkerAreNoEvidence(t *testing.T) {
	w := newWatched(t)
	for i := range 1000 {
		at := 0.1 * float64(i)
		r := expect(t, w, Streamed, 1000, at)
		if i%10 == 0 {
			w.Heard(after(at)) // of a stream that had begun before
		}
		requireOverdue(t, w, at+0.1, 0)
		r.Release(after(at + 0.1))
		requireOverdue(t, w, at+0.1, 0)
	}
}

// TestWaitsInVainAddUp has a worker hang whose clients all give up before anything is due to
// one of them, one after the other or overlapping.
func TestWaitsInVainAddUp(t *testing.T) {
	for name, c := range map[string]struct {
		tokens              int
		every, waits, until float64 // seconds
	}{
		"overlapping":       {250, 1, 10, 15},
		"nearly one by one": {2000, 6, 7, 15},
		"one by one":        {1000, 5, 4, 20},
		"just before due":   {1000, 6, 5.9, 15},
		"long prompts":      {4000, 20, 17, 45},
		"longer prompts":    {8000, 40, 30, 85},
		"long waits":        {300, 1, 60, 80},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatched(t)
			var waiting []*Reservation
			at := 0.0
			for ; at < c.until; at += c.every {
				for len(waiting) > 0 && waiting[0].Charged().Before(after(at-c.waits)) {
					waiting[0].Release(waiting[0].Charged().Add(time.Duration(c.waits * float64(time.Second))))
					waiting = waiting[1:]
				}
				waiting = append(waiting, expect(t, w, Streamed, c.tokens, at))
			}
			require.Positive(t, w.Overdue(after(at)))
			w.Heard(after(at))
			requireOverdue(t, w, at, 0)
		})
	}
}

// TestAnOldSilenceIsForgotten has one come long after all have given up.
func TestAnOldSilenceIsForgotten(t *testing.T) {
	w := newWatched(t)
	expect(t, w, Streamed, 100, 0).Release(after(90))
	requireOverdue(t, w, 90, 60)
	requireOverdue(t, w, 150, 0)
	test := expect(t, w, Streamed, 100, 600)
	requireOverdue(t, w, 600, 60)
	test.Release(after(600))
	expect(t, w, Streamed, 20_000, 1201)
	requireOverdue(t, w, 1201, 0)
	requireOverdue(t, w, 1283, 0)
	requireOverdue(t, w, 1284, 1)
}

// TestWhatOldSilencesWereExcusedIsForgottenToo has clients give up just before the end of
// what a long prompt may take.
func TestWhatOldSilencesWereExcusedIsForgottenToo(t *testing.T) {
	w := newWatched(t)
	for _, at := range []float64{0, 1000} {
		r := expect(t, w, Streamed, 20_000, at)
		r.Release(after(at + 81))
		requireOverdue(t, w, at+81, 0)
	}
	r := expect(t, w, Streamed, 20_000, 1100)
	r.Release(after(1181))
	require.Positive(t, w.Overdue(after(1181)), "it happens time and again")
}

// TestAClockThatIsSetBackProlongsNoSilence has time go back an hour.
func TestAClockThatIsSetBackProlongsNoSilence(t *testing.T) {
	w := newWatched(t)
	expect(t, w, Streamed, 0, 0).Release(after(30))
	requireOverdue(t, w, 30, 28)
	requireOverdue(t, w, 30-3600, 28)
	expect(t, w, Streamed, 0, 30-3600)
	requireOverdue(t, w, 30-3600, 28)
}

// TestAWholeAnswerIsGivenWhatTheyUsuallyTake learns it first: until then nothing is due.
func TestAWholeAnswerIsGivenWhatTheyUsuallyTake(t *testing.T) {
	w := newWatched(t)
	now := 0.0
	for range minSamples {
		r := expect(t, w, Whole, 0, now)
		requireOverdue(t, w, now+1000, 0)
		now += 10
		r.Answered(after(now))
		r.Learn(0)
		r.Release(after(now))
	}
	r := expect(t, w, Whole, 1000, now)
	requireOverdue(t, w, now+46, 0) // 2 s, 4 times 10 and 4 times 1
	requireOverdue(t, w, now+47, 1)
	r.Answered(after(now + 47))
	requireOverdue(t, w, now+1000, 0) // a client that takes it slowly
	r.Release(after(now + 1000))
	requireOverdue(t, w, now+1001, 0)
}

// TestALongAnswerAmongShortOnesIsNotOverdue has answers in one piece of very different
// lengths.
func TestALongAnswerAmongShortOnesIsNotOverdue(t *testing.T) {
	w := newWatched(t)
	now := 0.0
	whole := func(seconds float64) {
		r := expect(t, w, Whole, 0, now)
		now += seconds
		requireOverdue(t, w, now, 0)
		r.Answered(after(now))
		r.Learn(0)
		r.Release(after(now))
	}
	for range 50 {
		whole(0.3)
	}
	whole(20)
	for range 100 {
		whole(0.3)
	}
	whole(28)
	for range 1000 {
		whole(0.3)
	}
	expect(t, w, Whole, 0, now)
	requireOverdue(t, w, now+23, 1) // 2 s, and 4 times 5: long ones are forgotten
}

// TestAnAnswerIsExpectedOnceAndNotWhenItHasBegun has requests be sent while their answers
// begin.
func TestAnAnswerIsExpectedOnceAndNotWhenItHasBegun(t *testing.T) {
	w := newWatched(t)
	r := charge(t, w, 0, epoch)
	requireOverdue(t, w, 100, 0)
	r.Expect(Streamed, after(100))
	r.Expect(Streamed, after(101))
	requireOverdue(t, w, 103, 1)
	r.Release(after(102))
	require.Zero(t, w.queue.streams.waiting)

	w = newWatched(t)
	r = charge(t, w, 0, epoch)
	r.Answered(after(1)) // refused
	r.Expect(Streamed, after(2))
	requireOverdue(t, w, 100, 0)
}

// TestAStreamIsDueWhileAWholeAnswerIsNot has both wait: each by its own record.
func TestAStreamIsDueWhileAWholeAnswerIsNot(t *testing.T) {
	w := newWatched(t)
	for range minSamples {
		r := expect(t, w, Whole, 0, 0)
		r.Answered(after(10))
		r.Learn(0)
		r.Release(after(10))
	}
	expect(t, w, Whole, 0, 10)
	requireOverdue(t, w, 30, 0)
	stream := expect(t, w, Streamed, 0, 30)
	requireOverdue(t, w, 32, 0)
	requireOverdue(t, w, 34, 2)
	stream.FirstToken(after(34))
	requireOverdue(t, w, 76, 0) // something was heard, so the other one is given all its time
	requireOverdue(t, w, 77, 1)
}

func TestNothingIsExpectedOfUnforeseenAnswers(t *testing.T) {
	w := newWatched(t)
	expect(t, w, Unforeseen, 1000, 0)
	charge(t, w, 1000, epoch)
	requireOverdue(t, w, 10_000, 0)
}

func TestAnythingHeardWillDo(t *testing.T) {
	for name, heard := range map[string]func(*Worker, *Reservation){
		"a first token":         func(_ *Worker, r *Reservation) { r.FirstToken(after(10)) },
		"an error":              func(_ *Worker, r *Reservation) { r.Answered(after(10)) },
		"the end of a stream":   func(w *Worker, _ *Reservation) { w.Heard(after(10)) },
		"a token for another":   func(w *Worker, _ *Reservation) { expect(t, w, Unforeseen, 1, 9).FirstToken(after(10)) },
		"an answer for another": func(w *Worker, _ *Reservation) { expect(t, w, Whole, 1, 9).Answered(after(10)) },
	} {
		w := newWatched(t)
		r := expect(t, w, Streamed, 1000, 0)
		requireOverdue(t, w, 9, 3)
		heard(w, r)
		requireOverdue(t, w, 10, 0)

		w = newWatched(t)
		expect(t, w, Streamed, 1000, 0).Release(after(9))
		requireOverdue(t, w, 9, 3)
		heard(w, expect(t, w, Streamed, 1000, 9))
		requireOverdue(t, w, 10, 0)
		require.Zero(t, w.queue.streams.left.Load(), name)
	}
}

// TestOfAWorkerThatIsNotKnownLittleIsExpected gives one of unknown speed the time of a
// slow one, and one that has confirmed nothing for long that of its last known speed.
func TestOfAWorkerThatIsNotKnownLittleIsExpected(t *testing.T) {
	w := New().Join("a:1")
	expect(t, w, Streamed, 10_000, 0)
	requireOverdue(t, w, 42, 0)
	requireOverdue(t, w, 43, 1)

	w = newWatched(t)
	w.prefill.rate.Store(0x40BF400000000000) // 8000
	expect(t, w, Streamed, 8000, 1000)
	require.Zero(t, w.PrefillRate(after(1000)))
	requireOverdue(t, w, 1007, 1)

	expect(t, New().Join("a:1"), Streamed, maxCharge, 0)
	require.Equal(t, longestAllowed, w.allowed(maxCharge))
}

// TestASpeedIsNotLearnedFromAHang has a worker hang while requests wait, then work as
// before, and then be slow. Until then it is taken for one that is not known.
func TestASpeedIsNotLearnedFromAHang(t *testing.T) {
	w := newWatched(t)
	var waiting []*Reservation
	for range 5 {
		waiting = append(waiting, expect(t, w, Streamed, 1000, 0))
	}
	w.Heard(after(50)) // a stream that had begun before
	for i, r := range waiting {
		r.FirstToken(after(50 + 0.001*float64(i)))
		r.Learn(1000)
	}
	next := expect(t, w, Streamed, 1000, 51)
	next.FirstToken(after(52))
	next.Learn(1000)
	require.Zero(t, w.PrefillRate(after(52)))
	for i := range minSamples {
		at := float64(52 + i)
		r := expect(t, w, Streamed, 1000, at)
		r.FirstToken(after(at + 1))
		r.Learn(1000)
	}
	require.InDelta(t, 1000, w.PrefillRate(after(57)), 1)
	for i := range 20 {
		at := float64(57 + 10*i)
		r := expect(t, w, Streamed, 1000, at)
		r.FirstToken(after(at + 10))
		r.Learn(1000)
	}
	require.Less(t, w.PrefillRate(after(257)), 800.0, "it is ten times slower")
}

// TestASpeedIsNotLearnedFromTheNextHangEither has a worker hang twice, and work well between.
func TestASpeedIsNotLearnedFromTheNextHangEither(t *testing.T) {
	w := newWatched(t)
	for _, at := range []float64{0, 100} {
		var waiting []*Reservation
		for range minSamples {
			waiting = append(waiting, expect(t, w, Streamed, 1000, at))
		}
		for _, r := range waiting {
			r.FirstToken(after(at + 50))
			r.Learn(1000)
		}
		require.Zero(t, w.PrefillRate(after(at+50)))
		for i := range minSamples {
			next := at + 51 + float64(i)
			r := expect(t, w, Streamed, 1000, next)
			r.FirstToken(after(next + 1))
			r.Learn(1000)
		}
		require.InDelta(t, 1000, w.PrefillRate(after(at+56)), 1)
	}
}

// TestWhatAnswersTakeIsNotLearnedFromAHang does the same with answers in one piece.
func TestWhatAnswersTakeIsNotLearnedFromAHang(t *testing.T) {
	w := newWatched(t)
	now := 0.0
	whole := func(seconds float64) {
		r := expect(t, w, Whole, 0, now)
		now += seconds
		r.Answered(after(now))
		r.Learn(0)
		r.Release(after(now))
		now++
	}
	for range minSamples {
		whole(10)
	}
	whole(1000)
	require.Equal(t, 10*time.Second, w.queue.wholes.usual)
	whole(10)
	require.Equal(t, 10*time.Second, w.queue.wholes.usual)
	for range 20 {
		whole(100)
	}
	require.Greater(t, w.queue.wholes.usual, 50*time.Second, "they have become longer")
}

// TestNobodyIsWaitedForWhenAllHaveLeft ends requests at once in every way and order.
func TestNobodyIsWaitedForWhenAllHaveLeft(t *testing.T) {
	w := newWatched(t)
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for range 2000 {
				now := after(random.Float64() * 1000)
				r := w.Place(random.IntN(5000), now)
				steps := []func(){
					func() { r.Expect(Answer(random.IntN(3)), now) },
					func() { r.FirstToken(now.Add(time.Second)) },
					func() { r.Answered(now.Add(time.Second)) },
					func() { r.Learn(1000) },
					func() { w.Heard(now) },
					func() { w.Overdue(now) },
				}
				random.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
				for _, step := range steps[:random.IntN(len(steps))] {
					step()
				}
				r.Release(now)
				r.Expect(Streamed, now) // comes too late
			}
		})
	}
	wait.Wait()
	for _, s := range []*silence{&w.queue.streams, &w.queue.wholes} {
		require.Zero(t, s.waiting)
		require.Zero(t, s.allowed)
	}
	w.Heard(after(2000))
	require.Zero(t, w.Overdue(after(3000)))
}

// TestThatNobodyWaitsAnyMoreIsNotHeard has the worker forgiven before it says anything.
func TestThatNobodyWaitsAnyMoreIsNotHeard(t *testing.T) {
	w := newWatched(t)
	r := expect(t, w, Streamed, 1000, 1)
	require.Positive(t, w.Overdue(after(60)))
	r.Release(after(60))
	requireOverdue(t, w, 6000, 0)
	r = expect(t, w, Streamed, 1000, 6000)
	require.False(t, w.HeardSince(after(60)))
	r.FirstToken(after(6001))
	require.True(t, w.HeardSince(after(60)))
	require.False(t, w.HeardSince(after(6002)))
}
