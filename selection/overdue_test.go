package selection

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/fleet"
)

// sim places requests on workers that prefill 8000 tokens a second, but for those that
// are stuck.
type sim struct {
	t          *testing.T
	now        time.Time
	candidates []Candidate
	stuck      map[int]bool
	free       []time.Time // when the worker is done with what it was given
	given      []int       // requests so far
	due        []func()    // what happens in the next instants
	at         []time.Time
}

func newSim(t *testing.T, workers int) *sim {
	return &sim{t: t, now: epoch, candidates: candidates(workers), stuck: map[int]bool{}, free: make([]time.Time, workers), given: make([]int, workers)}
}

// place places a request and lets it be answered, or have its client give up.
func (s *sim) place(tokens int, patience time.Duration) (index int) {
	for i := range s.candidates {
		s.candidates[i].Standing = Available
	}
	choice, r := Place(Cost{}, tokens, s.candidates, s.now)
	require.NotNil(s.t, r)
	r.Expect(fleet.Streamed, s.now)
	s.given[choice.Index]++
	if s.stuck[choice.Index] {
		s.do(s.now.Add(patience), func() { r.Release(s.now) })
		return choice.Index
	}
	begin := s.now
	if free := s.free[choice.Index]; free.After(begin) {
		begin = free
	}
	done := begin.Add(time.Duration(float64(tokens) / 8000 * float64(time.Second)))
	s.free[choice.Index] = done
	s.do(done, func() {
		r.FirstToken(s.now)
		r.Learn(tokens)
	})
	s.do(done.Add(2*time.Second), func() { r.Release(s.now) })
	return choice.Index
}

func (s *sim) do(at time.Time, what func()) {
	s.at, s.due = append(s.at, at), append(s.due, what)
}

// pass lets time pass to an instant.
func (s *sim) pass(to time.Time) {
	for {
		next := -1
		for i, at := range s.at {
			if !at.After(to) && (next < 0 || at.Before(s.at[next])) {
				next = i
			}
		}
		if next < 0 {
			break
		}
		what := s.due[next]
		s.now = s.at[next]
		s.at = append(s.at[:next], s.at[next+1:]...)
		s.due = append(s.due[:next], s.due[next+1:]...)
		what()
	}
	s.now = to
}

// run places requests for some seconds and returns how many each worker was given.
func (s *sim) run(seconds, each float64, tokens func() int) []int {
	return s.runWith(30*time.Second, seconds, each, tokens)
}

// runWith does so with clients that wait so long for a stuck worker.
func (s *sim) runWith(patience time.Duration, seconds, each float64, tokens func() int) []int {
	before := append([]int(nil), s.given...)
	end := s.now.Add(time.Duration(seconds * float64(time.Second)))
	for s.now.Before(end) {
		s.place(tokens(), patience)
		s.pass(s.now.Add(time.Duration(each * float64(time.Second))))
	}
	for i := range before {
		before[i] = s.given[i] - before[i]
	}
	return before
}

// TestAWorkerThatHangsGetsAHandfulOfRequests freezes one of four workers, for so long that
// its clients give up, and thaws it.
func TestAWorkerThatHangsGetsAHandfulOfRequests(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for name, load := range map[string]struct {
		each   float64 // seconds from one request to the next
		tokens func() int
	}{
		"long prompts":                 {0.4, func() int { return 2000 + random.IntN(8000) }},
		"short prompts":                {0.05, func() int { return 20 + random.IntN(200) }},
		"prompts of all sizes":         {0.2, func() int { return 10 << random.IntN(11) }},
		"as much as three can prefill": {0.25, func() int { return 5800 }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, 4)
			usual := s.run(60, load.each, load.tokens)
			require.Greater(t, usual[2], 20)

			s.stuck[2] = true
			require.LessOrEqual(t, s.run(20, load.each, load.tokens)[2], 8, "until it is seen to hang")
			require.LessOrEqual(t, s.run(20, load.each, load.tokens)[2], 1, "while its clients wait")
			s.run(60, load.each, load.tokens)
			require.LessOrEqual(t, s.run(600, load.each, load.tokens)[2], 8, "once they have given up")

			s.stuck[2] = false
			s.run(90, load.each, load.tokens) // one request is the test
			again := s.run(60, load.each, load.tokens)
			require.InDelta(t, usual[2], again[2], 0.3*float64(usual[2]), "it works again")
		})
	}
}

