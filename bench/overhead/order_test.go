package main

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryRowHasEveryPlaceAndFollowsEveryOtherAlike(t *testing.T) {
	for n := 1; n <= 7; n++ {
		o := orders{rows: n, random: rand.New(rand.NewPCG(1, 1))}
		for range 3 {
			places := make(map[[2]int]int)
			behind := make(map[[2]int]int)
			for range 2 * n {
				order := o.next()
				require.Len(t, order, n)
				for place, row := range order {
					places[[2]int{row, place}]++
					if place > 0 {
						behind[[2]int{row, order[place-1]}]++
					}
				}
			}
			require.Len(t, places, n*n)
			require.Len(t, behind, n*(n-1))
			for _, times := range places {
				require.Equal(t, 2, times)
			}
			for pair, times := range behind {
				require.Equal(t, 2, times)
				require.NotEqual(t, pair[0], pair[1])
			}
		}
	}
}

func TestRoundsAreDrawnByTheSeed(t *testing.T) {
	draw := func(seed uint64) (rounds [][]int) {
		o := orders{rows: 4, random: rand.New(rand.NewPCG(seed, 1))}
		for range 20 {
			rounds = append(rounds, o.next())
		}
		return rounds
	}
	first := draw(1)
	require.Equal(t, first, draw(1))
	require.NotEqual(t, first, draw(2))
}
