package inference

import (
	"github.com/caddy-inference/caddy-inference/kvevents"
	"github.com/caddy-inference/caddy-inference/kvindex"
)

// converter makes what the index takes of an engine's events. Its memory is used again.
type converter struct {
	event   kvindex.Stored
	dropped kvindex.Dropped
}

// stored returns an event as the index takes it, until the next call.
func (c *converter) stored(e *kvevents.Event) *kvindex.Stored {
	s := &c.event
	s.Root, s.Parent = !e.HasParent, uint64(e.Parent)
	s.Names = appendNames(s.Names[:0], e.Hashes)
	s.Tokens, s.Units = append(s.Tokens[:0], e.Tokens...), kvindex.Tokens
	if e.TokenWidth == 2 {
		s.Units = kvindex.Pairs
		s.Tokens = s.Tokens[:0]
		for i := 0; i+1 < len(e.Tokens); i += 2 {
			s.Tokens = append(s.Tokens, kvindex.Pair(e.Tokens[i], e.Tokens[i+1]))
		}
	}
	s.BlockSize, s.Tier = e.BlockSize, tierOf(e)
	s.Group, s.Kind, s.Window = e.Group, kinds[e.Attention], e.Window
	s.Adapter, s.Salt = string(e.LoRAName), string(e.CacheSalt)
	c.extra(e)
	return s
}

// kinds are the index's names for kinds of cache groups. Of one that is not known it
// credits nothing.
var kinds = [...]string{
	kvevents.AttentionUnsaid:  "",
	kvevents.AttentionFull:    kvindex.FullAttention,
	kvevents.AttentionSliding: kvindex.SlidingWindow,
	kvevents.AttentionOther:   "other",
}

// extra takes in what besides its tokens tells each block apart. vLLM has an adapter's name
// and a salt there, the latter at the first block of a prompt only. What no prompt can show
// stands as a medium that no prompt has.
func (c *converter) extra(e *kvevents.Event) {
	s := &c.event
	s.Media = s.Media[:0]
	for i, keys := range e.ExtraKeys {
		for _, k := range keys {
			switch {
			case k.Kind == kvevents.ExtraText && string(k.Tag) != "mm":
				c.text(e, k)
			case k.Kind == kvevents.ExtraMedia:
				c.medium(i, kvindex.MediaKey{Identifier: string(k.Text), Offset: int(k.Offset)})
			default:
				c.medium(i, kvindex.MediaKey{Identifier: "\x00" + string(k.Raw)})
			}
		}
	}
}

// text takes in an adapter's name or a salt, of which older engines do not say which it is.
func (c *converter) text(e *kvevents.Event, k kvevents.ExtraKey) {
	s := &c.event
	switch {
	case string(k.Tag) == "lora", len(k.Tag) == 0 && string(k.Text) == string(e.LoRAName):
		if s.Adapter == "" {
			s.Adapter = string(k.Text)
		}
	default:
		s.Salt = string(k.Text)
	}
}

// medium adds an item that touches block i.
func (c *converter) medium(i int, key kvindex.MediaKey) {
	s := &c.event
	for len(s.Media) <= i {
		if n := len(s.Media); n < cap(s.Media) {
			s.Media = s.Media[:n+1]
			s.Media[n] = s.Media[n][:0]
		} else {
			s.Media = append(s.Media, nil)
		}
	}
	s.Media[i] = append(s.Media[i], key)
}

// appendNames appends an engine's names for blocks.
func appendNames(names []uint64, hashes []kvevents.Hash) []uint64 {
	for _, h := range hashes {
		names = append(names, uint64(h))
	}
	return names
}

// tierOf returns the index's tier of an event; that of the engine is known.
func tierOf(e *kvevents.Event) kvindex.Tier {
	return kvindex.Tier(e.Tier - kvevents.TierDevice)
}
