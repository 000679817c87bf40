package inference

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/enginesim"
)

// outcome is what a client got.
type outcome struct {
	id, upstream string
	status       int
	whole        bool
	err          error
}

// traffic is clients that stream answers, one request after another and all at once.
type traffic struct {
	s       *site
	round   int
	clients sync.WaitGroup
	begun   atomic.Int64 // requests
	ended   atomic.Int64

	mu       sync.Mutex
	outcomes []outcome
}

// ask sends one request and notes what came of it.
func (f *traffic) ask(id, body string) {
	f.clients.Go(func() {
		f.begun.Add(1)
		defer f.ended.Add(1)
		o := outcome{id: id}
		defer func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.outcomes = append(f.outcomes, o)
		}()
		request := newRequest(f.s.t, f.s.url+"/v1/chat/completions", strings.NewReader(body))
		request.Header.Set("X-Request-Id", id)
		response, err := f.s.client.Transport.(patient).Transport.RoundTrip(request)
		if err != nil {
			o.err = err
			return
		}
		defer response.Body.Close()
		o.status, o.upstream = response.StatusCode, response.Header.Get("X-Upstream")
		text, err := io.ReadAll(response.Body)
		o.err = err
		o.whole = strings.HasSuffix(string(text), "data: [DONE]\n\n")
	})
}

// flow sends requests until stop is called, which waits for their answers.
func (f *traffic) flow() (stop func()) {
	stopped := make(chan struct{})
	f.clients.Go(func() {
		random := rand.New(rand.NewPCG(uint64(f.round), 17))
		system := letters(random, 2000)
		for i := 0; ; i++ {
			select {
			case <-stopped:
				return
			case <-time.After(8 * time.Millisecond):
			}
			if f.begun.Load()-f.ended.Load() > 40 {
				continue
			}
			f.ask(fmt.Sprintf("%d-%d", f.round, i), `{"stream":true,"max_tokens":8,`+
				chatOf(message("system", system) + "," + message("user", letters(random, 2500)))[1:])
		}
	})
	return func() {
		close(stopped)
		f.clients.Wait()
	}
}

// answers waits for so many more.
func (f *traffic) answers(n int64) {
	f.s.t.Helper()
	enough := f.ended.Load() + n
	require.Eventually(f.s.t, func() bool { return f.ended.Load() >= enough }, patience, tick)
}

// fault is what happens to one of four engines while clients stream answers.
type fault struct {
	name         string
	strike, heal func(*mortal)
	sudden       bool // streams that have begun break off
	brief        bool // it is healed as soon as nothing is left of what it did
	hangs        bool // it is healed when it was found to, and not before
	lost         int  // requests that the client may have to send again
}

var faults = []fault{
	{name: "kill", strike: (*mortal).kill, heal: (*mortal).listen, sudden: true},
	{name: "restart", strike: (*mortal).kill, heal: (*mortal).listen, sudden: true, brief: true},
	{name: "refused", strike: (*mortal).deafen, heal: (*mortal).listen},
	{name: "reset", strike: (*mortal).reset, heal: func(m *mortal) { m.deafen(); m.listen() }, sudden: true, lost: 60},
	{name: "freeze", strike: (*mortal).freeze, heal: (*mortal).thaw, hangs: true},
}

// scale is how many times faster than in life the engines of these tests are.
const scale = 4

// TestAFaultOfOneEngineIsNoFaultToClients does to engines what is done to processes, while
// clients stream answers through a router of which nothing is configured but its policy. A
// stream that has begun may break off, and what may be running is not sent again; nothing
// else fails. What hangs draws nothing more, and what is back is in use again.
func TestAFaultOfOneEngineIsNoFaultToClients(t *testing.T) {
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			options := enginesim.DefaultOptions()
			options.Models, options.Speed = []string{"m1"}, scale
			engines := make([]*mortal, 4)
			var list []string
			for i := range engines {
				engines[i] = newMortal(t, options)
				list = append(list, engines[i].address)
			}
			s := newSite(t)
			s.load(s.caddyfileWith(fmt.Sprintf("inference {\ntime_scale %d\n}", scale),
				"lb_policy cache_aware\nheader_down X-Upstream {http.inference.upstream}", list...))
			for round := range tries(1, 100) {
				f := &traffic{s: s, round: round}
				victim, back := f.suffer(fault, engines)
				f.requireUnharmed(fault, victim, engines)
				if tries(0, 1) == 1 {
					t.Logf("round %d: %d requests, %d lost, in use again after %v", round, len(f.outcomes), f.lost(), back)
					require.Less(t, back, 2*time.Second)
				}
			}
		})
	}
}

// suffer has the fault happen to an engine that is in use, and returns which, and how long
// after its end it was in use again.
func (f *traffic) suffer(fault fault, engines []*mortal) (victim *mortal, back time.Duration) {
	t := f.s.t
	state := theState(t)
	stop := f.flow()
	defer stop()
	f.answers(20)
	victim, w := anyInUse(t, state, engines)

	fault.strike(victim)
	switch {
	case fault.brief:
		require.Eventually(t, func() bool { return w.Load().InFlight() == 0 }, patience, tick)
	case fault.hangs:
		require.Eventually(t, func() bool { return w.Overdue(state.clock.now()) > time.Second }, patience, tick)
		before := w.Assigned()
		f.answers(60)
		require.LessOrEqual(t, w.Assigned()-before, uint64(3), "it draws requests")
	default:
		f.answers(60)
	}

	healed := time.Now()
	fault.heal(victim)
	requirePlaced(t, w)
	back = time.Since(healed)
	f.answers(20)
	return victim, back
}

// anyInUse waits for an engine to have a request, and returns it.
func anyInUse(t *testing.T, s *state, engines []*mortal) (in *mortal, w *worker) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, w = range s.members() {
			if w.Load().InFlight() > 0 {
				return true
			}
		}
		return false
	}, patience, tick)
	for _, e := range engines {
		if e.address == w.Address() {
			in = e
		}
	}
	return in, w
}

// requirePlaced waits until one more request is placed on w.
func requirePlaced(t *testing.T, w *worker) {
	t.Helper()
	before := w.Assigned()
	require.Eventually(t, func() bool { return w.Assigned() > before }, patience, tick, "it is not in use")
}

// requireUnharmed looks at what came of every request.
func (f *traffic) requireUnharmed(fault fault, victim *mortal, engines []*mortal) {
	t := f.s.t
	t.Helper()
	for _, o := range f.outcomes {
		switch {
		case o.whole:
			require.Equal(t, http.StatusOK, o.status)
		case o.status == http.StatusOK: // it had begun
			require.True(t, fault.sudden, "stream %s broke off: %v", o.id, o.err)
			require.Equal(t, victim.address, o.upstream)
			require.Error(t, o.err, "a stream that breaks off must not look whole")
		default:
			require.Positive(t, fault.lost, "request %s failed with %d: %v", o.id, o.status, o.err)
			require.Equal(t, http.StatusBadGateway, o.status)
		}
	}
	require.LessOrEqual(t, f.lost(), fault.lost)
	generated := map[string]int{}
	for _, e := range engines {
		for id, n := range e.generated() {
			generated[id] += n
		}
	}
	for id, n := range generated {
		require.LessOrEqual(t, n, 1, "request %s was computed more than once", id)
	}
	requireIdle(t)
}

// lost returns how many requests came to nothing.
func (f *traffic) lost() (n int) {
	for _, o := range f.outcomes {
		if o.status != http.StatusOK {
			n++
		}
	}
	return n
}
