package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

func TestRoundRobinPlacesInTurn(t *testing.T) {
	place := RoundRobin(fleetOf(3))
	require.Equal(t, []int{0, 1, 2, 0}, placed(place, document(1, 100), document(1, 100), document(1, 100), document(1, 100)))
}

func TestLeastConnPlacesWhereTheFewestAreInFlight(t *testing.T) {
	place := LeastConn(fleetOf(3))
	var decisions []Decision
	for range 3 {
		decisions = append(decisions, place(document(1, 100), instant(0)))
	}
	require.Equal(t, 2, decisions[2].Engine)
	decisions[1].End(instant(0))
	require.Equal(t, 1, place(document(1, 100), instant(0)).Engine)
	decisions[0].End(instant(0))
	decisions[2].End(instant(0))
	require.Equal(t, 0, place(document(1, 100), instant(0)).Engine) // as few as on the third, which was sent as many
	require.Equal(t, 2, place(document(1, 100), instant(0)).Engine)
}

func TestLeastUncachedWeighsWhatIsCachedAgainstWhatIsQueued(t *testing.T) {
	place := LeastUncached(fleetOf(2))
	at := func(now time.Duration, r *trace.Request) int { return place(r, instant(now)).Engine }
	require.Equal(t, 0, at(0, document(1, 16_384)))
	require.Equal(t, 1, at(0, document(2, 8192)))
	require.Equal(t, 0, at(0, document(1, 20_000)), "only 3,616 tokens are missing there")
	require.Equal(t, 1, at(0, document(3, 8192)), "fewer tokens wait there")

	// After 4 seconds all is computed.
	require.Equal(t, 0, at(4*time.Second, document(4, 16_384)), "both were sent as many requests")
	require.Equal(t, 1, at(4*time.Second, document(1, 8192)), "what is held elsewhere would wait for longer")
	require.Equal(t, 0, at(6*time.Second, document(1, 20_000)), "nothing waits any more")
}

func TestLeastUncachedKnowsTheRatesThatEnginesHave(t *testing.T) {
	o := fleetOf(2)
	o.Speeds = []float64{0.25}
	require.Equal(t, []int{1, 1, 1, 0, 1, 1}, placed(LeastUncached(o), document(1, 1000), document(2, 1000), document(3, 1000), document(4, 1000), document(5, 1000), document(6, 1000)))
}

func TestBeliefEndsWhereTheCapacityEnds(t *testing.T) {
	for _, test := range []struct {
		belief float64
		want   int
	}{
		{1, 0}, // the first prompt is forgotten, so the one that was sent the fewest gets it
		{0.5, 0},
		{2, 1},
		{0, 1},
	} {
		for name, rule := range map[string]Rule{"least uncached": LeastUncached, "cache aware": CacheAware} {
			o := fleetOf(2)
			o.Capacity, o.Belief = 8192, test.belief
			place := rule(o)
			settled := func(r *trace.Request, at time.Duration) int {
				d := place(r, instant(at))
				if d.FirstToken != nil {
					d.FirstToken(r.Input, instant(at+time.Second))
				}
				if d.End != nil {
					d.End(instant(at + time.Second))
				}
				return d.Engine
			}
			require.Equal(t, 0, settled(document(1, 8192), 0), name)
			require.Equal(t, 1, settled(document(2, 8192), time.Hour), name)
			require.Equal(t, 0, settled(document(3, 8192), 2*time.Hour), name)
			require.Equal(t, 1, settled(document(4, 8192), 3*time.Hour), name)
			require.Equal(t, test.want, settled(document(2, 8192), 4*time.Hour), "%s, belief %v", name, test.belief)
		}
	}
}

func TestCacheAwareSendsTheNextTurnWhereThePastIs(t *testing.T) {
	place := CacheAware(fleetOf(8))
	where := make(map[uint64]int)
	for conversation := range uint64(8) {
		r := document(conversation, 10_000)
		d := place(r, instant(0))
		where[conversation] = d.Engine
		d.FirstToken(r.Input, instant(2*time.Second))
		d.End(instant(3 * time.Second))
	}
	for conversation, engine := range where {
		require.Equal(t, engine, place(document(conversation, 12_000), instant(time.Minute)).Engine)
	}
}

func TestPrefixHashSendsWhatBeginsAlikeToOneEngineUnlessItIsBusy(t *testing.T) {
	o := fleetOf(8)
	o.PrefixLength = 4096
	place := PrefixHash(o)
	where := make(map[uint64]int)
	engines := make(map[int]bool)
	for beginning := range uint64(32) {
		for turn := range 3 {
			at := time.Duration(turn) * time.Minute
			d := place(document(beginning, 2000+1000*turn), instant(at))
			if turn > 0 {
				require.Equal(t, where[beginning], d.Engine)
			}
			where[beginning] = d.Engine
			engines[d.Engine] = true
			d.FirstToken(2000, instant(at+time.Second))
			d.End(instant(at + 2*time.Second))
		}
	}
	require.Len(t, engines, 8)

	place(document(1, 100_000), instant(time.Hour))
	require.NotEqual(t, where[1], place(document(1, 2000), instant(time.Hour)).Engine)
}

func TestAPrefixIsOfTheTextNotOfItsBlocks(t *testing.T) {
	same := func(a, b *trace.Request, bytes int) bool { return prefixKey(a, bytes) == prefixKey(b, bytes) }
	first, other := document(1, 2000), document(1, 2000)
	other.Blocks[1] = 99
	require.True(t, same(first, other, 2048))
	require.False(t, same(first, other, 2049))
	require.True(t, same(document(1, 600), document(1, 700), 2400))
	require.False(t, same(document(1, 600), document(1, 700), 2401), "one is shorter than that")
}

func TestRulesHaveNames(t *testing.T) {
	require.Equal(t, []string{"cache_aware", "least_conn", "least_uncached", "prefix_hash", "round_robin", "thresholds"}, Names())
	_, err := ByName("random")
	require.EqualError(t, err, `there is no rule "random", only cache_aware, least_conn, least_uncached, prefix_hash, round_robin, thresholds`)
}

func fleetOf(engines int) Options {
	o := DefaultOptions()
	o.Engines = engines
	return o
}

// document returns a request with the first tokens of a text.
func document(number uint64, tokens int) *trace.Request {
	r := &trace.Request{Input: tokens, Output: 10}
	for i := range uint64(tokens+trace.BlockTokens-1) / trace.BlockTokens {
		r.Blocks = append(r.Blocks, number<<16+i)
	}
	return r
}

// placed returns where requests that come at once are placed.
func placed(place Placement, requests ...*trace.Request) (engines []int) {
	for _, r := range requests {
		engines = append(engines, place(r, instant(0)).Engine)
	}
	return engines
}
