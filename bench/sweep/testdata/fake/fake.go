// Package fake stands for a package of the product in tests.
package fake

import "time"

const Alone = 7

const (
	// plain has a comment.
	plain = 64 // and another

	ratio          = 1.0 / 4
	one, two       = 1, 2
	typed    int64 = 2 << 10
	halfLife       = time.Minute
	call           = max(one, two)
)

const (
	first = iota
	second
)

var variable = 5

// Score depends on all of it.
func Score() float64 {
	const plain = 1000 // another one
	score := halfLife.Seconds() * ratio
	return score + plain + float64(variable)
}

// Slow is a time that depends on a constant.
func Slow() float64 { return float64(one) / 4 }
