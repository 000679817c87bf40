package main

import (
	"math/rand/v2"
	"slices"
)

// orders are those in which rows have their turns, a round each. In every 2n rounds
// of n rows, a row has each place twice and directly follows each of the others
// twice: none always finds the machine as the same one has left it. Which of these
// rounds comes first is drawn by lot.
type orders struct {
	rows   int
	random *rand.Rand
	left   [][]int // of the 2n rounds
}

// next returns the order of the next round.
func (o *orders) next() []int {
	if len(o.left) == 0 {
		o.left = balanced(o.rows)
		o.random.Shuffle(len(o.left), func(i, j int) { o.left[i], o.left[j] = o.left[j], o.left[i] })
	}
	order := o.left[0]
	o.left = o.left[1:]
	return order
}

// balanced returns the 2n orders of n rows: Williams' design. From the order 0, 1,
// n-1, 2, n-2 and so on, in which all steps differ, the others are made by counting
// on, and by reading backwards.
func balanced(n int) (list [][]int) {
	for shift := range n {
		order := make([]int, n)
		for place := range order {
			row := (place + 1) / 2
			if place%2 == 0 {
				row = n - row
			}
			order[place] = (row + shift) % n
		}
		backwards := slices.Clone(order)
		slices.Reverse(backwards)
		list = append(list, order, backwards)
	}
	return list
}