// TestAWorkerThatHangsIsFoundThoughClientsGiveUpBefore has clients that do not wait until
// anything is due to themselves.
func TestAWorkerThatHangsIsFoundThoughClientsGiveUpBefore(t *testing.T) {
	for name, load := range map[string]struct {
		warm     bool // so that speeds are known
		each     float64
		tokens   int
		patience time.Duration
	}{
		"short prompts":            {true, 0.167, 2000, 10 * time.Second},
		"long prompts":             {true, 1, 20_000, 10 * time.Second},
		"long prompts, rarely":     {true, 2, 20_000, 10 * time.Second},
		"longer prompts":           {true, 2, 40_000, 20 * time.Second},
		"longer prompts, rarely":   {true, 4, 40_000, 20 * time.Second},
		"very long prompts":        {true, 6, 60_000, 30 * time.Second},
		"never heard of":           {false, 0.25, 2000, 10 * time.Second},
		"never heard of, rarely":   {false, 1.25, 4000, 15 * time.Second},
		"never heard of, patience": {false, 1.7, 16_000, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, 4)
			tokens := func() int { return load.tokens }
			if load.warm {
				s.runWith(load.patience, 60, load.each, tokens)
			}
			s.stuck[2] = true
			s.runWith(load.patience, 60, load.each, tokens)
			require.LessOrEqual(t, s.runWith(load.patience, 600, load.each, tokens)[2], 10)
		})
	}
}

// TestWhatIsHeldAtAWorkerThatHangsIsNotWaitedFor has a long conversation go on: it is
// computed again elsewhere, soon, and stays if the worker is only slow.
func TestWhatIsHeldAtAWorkerThatHangsIsNotWaitedFor(t *testing.T) {
	list := candidates(3)
	list[1].Held, list[1].Private = 60_000, true
	for _, c := range list {
		learn(c.Worker, 8000, epoch.Add(-time.Minute))
	}
	r := list[1].Worker.Place(4000, epoch)
	r.Expect(fleet.Streamed, epoch)
	chosen := func(seconds int) int {
		return Cost{}.Decide(60_500, list, epoch.Add(time.Duration(seconds)*time.Second)).Index
	}
	require.Equal(t, 1, chosen(1))
	require.Equal(t, 1, chosen(5), "it takes ten times as long as predicted")
	require.NotEqual(t, 1, chosen(8))
	choice := Cost{}.Decide(60_500, list, epoch.Add(8*time.Second))
	require.Equal(t, LoadOutweighed, choice.Reason)
	r.FirstToken(epoch.Add(8 * time.Second))
	require.Equal(t, 1, chosen(8), "it is as good as ever")
}

// TestWhenAllAreOverdueNothingChanges compares choices with and without a delay that all
// share.
func TestWhenAllAreOverdueNothingChanges(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	for range 200 {
		list := candidates(4)
		for i := range list {
			r := list[i].Worker.Place(0, epoch)
			r.Expect(fleet.Streamed, epoch)
			list[i].Held, list[i].Private = random.IntN(20_000), true
			require.NotNil(t, list[i].Worker.Place(random.IntN(50_000), epoch.Add(time.Hour)))
		}
		now := epoch.Add(time.Hour)
		late := Cost{}.Decide(20_000, list, now)
		wait := list[0].Terms.Wait
		for i := range list {
			list[i].Worker.Heard(now)
		}
		require.Equal(t, late, Cost{}.Decide(20_000, list, now))
		require.Greater(t, wait, list[0].Terms.Wait+3600)
	}
}

// TestAnOverdueWorkerIsChosenIfTheOthersAreBusier has it stay one of those that can be
// chosen.
func TestAnOverdueWorkerIsChosenIfTheOthersAreBusier(t *testing.T) {
	list := candidates(2)
	list[0].Worker.Place(0, epoch).Expect(fleet.Streamed, epoch)
	require.NotNil(t, list[1].Worker.Place(80_000, epoch.Add(4*time.Second)))
	require.Equal(t, 0, Cost{}.Decide(1000, list, epoch.Add(4*time.Second)).Index)
	list[0].Standing, list[1].Standing = Available, Unhealthy
	require.Equal(t, 0, Cost{}.Decide(1000, list, epoch.Add(time.Hour)).Index)
}

// TestAWorkerThatHangsIsNotWhatOthersAreSpreadBy has it be the one that did least of late.
func TestAWorkerThatHangsIsNotWhatOthersAreSpreadBy(t *testing.T) {
	list := candidates(3)
	list[0].Held = 20_000
	list[1].Worker.Place(0, epoch).Expect(fleet.Streamed, epoch)
	now := epoch.Add(10 * time.Second)
	for _, i := range []int{0, 2} {
		list[i].Worker.Place(40_000, now).FirstToken(now)
	}
	choice := Cost{}.Decide(21_000, list, now)
	require.Positive(t, list[1].Terms.Overdue)
	require.Equal(t, 0, choice.Index)
	require.Zero(t, list[0].Terms.Spread)
	list[1].Worker.Heard(now)
	Cost{}.Decide(21_000, list, now)
	require.Positive(t, list[0].Terms.Spread, "as it does once it works again")
}
