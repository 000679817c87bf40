package inference

import (
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-inference/caddy-inference/fleet"
)

// TestAnEngineThatNeverAnswersDrawsNoMoreRequests has one of three engines hang, whatever
// form of answer is asked for.
func TestAnEngineThatNeverAnswersDrawsNoMoreRequests(t *testing.T) {
	for name, form := range map[string]string{"stream": `{"stream":true,`, "in one piece": `{`} {
		t.Run(name, func(t *testing.T) {
			engines := newEngines(t, 3)
			s := newSite(t)
			s.load(s.caddyfileWith("inference {\ntime_scale 100\n}", "lb_policy cache_aware", addresses(engines)...))
			random := rand.New(rand.NewPCG(41, 41))
			// So short that no speed is learned from it: each is as good as another.
			body := func() string { return form + chatOf(message("user", letters(random, 400)))[1:] }
			for range 30 {
				s.chat(body())
			}

			stuck, proceed := engines[1], make(chan struct{})
			stuck.respondWith(func(w http.ResponseWriter, r *http.Request) {
				<-proceed
				answer(w, r)
			})
			statuses := make(chan int, 1000)
			sent := 0
			for ; stuck.openRequests() == 0; sent++ {
				request := newRequest(t, s.url+"/v1/chat/completions", strings.NewReader(body()))
				go func() {
					response, err := s.client.Do(request)
					if err != nil {
						statuses <- 0
						return
					}
					_, _ = io.Copy(io.Discard, response.Body)
					response.Body.Close()
					statuses <- response.StatusCode
				}()
				require.Eventually(t, func() bool { return len(statuses) == sent+1 || stuck.openRequests() > 0 }, patience, tick)
			}
			overdue := func() float64 { return value(t, "overdue_seconds", "upstream", stuck.address()) }
			require.Eventually(t, func() bool { return overdue() > 10 }, patience, tick)
			before := len(stuck.received())
			for range 20 {
				s.chat(body())
			}
			require.Len(t, stuck.received(), before)

			close(proceed)
			for range sent {
				require.Equal(t, http.StatusOK, <-statuses)
			}
			require.Eventually(t, func() bool { return overdue() == 0 }, patience, tick)
			for range 20 {
				s.chat(body())
			}
			require.Greater(t, len(stuck.received()), before, "it is as good as ever")
			requireIdle(t)
		})
	}
}

// TestThatAWorkerIsSilentIsToldOnce has requests wait for one, give up, and be answered at last.
func TestThatAWorkerIsSilentIsToldOnce(t *testing.T) {
	const (
		began = "warn: upstream takes requests and is silent; others are preferred to it"
		ended = "info: upstream is no longer silent"
	)
	inSuspicion(t, func(s *state, w *worker, _ *door, logs *observer.ObservedLogs) {
		wait := func() *fleet.Reservation {
			r := w.Place(100, s.clock.now())
			r.Expect(fleet.Streamed, r.Charged())
			return r
		}
		first := wait()
		pass(2 * time.Second)
		require.Empty(t, messages(logs), "it has time")
		pass(8 * time.Second)
		require.Equal(t, []string{began}, messages(logs))
		require.Equal(t, w.Address(), logs.All()[0].ContextMap()["upstream"])
		require.LessOrEqual(t, logs.All()[0].ContextMap()["overdue"], 2*time.Second)
		first.Release(s.clock.now())
		pass(10 * time.Minute)
		require.Zero(t, w.Overdue(s.clock.now()))
		second := wait()
		pass(time.Minute)
		require.Equal(t, []string{began}, messages(logs), "nothing was heard")

		second.FirstToken(s.clock.now())
		pass(time.Minute)
		require.Equal(t, []string{began, ended}, messages(logs))
		second.Release(s.clock.now())
		third := wait()
		pass(time.Minute)
		require.Equal(t, []string{began, ended, began}, messages(logs))
		third.Release(s.clock.now())
	})
}
