package inference

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-inference/caddy-inference/selection"
)

// door is where a worker is connected to, without a network.
type door struct {
	began time.Time

	mu     sync.Mutex
	answer func() (net.Conn, error) // to somebody who connects
	tried  []float64                // when somebody did, in seconds
}

func (d *door) dial(context.Context, string, string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tried = append(d.tried, time.Since(d.began).Seconds())
	return d.answer()
}

func (d *door) is(answer func() (net.Conn, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = answer
}

func (d *door) times() []float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]float64{}, d.tried...)
}

func shut() (net.Conn, error) {
	return nil, reverseproxy.NewDialError(errors.New("connection refused"))
}

// open lets in; nothing comes on the connection until it is closed.
func open() (net.Conn, error) { return &quiet{closed: make(chan struct{}), err: net.ErrClosed}, nil }

// slammed lets in and hangs up.
func slammed() (net.Conn, error) {
	c := &quiet{closed: make(chan struct{}), err: io.EOF}
	return c, c.Close()
}

// quiet is a connection on which nothing comes.
type quiet struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
	err    error // that Read ends with
}

func (c *quiet) Read([]byte) (int, error) {
	<-c.closed
	return 0, c.err
}

func (c *quiet) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

var errRefused = errors.New("connection refused")

// inSuspicion runs a state with a worker whose door is shut, and notes what is logged.
func inSuspicion(t *testing.T, test func(s *state, w *worker, d *door, logs *observer.ObservedLogs)) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.InfoLevel)
		s, app := newState(), newApp()
		app.logger = zap.New(core)
		s.start(app)
		d := &door{began: time.Now(), answer: shut}
		w := s.join("10.0.0.1:8000", reachedThrough(d))
		synctest.Wait()
		test(s, w, d, logs)
		s.stop(app)
		require.False(t, w.suspected(), "nobody looks into it any more")
	})
}

// reachedThrough returns a transport to an engine without a metrics page.
func reachedThrough(d *door) *reverseproxy.HTTPTransport {
	transport := newFakeEngine(func(int) (int, string) { return http.StatusNotFound, "" }).transport()
	transport.Transport.DialContext = d.dial
	return transport
}

// messages returns what was logged of suspicions.
func messages(logs *observer.ObservedLogs) (list []string) {
	for _, entry := range logs.All() {
		list = append(list, entry.Level.String()+": "+entry.Message)
	}
	return list
}

const (
	beganToSuspect = "warn: upstream does not serve; requests stay away from it"
	servesAgain    = "info: upstream serves again"
)

func TestASuspectedWorkerIsConnectedToUntilThatSucceeds(t *testing.T) {
	inSuspicion(t, func(s *state, w *worker, d *door, logs *observer.ObservedLogs) {
		require.False(t, w.suspected())
		for range 10 {
			s.suspect(w, notConnected, errRefused)
		}
		pass(10 * time.Second)
		require.True(t, w.suspected())
		require.Equal(t, []float64{0.25, 0.75, 1.75, 2.75, 3.75, 4.75, 5.75, 6.75, 7.75, 8.75, 9.75}, d.times())
		require.Equal(t, []string{beganToSuspect}, messages(logs), "it is told once")
		require.Equal(t, map[string]any{
			"upstream": "10.0.0.1:8000", "cause": "not_connected", "error": "connection refused",
			"hint": "see whether the engine runs and listens at this address; once it does, it is in use within a second",
		}, logs.All()[0].ContextMap())

		d.is(open)
		pass(time.Second)
		require.False(t, w.suspected())
		pass(time.Hour)
		require.Len(t, d.times(), 12)
		require.Equal(t, []string{beganToSuspect, servesAgain}, messages(logs))
	})
}

func TestAnAnswerEndsASuspicion(t *testing.T) {
	inSuspicion(t, func(s *state, w *worker, d *door, logs *observer.ObservedLogs) {
		placed := time.Now()
		pass(time.Second)
		s.suspect(w, died, errRefused)
		pass(time.Second)
		s.served(w, placed)
		require.True(t, w.suspected(), "it only goes on with what it had begun")
		s.served(w, time.Now())
		require.False(t, w.suspected())
		pass(time.Hour)
		require.Equal(t, []float64{1.25, 1.75}, d.times())
		require.Equal(t, []string{beganToSuspect, servesAgain}, messages(logs))

		s.suspect(w, died, errRefused) // and another begins anew
		pass(time.Second)
		require.Len(t, d.times(), 4)
	})
}

