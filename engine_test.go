package inference

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/caddy-inference/caddy-inference/radix"
	"github.com/caddy-inference/caddy-inference/selection"
)

// fakeEngine is an engine's metrics page without a network.
type fakeEngine struct {
	began  time.Time
	answer func(n int) (status int, page string) // to the nth question; status 0: no answer

	mu    sync.Mutex
	asked []time.Duration
	agent string
}

func newFakeEngine(answer func(n int) (status int, page string)) *fakeEngine {
	return &fakeEngine{began: time.Now(), answer: answer}
}

func (e *fakeEngine) RoundTrip(r *http.Request) (*http.Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = append(e.asked, time.Since(e.began))
	e.agent = r.Header.Get("User-Agent")
	if r.URL.String() != "http://10.0.0.1:8000/metrics" || r.Method != http.MethodGet {
		return nil, fmt.Errorf("asked for %s", r.URL)
	}
	status, page := e.answer(len(e.asked))
	if status == 0 {
		return nil, errors.New("connection refused")
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(page)), Request: r}, nil
}

func (e *fakeEngine) transport() *reverseproxy.HTTPTransport {
	transport := new(http.Transport)
	transport.RegisterProtocol("http", e)
	return &reverseproxy.HTTPTransport{Transport: transport}
}

// worker joins the engine to the fleet.
func (e *fakeEngine) worker(s *state) *worker { return s.join("10.0.0.1:8000", e.transport()) }

// times returns when the engine was asked, in seconds.
func (e *fakeEngine) times() []float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := []float64{}
	for _, at := range e.asked {
		list = append(list, at.Seconds())
	}
	return list
}

// newApp returns an app as its defaults make it.
func newApp() *App {
	return &App{MaxBuffered: defaultMaxBuffered, TimeScale: defaultTimeScale, logger: zap.NewNop()}
}

// inBubble runs a state and its worker, and time as it is told to pass.
func inBubble(t *testing.T, answer func(n int) (int, string), test func(t *testing.T, s *state, w *worker, e *fakeEngine)) {
	synctest.Test(t, func(t *testing.T) {
		s, app := newState(), newApp()
		e := newFakeEngine(answer)
		s.start(app)
		w := e.worker(s)
		synctest.Wait()
		test(t, s, w, e)
		s.stop(app)
	})
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// started is a page of an engine that started then and has room for 1000 blocks.
func started(seconds int) string {
	return fmt.Sprintf("process_start_time_seconds %d\n", seconds) + cacheConfig(0, "16", "1000", "")
}

// fillWorker lets w be believed to hold something and known to be fast.
func fillWorker(t *testing.T, s *state, w *worker) {
	t.Helper()
	chunker := radix.NewChunker(s.seed)
	_, _ = chunker.WriteString(letters(rand.New(rand.NewPCG(1, 2)), 4096))
	s.tree.Insert(*w.prefix.Load(), chunker.Key(0))
	for range 8 {
		charged := time.Now()
		r := w.Place(5000, charged)
		r.FirstToken(charged.Add(time.Second))
		r.Learn(5000)
		r.Release(time.Now())
	}
	requireKnown(t, s, w)
	require.Positive(t, w.PrefillRate(time.Now()))
}

func requireKnown(t *testing.T, s *state, w *worker) {
	t.Helper()
	require.Equal(t, int64(4096), s.tree.Held(*w.prefix.Load()))
}

func requireForgotten(t *testing.T, s *state, w *worker) {
	t.Helper()
	require.Zero(t, s.tree.Held(*w.prefix.Load()))
	require.Zero(t, w.PrefillRate(time.Now()))
}

func TestAnEngineIsAskedOnce(t *testing.T) {
	inBubble(t, func(int) (int, string) { return http.StatusOK, started(5) }, func(t *testing.T, s *state, w *worker, e *fakeEngine) {
		pass(time.Hour)
		require.Equal(t, []float64{0}, e.times())
		require.Equal(t, "caddy-inference", e.agent)
		require.Equal(t, 16000, w.Capacity())
		require.Same(t, w, s.join("10.0.0.1:8000", e.transport()), "another config")
		pass(time.Hour)
		require.Len(t, e.times(), 1)
	})
}

func TestAnEngineThatDoesNotAnswerIsAskedLessAndLess(t *testing.T) {
	inBubble(t, func(n int) (int, string) {
		switch {
		case n == 3:
			return http.StatusServiceUnavailable, "loading the model"
		case n < 9:
			return 0, ""
		}
		return http.StatusOK, started(5)
	}, func(t *testing.T, _ *state, w *worker, e *fakeEngine) {
		pass(time.Hour)
		require.Equal(t, []float64{0, 1, 3, 7, 15, 31, 61, 91, 121}, e.times())
		require.Equal(t, 16000, w.Capacity())
	})
}

func TestAnEngineWithoutAMetricsPageIsNotAskedAgain(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusUnauthorized, http.StatusMovedPermanently, http.StatusNoContent} {
		inBubble(t, func(int) (int, string) { return status, "" }, func(t *testing.T, s *state, w *worker, e *fakeEngine) {
			fillWorker(t, s, w)
			pass(time.Hour)
			require.Equal(t, []float64{0}, e.times())
			require.Zero(t, w.Capacity())
			requireKnown(t, s, w)

			s.check(w)
			synctest.Wait()
			require.Len(t, e.times(), 2)
			requireKnown(t, s, w)
		})
	}
}

