package selection

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// usual are the values that SMG's command line has.
var usual = Thresholds{Share: 0.3, Absolute: 64, Relative: 1.5}

// requests places so many requests on each candidate.
func requests(t *testing.T, list []Candidate, counts []int) {
	t.Helper()
	for i, n := range counts {
		for range n {
			require.NotNil(t, list[i].Worker.Place(1, epoch))
		}
	}
}

func TestThresholdsDecideAsTheirRuleSays(t *testing.T) {
	const (
		sick = Unhealthy
		ok   = Available
	)
	tests := []struct {
		name     string
		held     []int
		requests []int
		standing []Standing
		want     int
		reason   Reason
	}{
		{"nobody holds any", []int{0, 0, 0}, []int{2, 1, 3}, nil, 1, NothingHeld},
		{"the one that holds the most", []int{400, 900, 0}, []int{5, 9, 0}, nil, 1, Hit},
		{"just enough is not enough", []int{0, 300, 0}, []int{0, 1, 2}, nil, 0, TooLittle},
		{"a token more is", []int{0, 301, 0}, []int{0, 1, 2}, nil, 1, Hit},
		{"of equal holders the one with fewer requests", []int{700, 700, 0}, []int{3, 2, 0}, nil, 1, Hit},
		{"too little, but the fewest requests are there", []int{0, 100, 0}, []int{1, 0, 1}, nil, 1, Hit},
		{"loads differ by no more than the absolute threshold", []int{0, 900, 0}, []int{0, 64, 0}, nil, 1, Hit},
		{"loads differ too much", []int{0, 900, 0}, []int{1, 66, 0}, nil, 2, LoadOutweighed},
		{"much, but by no more than the relative threshold", []int{0, 900, 0}, []int{130, 195, 130}, nil, 1, Hit},
		{"by more than both", []int{0, 900, 0}, []int{130, 196, 131}, nil, 0, LoadOutweighed},
		{"the holder cannot be chosen, another holds enough", []int{400, 900, 0}, []int{7, 0, 0}, []Standing{ok, sick, ok}, 0, HolderUnavailable},
		{"the holder cannot be chosen, no other holds enough", []int{0, 900, 100}, []int{5, 0, 6}, []Standing{ok, sick, ok}, 0, TooLittle},
		{"the holder cannot be chosen, no other holds any", []int{0, 900, 0}, []int{5, 0, 4}, []Standing{ok, sick, ok}, 2, HolderUnavailable},
		{"the load of who cannot be chosen does not count", []int{0, 900, 0}, []int{500, 20, 0}, []Standing{sick, ok, ok}, 1, Hit},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			list := candidates(len(test.held))
			requests(t, list, test.requests)
			for i := range list {
				list[i].Held = test.held[i]
				if test.standing != nil {
					list[i].Standing = test.standing[i]
				}
			}
			choice := usual.Decide(1000, list, epoch)
			require.Equal(t, test.want, choice.Index)
			require.Equal(t, test.reason, choice.Reason)
			require.Equal(t, test.held[test.want], choice.Held)
			require.Equal(t, 1000, choice.Tokens)
			for i := range list {
				require.Equal(t, test.requests[i], list[i].Terms.Load.InFlight())
			}
		})
	}
}

func TestThresholdsChooseNobodyIfNobodyIsAvailable(t *testing.T) {
	list := candidates(2)
	list[0].Standing, list[1].Standing = Tried, Full
	require.Equal(t, Choice{Index: -1, Best: -1, Tokens: 10}, usual.Decide(10, list, epoch))
	require.Equal(t, -1, usual.Decide(10, nil, epoch).Index)
}

// TestThresholdsAgreeWithTheObviousRule compares with one candidate after the other.
func TestThresholdsAgreeWithTheObviousRule(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		list := candidates(1 + random.IntN(6))
		rule := Thresholds{Share: random.Float64(), Absolute: random.IntN(4), Relative: 1 + random.Float64()}
		for i := range list {
			list[i].Held = random.IntN(3) * random.IntN(500)
			list[i].Standing = Standing(max(0, random.IntN(5)-2))
			requests(t, list[i:], []int{random.IntN(9)})
		}
		choice := rule.Decide(1000, list, epoch)

		var available []int
		for i := range list {
			if list[i].Standing == Available {
				available = append(available, i)
			}
		}
		if len(available) == 0 {
			require.Equal(t, -1, choice.Index)
			continue
		}
		load := func(i int) int { return list[i].Worker.Load().InFlight() }
		fewest, most, held := available[0], available[0], available[0]
		for _, i := range available {
			if load(i) < load(fewest) {
				fewest = i
			}
			if load(i) > load(most) {
				most = i
			}
			if list[i].Held > list[held].Held || list[i].Held == list[held].Held && load(i) < load(held) {
				held = i
			}
		}
		want := fewest
		apart := load(most)-load(fewest) > rule.Absolute && float64(load(most)) > float64(load(fewest))*rule.Relative
		if !apart && float64(list[held].Held)/1000 > rule.Share {
			want = held
		}
		require.Equal(t, load(want), load(choice.Index))
		require.True(t, want == fewest || list[want].Held == list[choice.Index].Held)
	}
}

func BenchmarkPlaceByThresholds(b *testing.B) {
	list := candidates(4)
	list[2].Held = 900
	b.ReportAllocs()
	for b.Loop() {
		_, r := Place(usual, 1000, list, epoch)
		r.Release(epoch)
	}
}
