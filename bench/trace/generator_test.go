package trace

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/stat"
)

// made returns what a generator makes of the seed 1, made once for all tests.
func made(name string) []Request { return once[name]() }

var once = func() map[string]func() []Request {
	all := make(map[string]func() []Request)
	for name, generate := range generators {
		all[name] = sync.OnceValue(func() []Request { return generate(1) })
	}
	return all
}()

func TestGeneratorsMakeTheSameOfTheSameSeed(t *testing.T) {
	for name, generate := range generators {
		require.Equal(t, made(name), generate(1), name)
		require.NotEqual(t, made(name)[0], generate(2)[0], name)
	}
}

func TestGeneratedTracesAreWellFormed(t *testing.T) {
	bad := func(r Request) bool {
		return lineOf(&r).check() != nil || r.Input > longest || r.Output < 8 || r.Output > 4000 ||
			len(r.Blocks) != r.Input/BlockTokens+1 || r.At%time.Millisecond != 0
	}
	for _, name := range Names() {
		requests := made(name)
		require.True(t, slices.IsSortedFunc(requests, byTime), name)
		if i := slices.IndexFunc(requests, bad); i >= 0 {
			require.Failf(t, "badly formed", "%s, request %d: %+v", name, i, requests[i])
		}
	}
}

// What the generators' comments say, within what chance allows. Load is the share of
// the fleet's prefill that is needed if no whole block that was seen before is
// computed again; a burst's 16 part blocks are a third of its.
func TestGeneratedTrafficIsAsItIsDescribed(t *testing.T) {
	for _, test := range []struct {
		name                  string
		length                time.Duration
		requests              int
		input, repeated, load float64
	}{
		{"agents", time.Hour, 8750, 35_000, 0.949, 0.066},
		{"burst", 20 * time.Minute, 19_200, 12_900, 0.933, 0.22},
		{"long", 20 * time.Minute, 910, 108_000, 0.866, 0.17},
		{"shared", 20 * time.Minute, 72_000, 8832, 0.927, 0.60},
		{"unique", 20 * time.Minute, 7350, 6270, 0, 0.60},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := Summarize(made(test.name))
			require.InEpsilon(t, test.length, s.Length, 0.02)
			require.InEpsilon(t, test.requests, s.Requests, 0.1)
			require.InEpsilon(t, test.input, s.Input, 0.05)
			require.InDelta(t, 270, s.Output, 20)
			require.InDelta(t, test.repeated, s.Repeated, 0.015) // long has only a hundred sessions
			fresh := s.Input * float64(s.Requests) * (1 - s.Repeated)
			require.InEpsilon(t, test.load, fresh/(fleetRate*s.Length.Seconds()), 0.1)
		})
	}
}

func TestSessionsOfAProductBeginWithItsSystemPrompt(t *testing.T) {
	sessions := make(map[uint64]int) // by the first block behind a product's
	count := make([]float64, len(products))
	for _, r := range made("agents") {
		product := int(r.Blocks[0] >> 16)
		own := products[product].tokens / BlockTokens
		require.Equal(t, beginning(product, products[product].tokens), r.Blocks[:own])
		first := r.Blocks[own]
		require.GreaterOrEqual(t, first, uint64(1<<20))
		sessions[first]++
		count[product]++
	}
	require.InDelta(t, 0.22*3600, len(sessions), 250) // first turns shorter than a block count twice
	require.Greater(t, count[1], count[3])
	require.Greater(t, count[2], count[4])
}

func TestABurstIsOnePromptSixteenTimesAtOnce(t *testing.T) {
	requests := made("burst")
	require.Zero(t, len(requests)%16)
	var lengths []float64
	seen := make(map[uint64]bool)
	continued := 0
	for burst := range slices.Chunk(requests, 16) {
		for _, r := range burst {
			require.Equal(t, burst[0].At, r.At)
			require.Equal(t, burst[0].Input, r.Input)
			require.Equal(t, burst[0].Blocks, r.Blocks)
		}
		if seen[burst[0].Blocks[0]] {
			continued++
		} else {
			lengths = append(lengths, float64(burst[0].Input))
		}
		seen[burst[0].Blocks[0]] = true
	}
	require.InDelta(t, 0.25, float64(continued)/float64(len(requests)/16), 0.04)
	slices.Sort(lengths)
	require.InEpsilon(t, 8000, stat.Quantile(0.5, stat.Empirical, lengths, nil), 0.1)
}

func TestLongSessionsBeginWithMuchOfTheirOwn(t *testing.T) {
	turns := make(map[uint64]int)
	for _, r := range made("long") {
		require.GreaterOrEqual(t, r.Input, 100_200)
		if turns[r.Blocks[0]] == 0 {
			require.LessOrEqual(t, r.Input, 102_000)
		}
		turns[r.Blocks[0]]++
	}
	require.InDelta(t, 0.096*1200, len(turns), 30)
}

func TestNamesAreGeneratorsOrFiles(t *testing.T) {
	require.Equal(t, []string{"agents", "burst", "long", "shared", "unique"}, Names())
	_, err := ByName("agent", 1)
	require.EqualError(t, err, `trace "agent" is neither a file nor one of agents, burst, long, shared, unique`)
	_, err = ByName(t.TempDir(), 1)
	require.ErrorContains(t, err, "is a directory")
}

func TestASummaryCountsWhatWasSeenBefore(t *testing.T) {
	s := Summarize([]Request{
		{Input: 1024, Output: 10, Blocks: []uint64{1, 2}},
		{At: time.Second, Input: 1024, Output: 20, Blocks: []uint64{1, 2}}, // the last token is computed
		{At: time.Minute, Input: 2048, Output: 30, Blocks: []uint64{1, 2, 3, 4}},
	})
	require.Equal(t, Summary{Requests: 3, Length: time.Minute, Input: 4096.0 / 3, Output: 20, Repeated: 1536.0 / 4096}, s)
	require.Equal(t, "3 requests in 1m0s, on average 1365 tokens in (37.5 % of them seen before) and 20 out", s.String())
	require.Zero(t, Summarize(nil))
}
