package inference

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/kvevents"
	"github.com/caddy-inference/caddy-inference/kvindex"
)

// TestEventsComeToTheIndexAsTheyWereMeant converts all of them with one converter: nothing
// of one stays in the next.
func TestEventsComeToTheIndexAsTheyWereMeant(t *testing.T) {
	block := func(change func(*kvevents.Event)) *kvevents.Event {
		e := &kvevents.Event{
			Kind: kvevents.Stored, Hashes: []kvevents.Hash{7, 8}, Tokens: []uint32{1, 2, 3, 4}, TokenWidth: 1, BlockSize: 2, Tier: kvevents.TierDevice,
		}
		change(e)
		return e
	}
	text := func(tag, text string) kvevents.ExtraKey {
		return kvevents.ExtraKey{Kind: kvevents.ExtraText, Tag: []byte(tag), Text: []byte(text)}
	}
	image := kvevents.ExtraKey{Kind: kvevents.ExtraMedia, Text: []byte("cat"), Offset: -3}
	tests := map[string]struct {
		event    *kvevents.Event
		expected func(*kvindex.Stored)
	}{
		"plain":  {block(func(*kvevents.Event) {}), func(*kvindex.Stored) {}},
		"parent": {block(func(e *kvevents.Event) { e.HasParent, e.Parent = true, 5 }), func(s *kvindex.Stored) { s.Root, s.Parent = false, 5 }},
		"host":   {block(func(e *kvevents.Event) { e.Tier = kvevents.TierHost }), func(s *kvindex.Stored) { s.Tier = kvindex.Host }},
		"shared": {block(func(e *kvevents.Event) { e.Tier = kvevents.TierExternal }), func(s *kvindex.Stored) { s.Tier = kvindex.Remote }},
		"window": {block(func(e *kvevents.Event) { e.Group, e.Attention, e.Window = 1, kvevents.AttentionSliding, 64 }), func(s *kvindex.Stored) {
			s.Group, s.Kind, s.Window = 1, kvindex.SlidingWindow, 64
		}},
		"a kind that is not known": {block(func(e *kvevents.Event) { e.Attention = kvevents.AttentionOther }), func(s *kvindex.Stored) { s.Kind = "other" }},
		"pairs": {block(func(e *kvevents.Event) { e.TokenWidth, e.Tokens = 2, []uint32{1, 2, 2, 3, 3, 4, 4, 5} }), func(s *kvindex.Stored) {
			s.Units, s.Tokens = kvindex.Pairs, kvindex.AppendPairs(nil, []uint32{1, 2, 3, 4, 5})
		}},
		"SGLang's salt": {block(func(e *kvevents.Event) { e.CacheSalt = []byte("s") }), func(s *kvindex.Stored) { s.Salt = "s" }},
		"vLLM's salt":   {block(func(e *kvevents.Event) { e.ExtraKeys = [][]kvevents.ExtraKey{{text("", "s")}, nil} }), func(s *kvindex.Stored) { s.Salt = "s" }},
		"a salt with its name": {block(func(e *kvevents.Event) {
			e.ExtraKeys = [][]kvevents.ExtraKey{{text("cache_salt", "s")}, nil}
		}), func(s *kvindex.Stored) { s.Salt = "s" }},
		"an adapter and a salt": {block(func(e *kvevents.Event) {
			e.LoRAName = []byte("a")
			e.ExtraKeys = [][]kvevents.ExtraKey{{text("", "a"), text("", "s")}, {text("", "a")}}
		}), func(s *kvindex.Stored) { s.Adapter, s.Salt = "a", "s" }},
		"an adapter with its tag": {block(func(e *kvevents.Event) { e.ExtraKeys = [][]kvevents.ExtraKey{{text("lora", "a")}} }), func(s *kvindex.Stored) { s.Adapter = "a" }},
		"an image": {block(func(e *kvevents.Event) { e.ExtraKeys = [][]kvevents.ExtraKey{nil, {image}} }), func(s *kvindex.Stored) {
			s.Media = [][]kvindex.MediaKey{{}, {{Identifier: "cat", Offset: -3}}}
		}},
		"what no prompt shows": {block(func(e *kvevents.Event) {
			e.ExtraKeys = [][]kvevents.ExtraKey{{{Kind: kvevents.ExtraBytes, Raw: []byte("digest")}}}
		}), func(s *kvindex.Stored) { s.Media = [][]kvindex.MediaKey{{{Identifier: "\x00digest"}}} }},
	}
	var c converter
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			expected := kvindex.Stored{Root: true, Names: []uint64{7, 8}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2, Media: [][]kvindex.MediaKey{}}
			test.expected(&expected)
			got := *c.stored(test.event)
			got.Media = append([][]kvindex.MediaKey{}, got.Media...)
			require.Len(t, got.Media, len(expected.Media))
			for i := range expected.Media {
				require.ElementsMatch(t, expected.Media[i], got.Media[i])
			}
			got.Media, expected.Media = nil, nil
			require.Equal(t, expected, got)
		})
	}
}

// TestRemovalsReachTheIndexInOrder stores a block, removes it and stores it again in one
// batch, in two tiers.
func TestRemovalsReachTheIndexInOrder(t *testing.T) {
	s := newState()
	w := newWorker(s.fleet.Join("gpu1:8000"))
	f := &feed{state: s, worker: w}
	handle := s.index.Add()
	f.handle.Store(&handle)
	stored := func(tier kvevents.Tier) kvevents.Event {
		return kvevents.Event{Kind: kvevents.Stored, Hashes: []kvevents.Hash{7, 8}, Tokens: []uint32{1, 2, 3, 4}, TokenWidth: 1, BlockSize: 2, Tier: tier}
	}
	removed := func(tier kvevents.Tier, hashes ...kvevents.Hash) kvevents.Event {
		return kvevents.Event{Kind: kvevents.Removed, Hashes: hashes, Tier: tier}
	}
	held := func(tier kvindex.Tier) int {
		var m kvindex.Matches
		s.index.Lookup(&kvindex.Prompt{Tokens: []uint32{1, 2, 3, 4, 5}}, s.clock.now(), &m)
		return m.HeldIn(handle, tier)
	}
	device, host := kvevents.TierDevice, kvevents.TierHost
	f.Apply(&kvevents.Batch{Events: []kvevents.Event{stored(device), removed(device, 8), removed(device, 7), stored(device)}})
	require.Equal(t, 4, held(kvindex.Device))
	f.Apply(&kvevents.Batch{Events: []kvevents.Event{stored(host), removed(device, 8), removed(host, 8), removed(device, 7)}})
	require.Equal(t, 0, held(kvindex.Device))
	require.Equal(t, 2, held(kvindex.Host))
	f.Apply(&kvevents.Batch{Events: []kvevents.Event{stored(device), {Kind: kvevents.Cleared}}})
	require.Equal(t, 0, held(kvindex.Host))
	f.Apply(&kvevents.Batch{Events: []kvevents.Event{stored(kvevents.TierUnknown)}})
	require.Equal(t, 0, held(kvindex.Remote))
	f.Apply(&kvevents.Batch{Events: []kvevents.Event{stored(device)}})
	require.Equal(t, 4, held(kvindex.Device))
}
