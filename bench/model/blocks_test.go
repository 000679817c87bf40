package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheLeastRecentlyUsedBlockGoesFirstAndEndsBeforeBeginnings(t *testing.T) {
	b := newBlocks(4*512 + 511)
	b.store([]uint64{1, 2, 3})
	b.store([]uint64{4, 5})
	require.Equal(t, []uint64{1, 2, 4, 5}, held(b, 6)) // not 3, the end of the older one
	b.store([]uint64{1, 6})
	require.Equal(t, []uint64{1, 4, 5, 6}, held(b, 6))
	b.store([]uint64{1, 2, 3, 4, 5, 6})
	require.Equal(t, []uint64{1, 2, 3, 4}, held(b, 6))
}

func TestACacheWithoutLimitForgetsNothing(t *testing.T) {
	b := newBlocks(0)
	for id := range uint64(10_000) {
		b.store([]uint64{id})
	}
	require.Len(t, held(b, 10_000), 10_000)
}

// held returns which of the ids up to most are in a cache.
func held(b *blocks, most uint64) (ids []uint64) {
	for id := range most + 1 {
		if b.holds(id) {
			ids = append(ids, id)
		}
	}
	return ids
}
