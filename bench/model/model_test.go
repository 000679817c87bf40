package model

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/stat"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

func TestRoutingQualityInVirtualTime(t *testing.T) {
	requests := trace.Agents(1)
	for _, test := range []struct {
		capacity     int
		mean, spread float64 // at most, of round robin's
	}{
		{524_288, 0.20, 1.25},
		{131_072, 0.11, 1.25},
	} {
		t.Run(fmt.Sprintf("%d tokens", test.capacity), func(t *testing.T) {
			o := DefaultOptions()
			o.Capacity = test.capacity
			blind := Replay(requests, o, RoundRobin)
			ours := Replay(requests, o, CacheAware)
			t.Logf("round robin: %s", blind)
			t.Logf("cache aware: %s", ours)
			require.Less(t, ours.Mean, test.mean*blind.Mean)
			require.Less(t, ours.Busiest, test.spread)
			require.Greater(t, ours.Hit, blind.Hit)
		})
	}
}

func TestTheSameReplayComesToTheSameOutcome(t *testing.T) {
	requests := trace.Agents(2)[:1000]
	o := DefaultOptions()
	o.Capacity, o.Routers = 131_072, 2
	for _, name := range Names() {
		rule, err := ByName(name)
		require.NoError(t, err)
		once := Replay(requests, o, rule)
		require.Equal(t, once, Replay(requests, o, rule), name)
	}
}

func TestRoutersKnowOnlyWhatTheyPlaced(t *testing.T) {
	requests := trace.Agents(1)[:3000]
	o := DefaultOptions()
	one := Replay(requests, o, CacheAware)
	o.Routers = 4
	several := Replay(requests, o, CacheAware)
	require.Greater(t, several.Mean, one.Mean)
	require.Less(t, several.Hit, one.Hit)

	o.Routers = 3
	var sent [][]time.Duration // by router
	Replay(at(1, 2, 3, 4, 5, 6, 7), o, func(Options) Placement {
		which := len(sent)
		sent = append(sent, nil)
		return func(r *trace.Request, _ time.Time) Decision {
			sent[which] = append(sent[which], r.At/time.Second)
			return Decision{}
		}
	})
	require.Equal(t, [][]time.Duration{{1, 4, 7}, {2, 5}, {3, 6}}, sent)
}

func TestEverythingTakesTheTimeThatIsModelled(t *testing.T) {
	o := DefaultOptions()
	o.Rate = 1000
	requests := []trace.Request{
		{At: 0, Input: 1000, Output: 10, Blocks: []uint64{1, 2}},                         // 1 s
		{At: 100 * time.Millisecond, Input: 1500, Output: 20, Blocks: []uint64{1, 3, 4}}, // waits 0.9 s; 512 tokens are cached: 0.988 s
		{At: 20 * time.Minute, Input: 1024, Output: 30, Blocks: []uint64{1, 2}},          // the block of its last token is computed: 0.512 s
	}
	type event struct {
		request  time.Duration
		what     string
		uncached int
		at       time.Duration
	}
	var events []event
	o.Engines = 1
	outcome := Replay(requests, o, func(Options) Placement {
		return func(r *trace.Request, now time.Time) Decision {
			require.Equal(t, r.At, now.Sub(instant(0)))
			return Decision{
				FirstToken: func(uncached int, now time.Time) {
					events = append(events, event{r.At, "first", uncached, now.Sub(instant(0))})
				},
				End: func(now time.Time) { events = append(events, event{r.At, "end", 0, now.Sub(instant(0))}) },
			}
		}
	})
	const ms = time.Millisecond
	one := 6*ms + 350*time.Microsecond // a token, alone
	require.Equal(t, []event{
		{0, "first", 1000, 1000 * ms},
		{0, "end", 0, 1000*ms + 10*one},
		{100 * ms, "first", 988, 1988 * ms},
		{100 * ms, "end", 0, 1988*ms + 20*one},
		{20 * time.Minute, "first", 512, 20*time.Minute + 512*ms},
		{20 * time.Minute, "end", 0, 20*time.Minute + 512*ms + 30*one},
	}, events)
	require.InDelta(t, (1+1.888+0.512)/3, outcome.Mean, 1e-9)
	require.Equal(t, [3]float64{1, 1.888, 1.888}, [3]float64{outcome.P50, outcome.P90, outcome.P99})
	require.InDelta(t, 1024.0/3524, outcome.Hit, 1e-9)
	require.Equal(t, 1.0, outcome.Busiest)
	require.InDeltaSlice(t, []float64{1.444, 0, 0.512}, outcome.Segments, 1e-9)
	require.Equal(t, "TTFT mean 1.133 p50 1.00 p90 1.89 p99 1.89 s, hit 0.291, busiest/mean 1.00", outcome.String())
}

func TestAnswersAreSlowerTheMoreAreRunning(t *testing.T) {
	o := DefaultOptions()
	o.Engines = 1
	var ends []time.Duration
	Replay(at(0, 0), o, func(Options) Placement {
		return func(*trace.Request, time.Time) Decision {
			return Decision{End: func(now time.Time) { ends = append(ends, now.Sub(instant(0))) }}
		}
	})
	// Prompts of 512 tokens of which all are computed each time.
	require.Equal(t, []time.Duration{64*time.Millisecond + 6350*1000*time.Microsecond, 128*time.Millisecond + 6700*1000*time.Microsecond}, ends)
}

