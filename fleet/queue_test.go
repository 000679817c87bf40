package fleet

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheOldestPrefillIsKnownWhoeverLeaves(t *testing.T) {
	w := New().Join("a:1")
	at := func(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }
	check := func(now, tokens, since int) {
		t.Helper()
		n, d := w.Prefilling(at(now))
		require.Equal(t, tokens, n)
		if tokens > 0 {
			require.Equal(t, time.Duration(since)*time.Second, d)
		}
	}
	check(0, 0, 0)
	first := charge(t, w, 100, at(1))
	second := charge(t, w, 200, at(2))
	third := charge(t, w, 300, at(3))
	fourth := charge(t, w, 400, at(3))
	check(4, 100, 3)
	second.Release(at(4))
	check(5, 100, 4)
	first.FirstToken(at(6))
	check(8, 300, 2)
	first.Release(at(9))
	check(9, 300, 3)
	fourth.FirstToken(at(9))
	check(10, 300, 4)
	third.Release(at(11))
	check(11, 0, 0)
	charge(t, w, 500, at(20))
	check(21, 500, 1)
	n, d := w.Prefilling(at(19))
	require.Equal(t, 500, n)
	require.Zero(t, d, "a clock that goes back")
}

// TestTheQueueAgreesWithAList compares with a slice under random comings and goings.
func TestTheQueueAgreesWithAList(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	w := New().Join("a:1")
	var list []*Reservation
	for step := range 20_000 {
		if random.IntN(5) < 3 && len(list) < 50 || len(list) == 0 {
			list = append(list, charge(t, w, 1+random.IntN(1000), epoch))
		} else {
			i := random.IntN(len(list))
			if random.IntN(2) == 0 {
				list[i].FirstToken(epoch)
			}
			list[i].Release(epoch)
			list = slices.Delete(list, i, i+1)
		}
		want := 0
		if len(list) > 0 {
			want = list[0].tokens
		}
		got, _ := w.Prefilling(epoch)
		require.Equal(t, want, got, "step %d", step)
	}
}

func TestTheQueueIsEmptyWhenAllHaveLeft(t *testing.T) {
	w := New().Join("a:1")
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 2000 {
				r := w.Place(7, epoch)
				var both sync.WaitGroup
				both.Go(func() { r.FirstToken(epoch) })
				both.Go(func() { r.Release(epoch) })
				both.Wait()
			}
		})
	}
	wait.Wait()
	require.Nil(t, w.queue.first)
	require.Nil(t, w.queue.last)
	tokens, _ := w.Prefilling(epoch)
	require.Zero(t, tokens)
}
