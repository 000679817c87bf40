package inference

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
)

func memoKey(n int) xxh3.Uint128 { return xxh3.HashString128(fmt.Sprint(n)) }

// TestTheMemoIsBounded puts in more than it has room for.
func TestTheMemoIsBounded(t *testing.T) {
	s := newState()
	w := s.join("10.0.0.1:8000", nil)
	const limit = 1 << 20
	m := newTokenMemo(limit)
	for n := range 10_000 {
		m.put(memoKey(n), make([]uint32, 1+n%500), w, w.prefix.Load())
		require.LessOrEqual(t, m.bytes(), limit)
	}
	require.Greater(t, m.bytes(), limit/2)
	kept, bytes := 0, 0
	for n := range 10_000 {
		if ids := m.get(memoKey(n), []*worker{w}); ids != nil {
			require.Len(t, ids, 1+n%500)
			kept++
			bytes += memoEntryBytes + 4*len(ids)
		}
	}
	require.Equal(t, m.bytes(), bytes)
	require.NotNil(t, m.get(memoKey(9999), []*worker{w}))
	require.Nil(t, m.get(memoKey(0), []*worker{w}))

	m.put(memoKey(9999), make([]uint32, limit), w, w.prefix.Load())
	require.Nil(t, m.get(memoKey(9999), []*worker{w}), "one that leaves no room for others")
	require.LessOrEqual(t, m.bytes(), limit)
}

// TestTheMemoForgetsWhatIsNotUsed asks for one prompt all the time.
func TestTheMemoForgetsWhatIsNotUsed(t *testing.T) {
	s := newState()
	w := s.join("10.0.0.1:8000", nil)
	m := newTokenMemo(1 << 18)
	m.put(memoKey(0), []uint32{1}, w, w.prefix.Load())
	for n := 1; n < 5000; n++ {
		m.put(memoKey(n), make([]uint32, 100), w, w.prefix.Load())
		require.NotNil(t, m.get(memoKey(0), []*worker{w}))
	}
	require.Nil(t, m.get(memoKey(1), []*worker{w}))
}

// TestTheMemoGoesByTheEnginesOfAPool has ids of one that is not in it, and of one that was
// restarted.
func TestTheMemoGoesByTheEnginesOfAPool(t *testing.T) {
	s := newState()
	a, b, c := s.join("10.0.0.1:8000", nil), s.join("10.0.0.2:8000", nil), s.join("10.0.0.3:8000", nil)
	m := newTokenMemo(1 << 20)
	m.put(memoKey(1), []uint32{1}, a, a.prefix.Load())
	require.NotNil(t, m.get(memoKey(1), []*worker{b, a}))
	require.Nil(t, m.get(memoKey(1), []*worker{b, c}))
	require.Nil(t, m.get(memoKey(1), nil))
	require.NotNil(t, m.get(memoKey(1), []*worker{a}))
	before := a.prefix.Load()
	s.forgetPrefixes(a)
	require.Nil(t, m.get(memoKey(1), []*worker{a, b}))
	require.Zero(t, m.bytes())
	m.put(memoKey(1), []uint32{1}, a, before) // asked before it was restarted
	require.Nil(t, m.get(memoKey(1), []*worker{a}))
	m.put(memoKey(1), []uint32{2}, b, b.prefix.Load())
	m.put(memoKey(1), []uint32{3}, b, b.prefix.Load())
	require.Equal(t, []uint32{3}, m.get(memoKey(1), []*worker{a, b}))
	require.Equal(t, memoEntryBytes+4, m.bytes())
}

// TestTheMemoIsSharedByMany uses it from several goroutines.
func TestTheMemoIsSharedByMany(t *testing.T) {
	s := newState()
	w := s.join("10.0.0.1:8000", nil)
	m := newTokenMemo(1 << 16)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for n := range 2000 {
				key := memoKey((n + g) % 300)
				if ids := m.get(key, []*worker{w}); ids != nil {
					require.Len(t, ids, 50)
				}
				m.put(key, make([]uint32, 50), w, w.prefix.Load())
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, m.bytes(), 1<<16)
}

// BenchmarkTokenMemoHit is what a prompt costs whose ids are remembered: its fingerprint,
// and finding it.
func BenchmarkTokenMemoHit(b *testing.B) {
	for _, size := range sizes {
		b.Run("size="+size.name, func(b *testing.B) {
			rig := newTokenizerRig(b, 4)
			defer rig.end()
			rig.options.remote.timeout = patience
			t := rig.ticket(chatPath, chatOf(message("user", texts["english"](rand.New(rand.NewPCG(1, 1)), size.bytes))))
			_, cause := rig.options.promptIDs(t, httptest.NewRequest(http.MethodPost, chatPath, nil))
			require.Empty(b, cause)
			p := &t.scratch.prompt
			b.SetBytes(int64(size.bytes))
			b.ReportAllocs()
			for b.Loop() {
				t.readTokens(p, chatPath)
				if ids, _ := rig.options.promptIDs(t, nil); len(ids) != 3 {
					b.Fatal("not remembered")
				}
			}
		})
	}
}