func TestAnEngineIsAsFastAsItsSpeed(t *testing.T) {
	o := DefaultOptions()
	o.Engines, o.Rate, o.Speeds = 3, 512, []float64{2, 0.25}
	require.Equal(t, []time.Duration{500 * time.Millisecond, 4 * time.Second, time.Second}, prefills(at(0, 10, 20), o, RoundRobin))
}

func TestNoiseHasTheSigmaThatIsAskedForAndAMeanOfOne(t *testing.T) {
	o := DefaultOptions()
	o.Rate, o.Noise, o.Seed = 512, 0.3, 1
	var factors, logs []float64
	for _, took := range prefills(at(every(100, 10_000)...), o, RoundRobin) {
		factors, logs = append(factors, took.Seconds()), append(logs, math.Log(took.Seconds()))
	}
	require.InDelta(t, 1, stat.Mean(factors, nil), 0.01)
	require.InDelta(t, 0.3, stat.StdDev(logs, nil), 0.01)
}

func TestARequestHasTheSameLuckWhereverItIsPlaced(t *testing.T) {
	requests := at(0, 100, 200, 300)
	o := DefaultOptions()
	o.Noise = 0.3
	first := func(Options) Placement {
		return func(*trace.Request, time.Time) Decision { return Decision{} }
	}
	once := prefills(requests, o, RoundRobin)
	require.NotEqual(t, once[0], once[1])
	require.Equal(t, once, prefills(requests, o, first))
	o.Seed++
	require.NotEqual(t, once, prefills(requests, o, first))
}

func TestASlowEngineIsFoundOutAndSparedWork(t *testing.T) {
	requests := trace.Unique(1)[:3000]
	o := DefaultOptions()
	o.Noise, o.Speeds = 0.1, []float64{1, 1, 0.25}
	work := make([]int, o.Engines) // tokens, placed
	ours := Replay(requests, o, func(o Options) Placement {
		place := CacheAware(o)
		return func(r *trace.Request, now time.Time) Decision {
			d := place(r, now)
			work[d.Engine] += r.Input
			return d
		}
	})
	require.Less(t, 2*work[2], work[0])
	require.Less(t, ours.Mean, Replay(requests, o, LeastConn).Mean)
}

func TestNothingComesOfAnEmptyTrace(t *testing.T) {
	require.Equal(t, Outcome{}, Replay(nil, DefaultOptions(), CacheAware))
}

func TestOptionsThatCannotBeReplayedWithAreNamed(t *testing.T) {
	require.NoError(t, DefaultOptions().Validate())
	for _, test := range []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.Engines = 0 }, "0 engines: there must be between 1 and 4096"},
		{func(o *Options) { o.Engines = 4097 }, "4097 engines: "},
		{func(o *Options) { o.Capacity = 511 }, "a capacity of 511 tokens: it must be at least a block of 512"},
		{func(o *Options) { o.Rate = 0 }, "a prefill rate of 0: "},
		{func(o *Options) { o.Rate = math.NaN() }, "a prefill rate of NaN: "},
		{func(o *Options) { o.Speeds = make([]float64, 9) }, "9 speeds: there are only 8 engines"},
		{func(o *Options) { o.Speeds = []float64{1, 0} }, "a speed of 0, number 2: it must be between 0.01 and 100 times the rate"},
		{func(o *Options) { o.Speeds = []float64{math.NaN()} }, "a speed of NaN, number 1: "},
		{func(o *Options) { o.Noise = -0.1 }, "a noise of -0.1: it must be between 0 and 1"},
		{func(o *Options) { o.Noise = math.NaN() }, "a noise of NaN: "},
		{func(o *Options) { o.DecodeBase = -1 }, "must not be negative"},
		{func(o *Options) { o.DecodePerRunning = -1 }, "must not be negative"},
		{func(o *Options) { o.Routers = 0 }, "0 routers: there must be between 1 and 64"},
		{func(o *Options) { o.Belief = -1 }, "a belief of -1 times the capacity: "},
		{func(o *Options) { o.Belief = math.Inf(1) }, "a belief of +Inf times the capacity: "},
	} {
		o := DefaultOptions()
		test.change(&o)
		require.ErrorContains(t, o.Validate(), test.want)
	}
}

// at returns requests that come at those seconds, with a block of prompt that each
// has to itself and 1,000 tokens of answer.
func at(seconds ...int) (requests []trace.Request) {
	for i, second := range seconds {
		requests = append(requests, trace.Request{
			At: time.Duration(second) * time.Second, Input: 512, Output: 1000, Blocks: []uint64{uint64(i)},
		})
	}
	return requests
}

// prefills returns how long the prefill of each request takes. None may have to wait.
func prefills(requests []trace.Request, o Options, rule Rule) []time.Duration {
	took := make([]time.Duration, 0, len(requests))
	Replay(requests, o, func(o Options) Placement {
		place := rule(o)
		return func(r *trace.Request, came time.Time) Decision {
			return Decision{
				Engine:     place(r, came).Engine,
				FirstToken: func(_ int, now time.Time) { took = append(took, now.Sub(came)) },
			}
		}
	})
	return took
}

// every returns so many times, so many seconds apart.
func every(seconds, times int) (all []int) {
	for i := range times {
		all = append(all, i*seconds)
	}
	return all
}

func TestABeliefInNextToNothingIsNoBeliefInEverything(t *testing.T) {
	o := DefaultOptions()
	o.Belief = 0
	require.Zero(t, o.believed(), "no limit")
	o.Belief = 1e-9
	require.Positive(t, o.believed())
}
