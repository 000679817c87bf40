package enginesim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// watching returns a watcher, which may be called by several goroutines at a time,
// and what it was told so far.
func watching() (watcher func(Prefill), told func() []Prefill) {
	var mu sync.Mutex
	var list []Prefill
	watcher = func(p Prefill) {
		mu.Lock()
		defer mu.Unlock()
		list = append(list, p)
	}
	told = func() []Prefill {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
	return watcher, told
}

// watching returns what the engine of a rig has told so far.
func (r *rig) watching() (told func() []Prefill) {
	r.e.told, told = watching()
	return told
}

// waits are the waits of prefills, in order.
func waits(told []Prefill) (list []time.Duration) {
	for _, p := range told {
		list = append(list, p.Wait)
	}
	return list
}

func TestTheWatcherIsToldWhatEachPromptWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := DefaultOptions()
		opts.Speed = 20
		r := newRig(t, opts)
		told := r.watching()
		r.send(t.Context(), numbered(1, 8000), 5)
		pass(10 * ms) // 200 simulated
		r.send(t.Context(), numbered(1, 8000), 1)
		r.send(t.Context(), numbered(2, 800), 1)
		pass(time.Second)
		require.Equal(t, []Prefill{
			{Arrived: r.start, Prompt: 8000, Wait: 1000 * ms},
			{Arrived: r.start.Add(10 * ms), Prompt: 8000, Cached: 7984, Wait: 802 * ms},
			{Arrived: r.start.Add(10 * ms), Prompt: 800, Wait: 902 * ms},
		}, told())
	})
}

// TestALateTimerChangesNobodysWait has a prefill of one second whose end is noticed
// after 1.7.
func TestALateTimerChangesNobodysWait(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	leave()
	for name, test := range map[string]struct {
		ctx          context.Context // of the late one
		queued, came []int           // tokens of a prompt right behind it, and of one that comes at 1.6 s
		waits        []time.Duration // of those that are told of
	}{
		"one is queued":                {ctx: t.Context(), queued: []int{8000}, waits: []time.Duration{1000 * ms, 2000 * ms}},
		"one comes meanwhile":          {ctx: t.Context(), came: []int{800}, waits: []time.Duration{1000 * ms, 100 * ms}},
		"both":                         {ctx: t.Context(), queued: []int{8000}, came: []int{800}, waits: []time.Duration{1000 * ms, 2000 * ms, 500 * ms}},
		"the late one's client leaves": {ctx: gone, queued: []int{8000}, waits: []time.Duration{2000 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, DefaultOptions())
				told := r.watching()
				late, err := r.e.submit(prompt{ids: numbered(1, 8000)}, namespace{}, 1, 0)
				require.NoError(t, err)
				for _, n := range test.queued {
					r.send(t.Context(), numbered(2, n), 1)
				}
				pass(1600 * ms)
				for _, n := range test.came {
					r.send(t.Context(), numbered(3, n), 1)
				}
				pass(100 * ms)
				_ = late.run(test.ctx, func(delta) error { return nil })
				pass(5 * time.Second)
				require.ElementsMatch(t, test.waits, waits(told()))
				r.idle()
			})
		})
	}
}

// TestAnAnswerThatEndsLateKeepsNobodyFromItsRoom has clients that are slow to take
// the last token.
func TestAnAnswerThatEndsLateKeepsNobodyFromItsRoom(t *testing.T) {
	for name, test := range map[string]struct {
		between int           // tokens of a prompt that fits beside the slow one
		starts  time.Duration // the prefill of the one that does not
	}{
		"prefill is free":          {8, 510 * ms}, // after 10 ms of prefill and 50 steps of 10 ms
		"prefill is at it by then": {9600, 1210 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := DefaultOptions()
				opts.Capacity, opts.MaxModelLen = 16000, 16000
				opts.DecodeBase, opts.DecodePerRunning = 10*ms, 0
				r := newRig(t, opts)
				told := r.watching()
				slow, err := r.e.submit(prompt{ids: numbered(1, 80)}, namespace{}, 51, 0)
				require.NoError(t, err)
				go func() {
					_ = slow.run(t.Context(), func(d delta) error {
						if d.last {
							time.Sleep(2 * time.Second)
						}
						return nil
					})
				}()
				pass(5 * ms)
				r.send(t.Context(), numbered(2, test.between), 1)
				r.send(t.Context(), numbered(3, 15930), 1)
				pass(5 * time.Second)
				require.Len(t, told(), 3)
				last := told()[2]
				require.Equal(t, 15930, last.Prompt)
				require.Equal(t, test.starts, last.Arrived.Add(last.Wait-opts.prefillTime(last.Prompt)).Sub(r.start))
				r.idle()
			})
		})
	}
}

// TestWaitsAreThoseOfTheScheduleOnABusyMachine runs in real time, more prompts than
// are timely for it, and reckons up whether each prefill began when it came or when
// the one before it ended.
func TestWaitsAreThoseOfTheScheduleOnABusyMachine(t *testing.T) {
	opts := DefaultOptions()
	opts.Speed, opts.StreamInterval = 1000, 16
	s, err := NewServer(opts)
	require.NoError(t, err)
	watcher, told := watching()
	s.Watch(watcher)
	var clients sync.WaitGroup
	for i := range 10 {
		clients.Go(func() {
			for j := range 20 {
				post(s, "/v1/completions", fmt.Sprintf(`{"prompt":"%d %s","max_tokens":40}`, i, strings.Repeat("word ", 100+j*50)))
			}
		})
	}
	clients.Wait()
	prefills := told()
	require.Len(t, prefills, 200)

	ends := func(p Prefill) time.Time { return p.Arrived.Add(p.Wait / 1000) }
	slices.SortFunc(prefills, func(p, q Prefill) int { return ends(p).Compare(ends(q)) })
	var end time.Time
	for _, p := range prefills {
		end = latest(p.Arrived, end).Add(opts.prefillTime(p.Prompt - p.Cached))
		require.WithinDuration(t, end, ends(p), time.Microsecond) // what is lost in division
		end = ends(p)
	}
}

func TestTheWatcherStaysWhenTheEngineIsRestarted(t *testing.T) {
	s := instantServer(t)
	watcher, told := watching()
	s.Watch(watcher)
	post(s, "/v1/completions", `{"prompt":[1,2,3]}`)
	s.Restart()
	post(s, "/v1/completions", `{"prompt":[[1,2],[3]],"n":2}`)
	var prompts []int
	for _, p := range told() {
		prompts = append(prompts, p.Prompt)
	}
	require.Len(t, prompts, 5, "one for each answer")
	require.Equal(t, 3, prompts[0])
	require.ElementsMatch(t, []int{2, 2, 1, 1}, prompts[1:])
	s.Watch(nil)
	post(s, "/v1/completions", `{"prompt":"x"}`)
	require.Len(t, told(), 5)
}

func TestTheWatcherMayChangeAtAnyTime(t *testing.T) {
	s := instantServer(t)
	var told atomic.Int64
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 50 {
				s.Watch(func(Prefill) { told.Add(1) })
				post(s, "/v1/completions", `{"prompt":"`+strings.Repeat("word ", 50)+`"}`)
			}
		})
	}
	group.Wait()
	require.EqualValues(t, 200, told.Load())
}