// TestAWorkerThatServesAgainIsTakenForANewOne has it be slow before: it may be another process.
func TestAWorkerThatServesAgainIsTakenForANewOne(t *testing.T) {
	inSuspicion(t, func(s *state, w *worker, d *door, _ *observer.ObservedLogs) {
		for range 10 {
			r := w.Place(1000, s.clock.now())
			pass(time.Second)
			r.FirstToken(s.clock.now())
			r.Learn(1000)
			r.Release(s.clock.now())
		}
		require.Positive(t, w.PrefillRate(s.clock.now()))
		d.is(open)
		s.suspect(w, died, errRefused)
		pass(time.Second)
		require.False(t, w.suspected())
		require.Zero(t, w.PrefillRate(s.clock.now()))
	})
}

func TestASuspicionEndsWithTheWorker(t *testing.T) {
	inSuspicion(t, func(s *state, w *worker, d *door, logs *observer.ObservedLogs) {
		s.suspect(w, notConnected, errRefused)
		pass(time.Second)
		s.leave(w, w.transport.Load())
		pass(time.Hour)
		require.Equal(t, []float64{0.25, 0.75}, d.times())
		require.False(t, w.suspected())
		require.Equal(t, []string{beganToSuspect}, messages(logs))
		s.suspect(w, notConnected, errRefused) // by an old request
		require.False(t, w.suspected())
	})
}

func TestASuspicionOutlivesAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, before, after := newState(), newApp(), newApp()
		s.start(before)
		d := &door{began: time.Now(), answer: shut}
		w := s.join("10.0.0.1:8000", reachedThrough(d))
		s.suspect(w, notConnected, errRefused)
		pass(time.Second)
		s.start(after)
		s.stop(before)
		require.True(t, w.suspected())
		d.is(open)
		pass(time.Second)
		require.False(t, w.suspected())
		s.stop(after)
		s.suspect(w, notConnected, errRefused)
		require.False(t, w.suspected(), "no config runs that would look into it")
	})
}

// TestAWorkerThatBreaksOffIsSuspectedTheSecondTime has it hang up on whoever connects: to be
// let in is not enough.
func TestAWorkerThatBreaksOffIsSuspectedTheSecondTime(t *testing.T) {
	inSuspicion(t, func(s *state, w *worker, d *door, _ *observer.ObservedLogs) {
		d.is(slammed)
		s.brokeOff(w, io.EOF)
		s.served(w, time.Now())
		s.brokeOff(w, io.EOF)
		require.False(t, w.suspected(), "it has answered in between")
		s.brokeOff(w, io.EOF)
		pass(time.Minute)
		require.True(t, w.avoided())
		d.is(open)
		pass(trialLast + 2*listensFor)
		require.False(t, w.avoided())
	})
}

// TestAWorkerThatBreaksOffIsTriedSeldom has it listen all the while, as what stands in front
// of an engine that is gone, and requests that come all the time.
func TestAWorkerThatBreaksOffIsTriedSeldom(t *testing.T) {
	inSuspicion(t, func(s *state, w *worker, d *door, logs *observer.ObservedLogs) {
		d.is(open)
		for range enoughBreaks {
			s.brokeOff(w, io.EOF)
		}
		began, lost := time.Now(), 0
		for time.Since(began) < 20*time.Second {
			pass(10 * time.Millisecond)
			if !w.avoided() {
				lost++
				w.placed()
				require.True(t, w.avoided(), "one request is the trial")
				s.brokeOff(w, io.EOF)
			}
		}
		require.Equal(t, 11, lost, "after 0.25, 0.5, 1, and then every 2 seconds")
		require.Equal(t, []string{beganToSuspect}, messages(logs), "it is told once")
		require.Contains(t, logs.All()[0].ContextMap()["hint"], "every two seconds at most")

		pass(3 * time.Second)
		require.False(t, w.avoided())
		w.placed()
		s.served(w, time.Now())
		require.False(t, w.suspected())
		pass(time.Hour)
		require.Equal(t, []string{beganToSuspect, servesAgain}, messages(logs))
	})
}

