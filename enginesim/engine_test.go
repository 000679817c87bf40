package enginesim

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// numbered is a prompt of n tokens that shares nothing with prompts from others.
func numbered(from, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(from*10000 + i)
	}
	return ids
}

// outcome is what became of a sequence: when each token came, and how it ended.
type outcome struct {
	seq    *sequence
	tokens []time.Duration // since the test began
	ended  time.Duration
	err    error
}

// rig runs sequences in a bubble of simulated time.
type rig struct {
	t     *testing.T
	e     *engine
	start time.Time
}

func newRig(t *testing.T, opts Options) *rig {
	return &rig{t: t, e: newEngine(opts), start: time.Now()}
}

// send starts a sequence at this moment.
func (r *rig) send(ctx context.Context, ids []uint32, maxTokens int) *outcome {
	r.t.Helper()
	s, err := r.e.submit(prompt{ids: ids}, namespace{}, maxTokens, 0)
	require.NoError(r.t, err)
	o := &outcome{seq: s}
	go func() {
		o.err = s.run(ctx, func(delta) error {
			o.tokens = append(o.tokens, time.Since(r.start))
			return nil
		})
		o.ended = time.Since(r.start)
	}()
	return o
}

// idle checks that nothing is left of the sequences.
func (r *rig) idle() {
	r.t.Helper()
	g := r.e.gauges()
	require.Zero(r.t, g.running)
	require.Zero(r.t, g.waiting)
	require.Zero(r.t, g.usedBlocks)
	require.Zero(r.t, r.e.cache.promised)
	require.Nil(r.t, r.e.prefilling)
}

const ms = time.Millisecond

// pass lets simulated time pass, and all that happens in it.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestFirstTokenTakesThePrefillOfUncachedTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, DefaultOptions())
		cold := r.send(t.Context(), numbered(1, 8000), 3)
		pass(2 * time.Second)
		require.NoError(t, cold.err)
		require.Equal(t, []time.Duration{1000 * ms, 1000*ms + 6350*time.Microsecond, 1000*ms + 2*6350*time.Microsecond}, cold.tokens)

		warm := r.send(t.Context(), numbered(1, 8000), 1)
		pass(time.Second)
		require.Equal(t, 7984, warm.seq.cached, "the last block is computed again")
		require.Equal(t, []time.Duration{2000*ms + 2*ms}, warm.tokens, "16 tokens at 8 a millisecond")
		r.idle()
	})
}

func TestSpeedDividesAllTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := DefaultOptions()
		opts.Speed = 2
		r := newRig(t, opts)
		o := r.send(t.Context(), numbered(1, 8000), 2)
		pass(time.Second)
		require.Equal(t, []time.Duration{500 * ms, 500*ms + 3175*time.Microsecond}, o.tokens)
	})
}

func TestInstantEngineTakesNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := DefaultOptions()
		opts.PrefillRate = 0
		r := newRig(t, opts)
		o := r.send(t.Context(), numbered(1, 8000), 100)
		synctest.Wait()
		require.Len(t, o.tokens, 100)
		require.Zero(t, o.ended)
		r.idle()
	})
}

func TestPromptsArePrefilledOneAfterAnotherInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, DefaultOptions())
		first := r.send(t.Context(), numbered(1, 800), 1)
		second := r.send(t.Context(), numbered(2, 1600), 1)
		third := r.send(t.Context(), numbered(3, 8), 1)
		pass(50 * ms)
		require.Equal(t, 2, r.e.gauges().waiting)
		require.Equal(t, 1, r.e.gauges().running)
		pass(time.Second)
		require.Equal(t, []time.Duration{100 * ms}, first.tokens)
		require.Equal(t, []time.Duration{300 * ms}, second.tokens)
		require.Equal(t, []time.Duration{301 * ms}, third.tokens)
		r.idle()
	})
}

func TestPromptBehindItsTwinHitsWhatTheTwinHasPrefilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, DefaultOptions())
		first := r.send(t.Context(), numbered(1, 808), 1)
		second := r.send(t.Context(), numbered(1, 808), 1)
		pass(time.Second)
		require.Zero(t, first.seq.cached)
		require.Equal(t, 800, second.seq.cached)
		require.Equal(t, []time.Duration{102 * ms}, second.tokens)
	})
}

func TestTokensSlowDownWithEachRunningRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, DefaultOptions())
		long := r.send(t.Context(), numbered(1, 8), 100)
		pass(100 * ms)
		before := len(long.tokens)
		r.send(t.Context(), numbered(2, 8), 1000)
		r.send(t.Context(), numbered(3, 8), 1000)
		pass(100 * ms)
		gap := long.tokens[before+3] - long.tokens[before+2]
		require.Equal(t, 6*ms+3*350*time.Microsecond, gap)
		require.Equal(t, 6350*time.Microsecond, long.tokens[1]-long.tokens[0])
		r.e.close()
	})
}

func TestClientThatLeavesTheQueueIsGoneAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, DefaultOptions())
		r.send(t.Context(), numbered(1, 8000), 1)
		ctx, cancel := context.WithCancel(t.Context())
		second := r.send(ctx, numbered(2, 8000), 1)
		third := r.send(t.Context(), numbered(3, 8), 1)
		pass(100 * ms)
		cancel()
		synctest.Wait()
		require.ErrorIs(t, second.err, errGone)
		require.Equal(t, 1, r.e.gauges().waiting)
		pass(2 * time.Second)
		require.Equal(t, []time.Duration{1001 * ms}, third.tokens)
		require.Equal(t, 500, r.e.gauges().counts.blocksStored, "nothing of it was prefilled")
		r.idle()
	})
}

func TestBrokenOffPrefillKeepsItsFullBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, DefaultOptions())
		ctx, cancel := context.WithCancel(t.Context())
		first := r.send(ctx, numbered(1, 8000), 1)
		next := r.send(t.Context(), numbered(2, 8), 1)
		pass(101 * ms) // 808 tokens
		cancel()
		synctest.Wait()
		require.ErrorIs(t, first.err, errGone)
		require.Equal(t, 101*ms, first.ended)
		pass(99 * ms)
		require.Equal(t, []time.Duration{102 * ms}, next.tokens, "the queue moves on at once")

		again := r.send(t.Context(), numbered(1, 8000), 1)
		pass(2 * time.Second)
		require.Equal(t, 800, again.seq.cached)
		r.idle()
	})
}

func TestClientThatLeavesInDecodeIsNoticedAtTheNextToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, DefaultOptions())
		ctx, cancel := context.WithCancel(t.Context())
		o := r.send(ctx, numbered(1, 80), 1000)
		pass(11 * ms) // first token at 10 ms, the next at 16.35
		cancel()
		pass(time.Second)
		require.ErrorIs(t, o.err, errGone)
		require.Len(t, o.tokens, 1)
		require.Equal(t, 16350*time.Microsecond, o.ended)
		r.idle()

		again := r.send(t.Context(), numbered(1, 81), 1)
		pass(time.Second)
		require.Equal(t, 80, again.seq.cached)
	})
}

func TestDecodedBlockIsCachedWhenItsLastTokenIsComputed(t *testing.T) {
	for _, test := range []struct{ prompt, output, blocks int }{
		{15, 1, 0}, {15, 2, 1}, {16, 1, 1}, {16, 16, 1}, {16, 17, 2}, {1, 33, 2},
	} {
		for _, interval := range []int{1, 5, 100} {
			opts := DefaultOptions()
			opts.PrefillRate, opts.StreamInterval = 0, interval
			e := newEngine(opts)
			s, err := e.submit(prompt{ids: numbered(1, test.prompt)}, namespace{}, test.output, 0)
			require.NoError(t, err)
			require.NoError(t, s.run(t.Context(), func(delta) error { return nil }))
			require.Equal(t, test.blocks, e.gauges().counts.blocksStored, "%+v, interval %d", test, interval)
		}
	}
}

func TestAnswerSentBackHitsTheBlocksItWasDecodedInto(t *testing.T) {
	opts := DefaultOptions()
	opts.PrefillRate = 0
	e := newEngine(opts)
	ids := numbered(1, 40)
	s, err := e.submit(prompt{ids: ids}, namespace{}, 41, 0)
	require.NoError(t, err)
	require.NoError(t, s.run(t.Context(), func(d delta) error {
		ids = append(ids, d.ids...)
		return nil
	}))
	s, err = e.submit(prompt{ids: append(ids, 1, 2, 3)}, namespace{}, 1, 0)
	require.NoError(t, err)
	require.NoError(t, s.run(t.Context(), func(delta) error { return nil }))
	require.Equal(t, 80, s.cached)
}

func TestPromptsWithOtherRootsShareNothing(t *testing.T) {
	opts := DefaultOptions()
	opts.PrefillRate = 0
	e := newEngine(opts)
	for root := range uint64(3) {
		s, err := e.submit(prompt{ids: numbered(1, 100)}, namespace{root: root}, 1, 0)
		require.NoError(t, err)
		require.NoError(t, s.run(t.Context(), func(delta) error { return nil }))
		require.Zero(t, s.cached)
	}
}

