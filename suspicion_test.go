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
	beganToSuspect = "warn: upstream does not serve; requests stay away from it until it can be connected to"
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

// TestAWorkerThatBreaksOffIsSuspectedTheSecondTime has it listen all the while, as what
// stands in front of an engine that is gone: to be let in is not enough.
func TestAWorkerThatBreaksOffIsSuspectedTheSecondTime(t *testing.T) {
	inSuspicion(t, func(s *state, w *worker, d *door, _ *observer.ObservedLogs) {
		d.is(slammed)
		s.brokeOff(w, io.EOF)
		s.served(w, time.Now())
		s.brokeOff(w, io.EOF)
		require.False(t, w.suspected(), "it has answered in between")
		s.brokeOff(w, io.EOF)
		pass(time.Minute)
		require.True(t, w.suspected())
		d.is(open)
		pass(time.Second + 2*listensFor)
		require.False(t, w.suspected())
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