// TestOneThatBreaksOffIsInUseAgainWithItsFirstAnswer has one of two engines break off for a
// while. It is counted, not timed: a trial may come later than it could, but not sooner.
func TestOneThatBreaksOffIsInUseAgainWithItsFirstAnswer(t *testing.T) {
	engines := newEngines(t, 2)
	engines[0].respondWith(hangUp)
	s := startSite(t, "lb_policy cache_aware", addresses(engines)...)
	random := rand.New(rand.NewPCG(43, 43))
	chat := func() (status int) {
		status, _ = s.post("/v1/chat/completions", chatOf(message("user", letters(random, 300))))
		return status
	}
	suspected := func() float64 { return value(t, "suspected", "upstream", engines[0].address()) }
	lost := 0
	for ; suspected() == 0; lost++ {
		require.Eventually(t, func() bool { return chat() == http.StatusBadGateway }, patience, tick)
	}
	require.Equal(t, enoughBreaks, lost)
	began := time.Now()
	require.Eventually(t, func() bool { return chat() == http.StatusBadGateway }, patience, tick, "there is no trial")
	require.GreaterOrEqual(t, time.Since(began), probeFirst)
	require.Equal(t, 1.0, suspected())

	engines[0].respondWith(nil)
	require.Eventually(t, func() bool { return chat() == http.StatusOK && suspected() == 0 }, patience, tick)
	require.Equal(t, 1.0, value(t, "suspicions_total", "upstream", engines[0].address()))
	requireIdle(t)
}

// TestAnEngineThatServesAgainIsAskedAtOnce has it be gone for so long that it would be asked
// half a minute later, and answer only the second question then.
func TestAnEngineThatServesAgainIsAskedAtOnce(t *testing.T) {
	var gone atomic.Bool
	var since atomic.Int32 // questions since it is back
	since.Store(-1)
	inBubble(t, func(int) (int, string) {
		switch {
		case gone.Load():
			return 0, ""
		case since.Load() < 0:
			return http.StatusOK, started(1)
		case since.Add(1) == 1:
			return http.StatusServiceUnavailable, "loading"
		}
		return http.StatusOK, started(2)
	}, func(t *testing.T, s *state, w *worker, e *fakeEngine) {
		d := &door{began: time.Now(), answer: shut}
		w.transport.Load().Transport.DialContext = d.dial
		fillWorker(t, s, w)
		pass(time.Minute)
		gone.Store(true)
		s.suspect(w, died, errRefused)
		s.checkFailed(w)
		pass(70 * time.Second)
		require.Equal(t, []float64{60, 61, 63, 67, 75, 91, 121}, e.times()[1:])
		requireKnown(t, s, w)

		since.Store(0)
		gone.Store(false)
		d.is(open)
		pass(probeLast + 2*listensFor)
		require.False(t, w.suspected())
		require.Len(t, e.times(), 9)
		pass(askFirst)
		require.Len(t, e.times(), 10, "it begins anew")
		requireForgotten(t, s, w)
	})
}

// TestWorkersThatCannotBeLookedIntoAreNotSuspected has addresses that stand for several,
// and a forward proxy, which is what cannot be connected to.
func TestWorkersThatCannotBeLookedIntoAreNotSuspected(t *testing.T) {
	for name, test := range map[string]struct {
		address string
		proxy   string
		want    bool
	}{
		"host and port": {"10.0.0.1:8000", "", true},
		"Unix socket":   {"unix//run/engine.sock", "", true},
		"placeholder":   {"{http.request.header.X-Engine}:8000", "", false},
		"proxy":         {"10.0.0.1:8000", "http://10.0.0.9:3128", false},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, app := newState(), newApp()
			s.start(app)
			transport := reachedThrough(&door{answer: shut})
			if test.proxy != "" {
				transport.Transport.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse(test.proxy) }
			}
			w := s.join(test.address, transport)
			s.suspect(w, notConnected, errRefused)
			require.Equal(t, test.want, w.suspected(), name)
			s.stop(app)
		})
	}
}

func TestSuspicionsAreCounted(t *testing.T) {
	inSuspicion(t, func(s *state, w *worker, _ *door, _ *observer.ObservedLogs) {
		count := func(why blame) float64 {
			return testutil.ToFloat64(s.metrics.suspicions.WithLabelValues(w.Address(), string(why)))
		}
		for _, why := range []blame{notConnected, died, died} {
			require.Zero(t, w.suspicions())
			s.suspect(w, why, errRefused)
			require.Equal(t, 1, w.suspicions())
			pass(time.Millisecond)
			s.served(w, time.Now())
		}
		require.Equal(t, 1.0, count(notConnected))
		require.Equal(t, 2.0, count(died))
		require.Zero(t, count(breaksOff))
	})
}