func TestAJunkPageIsNotAskedForAgain(t *testing.T) {
	for _, page := range []string{"", "<html>", "process_start_time_seconds five\n"} {
		inBubble(t, func(int) (int, string) { return http.StatusOK, page }, func(t *testing.T, s *state, w *worker, e *fakeEngine) {
			fillWorker(t, s, w)
			pass(time.Hour)
			require.Equal(t, []float64{0}, e.times())
			requireKnown(t, s, w)
		})
	}
}

func TestAnEngineThatFailedAndWasRestartedIsForgotten(t *testing.T) {
	inBubble(t, func(n int) (int, string) { return http.StatusOK, started(n) }, func(t *testing.T, s *state, w *worker, e *fakeEngine) {
		fillWorker(t, s, w)
		pass(time.Minute)
		s.checkFailed(w)
		synctest.Wait()
		require.Equal(t, []float64{0, 60}, e.times())
		requireForgotten(t, s, w)
		require.Equal(t, 16000, w.Capacity())
	})
}

func TestAnEngineThatFailedAndWasNotRestartedIsNotForgotten(t *testing.T) {
	inBubble(t, func(int) (int, string) { return http.StatusOK, started(5) }, func(t *testing.T, s *state, w *worker, e *fakeEngine) {
		fillWorker(t, s, w)
		pass(time.Minute)
		s.checkFailed(w)
		pass(time.Minute)
		s.checkFailed(w)
		pass(time.Minute)
		require.Equal(t, []float64{0, 60, 120}, e.times())
		requireKnown(t, s, w)
	})
}

func TestACheckedEngineIsForgottenOnlyIfItWasRestarted(t *testing.T) {
	inBubble(t, func(n int) (int, string) { return http.StatusOK, started(1 + n/3) }, func(t *testing.T, s *state, w *worker, e *fakeEngine) {
		fillWorker(t, s, w)
		pass(time.Minute)
		s.check(w)
		synctest.Wait()
		require.Len(t, e.times(), 2)
		requireKnown(t, s, w)
		pass(time.Minute)
		s.check(w)
		synctest.Wait()
		require.Len(t, e.times(), 3)
		requireForgotten(t, s, w)
	})
}

