package model

import (
	"container/list"
	"math"
	"slices"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// blocks is a cache of blocks, or what one is believed to hold: the least recently
// used goes first.
type blocks struct {
	most  int
	order *list.List // of ids, the latest in front
	held  map[uint64]*list.Element
}

// newBlocks returns an empty cache for so many tokens; 0 is no limit.
func newBlocks(tokens int) *blocks {
	most := math.MaxInt
	if tokens > 0 {
		most = tokens / trace.BlockTokens
	}
	return &blocks{most: most, order: list.New(), held: make(map[uint64]*list.Element)}
}

func (b *blocks) holds(id uint64) bool { return b.held[id] != nil }

// store keeps a prompt's blocks. Its end is the first of them to go.
func (b *blocks) store(ids []uint64) {
	for _, id := range slices.Backward(ids) {
		if e := b.held[id]; e != nil {
			b.order.MoveToFront(e)
		} else {
			b.held[id] = b.order.PushFront(id)
		}
	}
	for b.order.Len() > b.most {
		delete(b.held, b.order.Remove(b.order.Back()).(uint64))
	}
}