// TestIfAllAreSuspectedAllAreAvailable looks at candidates of every standing.
func TestIfAllAreSuspectedAllAreAvailable(t *testing.T) {
	const (
		available = selection.Available
		suspected = selection.Suspected
		tried     = selection.Tried
		unhealthy = selection.Unhealthy
	)
	for _, test := range []struct{ before, after []selection.Standing }{
		{[]selection.Standing{suspected, available}, []selection.Standing{suspected, available}},
		{[]selection.Standing{suspected, suspected}, []selection.Standing{available, available}},
		{[]selection.Standing{tried, suspected, unhealthy}, []selection.Standing{tried, available, unhealthy}},
		{[]selection.Standing{tried, unhealthy}, []selection.Standing{tried, unhealthy}},
		{nil, nil},
	} {
		var candidates []selection.Candidate
		for _, standing := range test.before {
			candidates = append(candidates, selection.Candidate{Standing: standing})
		}
		pardon(candidates)
		var after []selection.Standing
		for _, c := range candidates {
			after = append(after, c.Standing)
		}
		require.Equal(t, test.after, after)
	}
}

// TestTheFirstRequestThatFindsAWorkerGoneIsTheLast has one of three engines down, and then
// come back: nobody is told of either.
func TestTheFirstRequestThatFindsAWorkerGoneIsTheLast(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			address := freeAddress(t)
			upstream := address
			if network == "unix" {
				address = filepath.Join(t.TempDir(), "engine")
				upstream = "unix/" + address
			}
			engines := newEngines(t, 2)
			s := startSite(t, "lb_policy cache_aware", append(addresses(engines), upstream)...)
			random := rand.New(rand.NewPCG(31, 31))
			for range 40 {
				s.chat(chatOf(message("user", letters(random, 2000))))
			}
			require.Equal(t, 1.0, value(t, "suspicions_total", "upstream", upstream, "cause", "not_connected"))
			require.Equal(t, 1.0, value(t, "suspected", "upstream", upstream))
			require.Equal(t, 1.0, placedOn(t, upstream))

			listener, err := net.Listen(network, address)
			require.NoError(t, err)
			server := &http.Server{Handler: http.HandlerFunc(answer)}
			go func() { _ = server.Serve(listener) }()
			defer server.Close()
			require.Eventually(t, func() bool { return value(t, "suspected", "upstream", upstream) == 0 }, patience, tick)
			for range 10 {
				s.chat(chatOf(message("user", letters(random, 2000))))
			}
			require.Greater(t, placedOn(t, upstream), 1.0)
			requireIdle(t)
		})
	}
}

// placedOn returns how many times an upstream was chosen.
func placedOn(t *testing.T, upstream string) float64 {
	t.Helper()
	return value(t, "decisions_total", "upstream", upstream)
}

// TestARequestIsTriedIfAllAreSuspected has nobody listen: a request is not refused
// before it was tried.
func TestARequestIsTriedIfAllAreSuspected(t *testing.T) {
	list := []string{freeAddress(t), freeAddress(t)}
	s := startSite(t, "lb_policy cache_aware", list...)
	for i := range 5 {
		status, _ := s.post("/v1/chat/completions", chatOf(message("user", "hello")))
		require.NotEqual(t, http.StatusOK, status)
		require.Equal(t, 2.0, s.lastDecision(i + 1)["attempts"])
	}
	require.Equal(t, 5.0, placedOn(t, list[0]))
	require.Equal(t, 5.0, placedOn(t, list[1]))
}

func TestAWorkerThatRefusesRequestsIsNotSuspected(t *testing.T) {
	for _, status := range []int{http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable} {
		engine := newEngine(t)
		engine.respondWith(refuse(status))
		s := startSite(t, "lb_policy cache_aware", engine.address())
		for range 5 {
			got, _ := s.post("/v1/chat/completions", chatOf(message("user", "hello")))
			require.Equal(t, status, got)
		}
		require.Zero(t, value(t, "suspected", "upstream", engine.address()))
	}
}
