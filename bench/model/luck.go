package model

import (
	"math/rand/v2"

	"gonum.org/v1/gonum/stat/distuv"
)

// lucks returns what the requests' lucks are drawn from.
func (o Options) lucks() distuv.LogNormal {
	return distuv.LogNormal{
		Mu:    -o.Noise * o.Noise / 2, // for a mean of 1
		Sigma: o.Noise,
		Src:   rand.NewPCG(o.Seed, 1), // 1: the traces of that seed are drawn from another
	}
}
