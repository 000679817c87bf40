package kvindex

// Units says what the ids of a prompt or of an event stand for.
type Units uint8

const (
	// Tokens are what most engines cache by.
	Tokens Units = iota

	// Pairs are what SGLang caches by where it speculates with EAGLE: each
	// token with the one after it. [AppendPairs] makes them.
	Pairs
)

// Prompt is what an engine will compute, as the index sees it.
type Prompt struct {
	// Tokens are the ids, with the placeholders of media expanded. The index
	// reads them during the call and keeps nothing of the slice.
	Tokens []uint32

	// Units says what Tokens stand for.
	Units Units

	// Adapter is the name of the LoRA adapter, if any.
	Adapter string

	// Salt is the request's cache salt, if any.
	Salt string

	// Media are the items whose placeholders are among Tokens, in their order.
	Media []Media
}

// Media is an image, a sound or a video in a prompt.
type Media struct {
	Identifier string // what the engine calls the content
	Offset     int    // of its placeholder in the prompt, in tokens
	Length     int    // of its placeholder, in tokens
}

// MediaKey is a media item that touches a block, as events tell of it.
type MediaKey struct {
	Identifier string // what the engine calls the content
	Offset     int    // of its placeholder in the block, in tokens; negative if it began before
}

// AppendPairs appends the pairs of neighbours among the tokens, one fewer than
// there are tokens.
func AppendPairs(pairs, tokens []uint32) []uint32 {
	for i := 1; i < len(tokens); i++ {
		pairs = append(pairs, Pair(tokens[i-1], tokens[i]))
	}
	return pairs
}

// Pair folds two token ids into one id. Two pairs may get the same, which
// makes no match as long as it does not happen to a whole block of them.
func Pair(first, second uint32) uint32 {
	folded := fold(two(first, second)^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return uint32(folded >> 32)
}

// appendKeys appends the keys of the prompt's whole blocks.
func (h *hasher) appendKeys(keys []uint64, p *Prompt, size int) []uint64 {
	key := h.root(size, p.Adapter, p.Salt, p.Units)
	media, tokens := p.Media, p.Tokens
	if size == 16 && len(media) == 0 {
		return h.appendSixteens(keys, tokens, key)
	}
	for start := 0; len(tokens) >= size; start += size {
		block := h.block(tokens[:size])
		if len(media) > 0 {
			block, media = h.mediaAt(block, media, start, start+size)
		}
		key = h.next(key, block)
		keys = append(keys, key)
		tokens = tokens[size:]
	}
	return keys
}

// appendSixteens does the same for blocks of 16 tokens and nothing else, the
// most common, in half the time.
func (h *hasher) appendSixteens(keys []uint64, tokens []uint32, key uint64) []uint64 {
	s := h.secret
	for len(tokens) >= 16 {
		t := (*[16]uint32)(tokens)
		tokens = tokens[16:]
		block := fold(two(t[0], t[1])^s[0], two(t[2], t[3])^s[1]) ^
			fold(two(t[4], t[5])^s[2], two(t[6], t[7])^s[3]) ^
			fold(two(t[8], t[9])^s[4], two(t[10], t[11])^s[5]) ^
			fold(two(t[12], t[13])^s[6], two(t[14], t[15])^s[7])
		key = h.next(key, block^fold(s[10], s[11]))
		keys = append(keys, key)
	}
	return keys
}

// mediaAt folds in the items that touch a block, and returns those that may
// touch the next.
func (h *hasher) mediaAt(block uint64, media []Media, start, end int) (uint64, []Media) {
	for len(media) > 0 && media[0].Offset+media[0].Length <= start {
		media = media[1:]
	}
	for _, m := range media {
		if m.Offset >= end {
			break
		}
		if m.Offset+m.Length > start {
			block = h.media(block, MediaKey{Identifier: m.Identifier, Offset: m.Offset - start})
		}
	}
	return block, media
}
