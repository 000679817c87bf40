package inference

import (
	"math"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/radix"
)

func TestTheClockTellsTheMachinesTimeUnlessItIsScaled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock()
		c.setScale(1)
		pass(time.Hour)
		require.Equal(t, time.Now(), c.now())
		require.Equal(t, time.Minute, c.real(time.Minute))
	})
}

func TestTheClockPassesAsItsScaleSaysAndDoesNotJump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock()
		began := c.now()
		told := time.Duration(0)
		for _, scale := range []float64{20, 1, 0.01, 1000, 3, 1.5} {
			c.setScale(scale)
			require.Equal(t, told, c.now().Sub(began), "it jumps")
			pass(700 * time.Millisecond)
			c.setScale(scale) // as a reload does that leaves it as it is
			pass(300 * time.Millisecond)
			told += time.Duration(scale * float64(time.Second))
			require.Equal(t, told, c.now().Sub(began), "scale %v", scale)
			require.Equal(t, told, time.Duration(c.now().UnixNano()-began.UnixNano()), "scale %v", scale)
		}
	})
}

func TestAWaitOnTheClockIsNotTooShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock()
		for _, scale := range []float64{0.01, 0.3, 1, 3, 7, 20, 9999} {
			c.setScale(scale)
			for _, d := range []time.Duration{time.Millisecond, time.Second, 2 * time.Minute, 24 * time.Hour} {
				before := c.now()
				pass(c.real(d))
				require.InDelta(t, d, c.now().Sub(before), math.Ceil(scale)+1, "%s at scale %v", d, scale)
				require.GreaterOrEqual(t, c.now().Sub(before), d, "%s at scale %v", d, scale)
			}
			require.Positive(t, c.real(math.MaxInt64), "scale %v", scale)
		}
	})
}

// TestTheClockNeverGoesBack has it read by two while its scale changes.
func TestTheClockNeverGoesBack(t *testing.T) {
	c := newClock()
	var latest atomic.Int64
	var reading atomic.Int32
	reading.Store(2)
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			defer reading.Add(-1)
			for range 50_000 {
				before := latest.Load()
				now := c.now().UnixNano()
				if now < before {
					t.Errorf("it went back by %d ns", before-now)
					return
				}
				for before < now && !latest.CompareAndSwap(before, now) {
					before = latest.Load()
				}
			}
		})
	}
	for i := 0; reading.Load() > 0; i++ {
		c.setScale([]float64{1000, 0.01, 1, 20}[i%4])
		runtime.Gosched()
	}
	readers.Wait()
}

func TestReadingTheClockAllocatesNothing(t *testing.T) {
	c := newClock()
	for _, scale := range []float64{1, 20} {
		c.setScale(scale)
		requireNoAllocations(t, 100, func() { c.now() })
	}
}

// scaled runs a state, and an engine that is down, in time that passes twenty times
// faster.
func scaled(t *testing.T, test func(t *testing.T, s *state, e *fakeEngine)) {
	synctest.Test(t, func(t *testing.T) {
		s, app := newState(), newApp()
		app.TimeScale = 20
		s.start(app)
		defer s.stop(app)
		test(t, s, newFakeEngine(func(int) (int, string) { return 0, "" }))
	})
}

func TestAnEngineIsAskedAgainInScaledTime(t *testing.T) {
	scaled(t, func(t *testing.T, s *state, e *fakeEngine) {
		e.worker(s)
		pass(time.Minute / 20)
		require.Equal(t, []float64{0, 0.05, 0.15, 0.35, 0.75, 1.55}, e.times())
	})
}

func TestAnAbsentUpstreamIsKeptInScaledTime(t *testing.T) {
	scaled(t, func(t *testing.T, s *state, _ *fakeEngine) {
		rt := &router{state: s, joined: make(map[string]*joined)}
		rt.current.Store(new(membership))
		both := reverseproxy.UpstreamPool{{Dial: "10.0.0.1:8000"}, {Dial: "10.0.0.2:8000"}}
		rt.members(both)
		rt.members(both[:1])
		pass(absentGrace/20 - time.Millisecond)
		require.Len(t, s.members(), 2)
		pass(time.Millisecond)
		require.Len(t, s.members(), 1)
		require.NoError(t, rt.close())
	})
}

// TestTheTreeIsGoneOverInScaledTime fills the tree so far that nothing but a round
// of eviction makes room.
func TestTheTreeIsGoneOverInScaledTime(t *testing.T) {
	scaled(t, func(t *testing.T, s *state, e *fakeEngine) {
		const limit = 1 << 20
		s.tree.SetMaxBytes(limit)
		synctest.Wait()
		w := e.worker(s)
		for i := uint64(1); s.tree.Stats().Bytes <= limit-limit/40; i++ {
			s.tree.Insert(*w.prefix.Load(), radix.Key{Space: i, Chunks: []uint64{i}})
		}
		pass(defaultEvictionInterval/20 - time.Millisecond)
		require.Zero(t, s.tree.Stats().Evicted)
		pass(time.Millisecond)
		require.Positive(t, s.tree.Stats().Evicted)
	})
}

func TestWhatIsKeptByTheClockFadesInScaledTime(t *testing.T) {
	scaled(t, func(t *testing.T, s *state, e *fakeEngine) {
		w := e.worker(s)
		request := &ticket{state: s, worker: w}
		request.reservation.Store(w.Place(8000, s.clock.now()))
		pass(100 * time.Millisecond)
		request.firstToken(s.clock.now())
		require.Equal(t, 2*time.Second, request.decision.firstToken, "what is told is simulated too")
		pass(time.Minute / 20)
		require.InDelta(t, 4000, w.Recent(s.clock.now()), 100)
		request.release()
		require.Zero(t, w.Load().InFlight())
	})
}

// TestTheScaleIsTheNewestConfigs reloads with another scale and without one.
func TestTheScaleIsTheNewestConfigs(t *testing.T) {
	engine := newEngine(t)
	s := startSite(t, "lb_policy cache_aware", engine.address())
	c := theState(t).clock
	scale := func() float64 { return c.pace.Load().scale }
	require.Equal(t, 1.0, scale())
	before := c.now()
	s.load(s.caddyfileWith("inference {\ntime_scale 1000\n}", "lb_policy cache_aware", engine.address()))
	require.Same(t, c, theState(t).clock)
	require.Equal(t, 1000.0, scale())

	engine.respondWith(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(5 * time.Millisecond)
		answer(w, r)
	})
	s.chat(`{"stream":true,` + chatOf(message("user", "hello"))[1:])
	require.GreaterOrEqual(t, s.lastDecision(1)["first_token"], 5.0)

	s.load(s.caddyfile("lb_policy cache_aware", engine.address()))
	require.Equal(t, 1.0, scale())
	require.Greater(t, c.now().Sub(before), 5*time.Second, "it does not go back")
}