func TestRequestWaitsUntilTheCacheHasRoomForAllOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := DefaultOptions()
		opts.Capacity, opts.MaxModelLen = 160, 160
		r := newRig(t, opts)
		first := r.send(t.Context(), numbered(1, 80), 49) // 8 of 10 blocks in the end
		second := r.send(t.Context(), numbered(2, 40), 9) // 3
		pass(20 * ms)
		require.Equal(t, 1, r.e.gauges().waiting, "the prefill is free, the room is not")
		pass(time.Second)
		require.NoError(t, second.err)
		require.Len(t, second.tokens, 9)
		require.Equal(t, first.ended+5*ms, second.tokens[0])
		r.idle()
	})
}

func TestAnAnswerMayFillTheCacheToItsLastToken(t *testing.T) {
	for _, interval := range []int{1, 7} {
		opts := instantOptions()
		opts.Capacity, opts.MaxModelLen, opts.StreamInterval = 160, 160, interval
		e := newEngine(opts)
		s, err := e.submit(prompt{ids: numbered(1, 80)}, namespace{}, 81, 0)
		require.NoError(t, err)
		require.NoError(t, s.run(t.Context(), func(delta) error { return nil }))
		require.Equal(t, 10, e.gauges().counts.blocksStored)
		require.Zero(t, e.gauges().usedBlocks)
	}
}

func TestStopEndsWhatIsInQueuePrefillAndDecode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, DefaultOptions())
		outcomes := []*outcome{
			r.send(t.Context(), numbered(1, 8), 1000),
			r.send(t.Context(), numbered(2, 8000), 1),
			r.send(t.Context(), numbered(3, 8000), 1),
		}
		pass(100 * ms)
		r.e.close()
		synctest.Wait()
		for _, o := range outcomes {
			require.ErrorIs(t, o.err, errStopped)
			require.Equal(t, 100*ms, o.ended)
		}
		r.idle()
	})
}

func TestEmitsErrorEndsTheSequence(t *testing.T) {
	opts := DefaultOptions()
	opts.PrefillRate = 0
	e := newEngine(opts)
	s, err := e.submit(prompt{ids: numbered(1, 8)}, namespace{}, 10, 0)
	require.NoError(t, err)
	broken := errors.New("broken")
	require.ErrorIs(t, s.run(t.Context(), func(delta) error { return broken }), broken)
	require.Zero(t, e.gauges().running)
	require.Zero(t, e.gauges().usedBlocks)
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(DefaultOptions())
		ids := numbered(1, 8)
		all := make([]*sequence, 0, maxQueued+1)
		for range maxQueued + 1 { // one more than wait: the first is in prefill
			s, err := e.submit(prompt{ids: ids}, namespace{}, 1, 0)
			require.NoError(t, err)
			all = append(all, s)
		}
		_, err := e.submit(prompt{ids: ids}, namespace{}, 1, 0)
		require.ErrorIs(t, err, errQueueFull)
		for _, s := range all {
			s.abandon()
		}
		require.Zero(t, e.gauges().waiting)
		require.Zero(t, e.gauges().running)
	})
}

func TestSamePromptHasTheSameAnswer(t *testing.T) {
	opts := DefaultOptions()
	opts.PrefillRate = 0
	e := newEngine(opts)
	answer := func(ids []uint32, choice int) (text string) {
		s, err := e.submit(prompt{ids: ids}, namespace{}, 20, choice)
		require.NoError(t, err)
		require.NoError(t, s.run(t.Context(), func(d delta) error {
			text += string(d.text)
			return nil
		}))
		return text
	}
	first, again := answer(numbered(1, 20), 0), answer(numbered(1, 20), 0)
	require.Equal(t, first, again)
	require.NotEqual(t, first, answer(numbered(1, 20), 1), "another choice")
	require.NotEqual(t, first, answer(numbered(1, 21), 0), "a longer prompt")
	require.NotEqual(t, first, answer(numbered(2, 20), 0), "another prompt")
}

func BenchmarkSequence(b *testing.B) {
	opts := DefaultOptions()
	opts.PrefillRate = 0
	e := newEngine(opts)
	ids := numbered(1, 4096)
	b.ReportAllocs()
	for b.Loop() {
		s, err := e.submit(prompt{ids: ids}, namespace{}, 64, 0)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.run(context.Background(), func(delta) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