func TestAnEngineThatFailedAndDoesNotTellItsStartIsForgotten(t *testing.T) {
	for status, page := range map[int]string{http.StatusOK: cacheConfig(0, "16", "1000", ""), http.StatusNotFound: ""} {
		inBubble(t, func(int) (int, string) { return status, page }, func(t *testing.T, s *state, w *worker, _ *fakeEngine) {
			fillWorker(t, s, w)
			pass(time.Minute)
			s.checkFailed(w)
			synctest.Wait()
			requireForgotten(t, s, w)
		})
	}
}

func TestAFailureIsRememberedWhileAnEngineIsDown(t *testing.T) {
	inBubble(t, func(n int) (int, string) {
		if n > 1 && n < 5 {
			return 0, ""
		}
		return http.StatusOK, cacheConfig(0, "16", "1000", "")
	}, func(t *testing.T, s *state, w *worker, e *fakeEngine) {
		fillWorker(t, s, w)
		pass(time.Minute)
		s.checkFailed(w)
		pass(6 * time.Second)
		requireKnown(t, s, w)
		pass(time.Second)
		require.Equal(t, []float64{0, 60, 61, 63, 67}, e.times())
		requireForgotten(t, s, w)
	})
}

func TestAnEngineThatNoLongerTellsItsStartIsNotForgotten(t *testing.T) {
	answer := func(n int) (int, string) {
		if n == 1 {
			return http.StatusOK, started(5)
		}
		return http.StatusNotFound, ""
	}
	inBubble(t, answer, func(t *testing.T, s *state, w *worker, e *fakeEngine) {
		pass(time.Minute)
		fillWorker(t, s, w)
		s.check(w)
		pass(time.Minute)
		require.Len(t, e.times(), 2)
		requireKnown(t, s, w)
	})
}

func TestAFailingEngineIsAskedOnceASecond(t *testing.T) {
	inBubble(t, func(int) (int, string) { return http.StatusOK, started(5) }, func(t *testing.T, s *state, w *worker, e *fakeEngine) {
		for range 500 {
			s.checkFailed(w)
			s.check(w)
			pass(10 * time.Millisecond)
		}
		pass(time.Minute)
		require.Equal(t, []float64{0, 1, 2, 3, 4, 5}, e.times())
		require.False(t, w.engine.asking.Load())
	})
}

func TestAFailureWhileTheAnswerIsOnItsWayIsAskedAbout(t *testing.T) {
	var s *state
	var w *worker
	inBubble(t, func(n int) (int, string) {
		if n == 2 { // it answers, then it is restarted, then a request fails
			w.engine.failed.Store(true)
			w.engine.wanted.Store(true)
			return http.StatusOK, started(1)
		}
		return http.StatusOK, started(n)
	}, func(t *testing.T, bubble *state, member *worker, e *fakeEngine) {
		s, w = bubble, member
		fillWorker(t, s, w)
		pass(time.Minute)
		s.check(w)
		synctest.Wait()
		requireKnown(t, s, w)
		pass(time.Second)
		require.Equal(t, []float64{0, 60, 61}, e.times())
		requireForgotten(t, s, w)
	})
}

func TestAskingEndsWithTheWorker(t *testing.T) {
	inBubble(t, func(int) (int, string) { return 0, "" }, func(t *testing.T, s *state, w *worker, e *fakeEngine) {
		pass(2 * time.Second)
		require.Equal(t, []float64{0, 1}, e.times())
		s.leave(w, w.transport.Load())
		synctest.Wait()
		require.False(t, w.engine.asking.Load())
		s.checkFailed(w)
		s.check(w)
		pass(time.Hour)
		require.Len(t, e.times(), 2)
	})
}

