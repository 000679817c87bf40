package model

import (
	"encoding/binary"
	"hash/fnv"
	"time"

	"github.com/caddy-inference/caddy-inference/selection"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// What the policy has by default.
const (
	loadFactor    = 1.25
	longerOpening = 4
)

// PrefixHash places requests as the policy prefix_hash does, by the code that it consists
// of. A trace does not say where system prompts end, so prompts are bare ones: those with
// the same first PrefixLength bytes have the same owner.
func PrefixHash(o Options) Placement {
	b := newBelieving(o)
	return func(r *trace.Request, now time.Time) Decision {
		h := selection.Hash{
			Key:        prefixKey(r, o.PrefixLength),
			Next:       prefixKey(r, longerOpening*o.PrefixLength),
			LoadFactor: loadFactor,
			Reason:     selection.Owner,
		}
		return b.place(h, r, now)
	}
}

// prefixKey is a key of the first bytes of a request's text.
func prefixKey(r *trace.Request, bytes int) uint64 {
	const blockBytes = trace.BlockTokens * tokenBytes
	bytes = min(bytes, r.Input*tokenBytes)
	h := fnv.New64a()
	var word [8]byte
	for _, block := range r.Blocks[:(bytes+blockBytes-1)/blockBytes] {
		h.Write(binary.LittleEndian.AppendUint64(word[:0], block))
	}
	h.Write(binary.LittleEndian.AppendUint64(word[:0], uint64(bytes))) //nolint:gosec // not negative
	return h.Sum64()
}