func TestAskingEndsWithTheAppAndGoesOnWithTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newState()
		e := newFakeEngine(func(n int) (int, string) {
			if n < 4 {
				return 0, ""
			}
			return http.StatusOK, cacheConfig(0, "16", "1000", "")
		})
		w := e.worker(s)
		pass(time.Hour)
		require.Empty(t, e.times(), "no app runs")
		fillWorker(t, s, w)
		e.began = time.Now()
		old, app := newApp(), newApp()
		s.start(old)
		s.start(app) // the next config, before the old one stops
		s.stop(old)
		pass(2 * time.Second)
		s.checkFailed(w)
		pass(2 * time.Second)
		require.Equal(t, []float64{0, 1, 3}, e.times())
		s.stop(app) // waits for whoever asks
		require.False(t, w.engine.asking.Load())
		pass(time.Hour)
		require.Len(t, e.times(), 3)
		s.checkFailed(w)
		pass(time.Hour)
		require.Len(t, e.times(), 3)
		requireKnown(t, s, w)

		s.start(app)
		synctest.Wait()
		require.Len(t, e.times(), 4)
		requireForgotten(t, s, w)
		s.stop(app)
	})
}

func TestAWorkerThatIsNoLongerReachedByHTTPIsNotAsked(t *testing.T) {
	inBubble(t, func(int) (int, string) { return 0, "" }, func(t *testing.T, s *state, w *worker, e *fakeEngine) {
		fillWorker(t, s, w)
		s.checkFailed(w)
		s.join("10.0.0.1:8000", nil)
		pass(time.Hour)
		require.Equal(t, []float64{0}, e.times())
		require.False(t, w.engine.asking.Load())
		require.True(t, w.engine.failed.Load(), "the failure is forgotten")
		requireKnown(t, s, w)

		_, err := askEngine(t.Context(), w)
		require.ErrorIs(t, err, errNotHTTP)
	})
}

// hanging answers never.
type hanging struct{}

func (hanging) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}

func TestAnEngineThatHangsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := new(http.Transport)
		transport.RegisterProtocol("http", hanging{})
		w := newState().join("10.0.0.1:8000", &reverseproxy.HTTPTransport{Transport: transport})
		began := time.Now()
		_, err := askEngine(t.Context(), w)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, askTimeout, time.Since(began))
	})
}

func TestWhatAWorkerIsBelievedToHoldEndsWithItsCache(t *testing.T) {
	inBubble(t, func(int) (int, string) { return http.StatusOK, cacheConfig(0, "16", "32", "") }, func(t *testing.T, s *state, w *worker, _ *fakeEngine) {
		require.Equal(t, 512, w.Capacity())
		random := rand.New(rand.NewPCG(7, 7))
		for range 10 {
			chunker := radix.NewChunker(s.seed)
			_, _ = chunker.WriteString(letters(random, 1024))
			s.tree.Insert(*w.prefix.Load(), chunker.Key(0))
		}
		pass(time.Minute)
		require.LessOrEqual(t, s.tree.Held(*w.prefix.Load()), int64(512*4))
		require.Positive(t, s.tree.Held(*w.prefix.Load()))
	})
}

// TestAnEngineThatIsHealthyAgainIsAskedAtOnce has Caddy's health checks tell, and requests
// that were not served there, which tell nothing of its health.
func TestAnEngineThatIsHealthyAgainIsAskedAtOnce(t *testing.T) {
	inBubble(t, func(n int) (int, string) {
		if n > 1 && n < 9 {
			return 0, ""
		}
		return http.StatusOK, started(n)
	}, func(t *testing.T, s *state, w *worker, e *fakeEngine) {
		fillWorker(t, s, w)
		pass(time.Minute)
		s.seen(w, selection.Unhealthy)
		pass(70 * time.Second)
		require.Equal(t, []float64{0, 60, 61, 63, 67, 75, 91, 121}, e.times())
		s.seen(w, selection.Tried)
		s.seen(w, selection.Unwanted)
		s.seen(w, selection.Unhealthy)
		pass(time.Second)
		require.Len(t, e.times(), 8)
		s.seen(w, selection.Available)
		synctest.Wait()
		require.Equal(t, 131.0, e.times()[8])
		requireForgotten(t, s, w)
	})
}
