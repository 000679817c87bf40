package enginesim

// The toy tokenizer: a text is cut into pieces of one class of bytes, and a
// piece's id is a hash of it. English comes to about 4 bytes a token. Cutting
// looks at nothing but the bytes at hand, so a text's ids never depend on what
// follows a cut; texts that are tokenized on their own stay the same wherever
// they stand. Different pieces may share an id: nothing is ever decoded but the
// words that the engine itself makes up.

const (
	// vocabSize is the number of token ids. It is larger than any vocabulary in
	// use, so that real ids can be sent as prompts.
	vocabSize = 1 << 18

	// Ids below firstPiece are borders of messages.
	messageStart uint32 = 1
	roleEnd      uint32 = 2
	messageEnd   uint32 = 3
	toolsStart   uint32 = 4
	imagePad     uint32 = 5 // stands for a picture, whichever it is
	firstPiece   uint32 = 16

	// imageTokens is the number of placeholder tokens for a picture or a clip.
	imageTokens = 256
)

type byteClass uint8

const (
	other byteClass = iota
	letter
	digit
	space
)

// longest is the most bytes of a class in one piece.
var longest = [...]int{other: 1, letter: 5, digit: 3, space: 4}

var classes = func() (table [256]byteClass) {
	for b := range table {
		switch {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= 0x80:
			table[b] = letter
		case b >= '0' && b <= '9':
			table[b] = digit
		case b == ' ', b == '\t', b == '\r', b == '\n':
			table[b] = space
		}
	}
	return table
}()

// appendTokens appends the ids of text.
func appendTokens[T string | []byte](ids []uint32, text T) []uint32 {
	for at := 0; at < len(text); {
		end := pieceEnd(text, at)
		ids = append(ids, pieceID(text, at, end))
		at = end
	}
	return ids
}

// expectedTokens is a guess at the number of tokens in a text, rather too high
// than too low.
func expectedTokens(bytes int) int { return bytes/3 + 8 }

// pieceEnd returns where the piece that starts at at ends. A single space
// belongs to the word behind it.
func pieceEnd[T string | []byte](text T, at int) int {
	if text[at] == ' ' && at+1 < len(text) && classes[text[at+1]] == letter {
		at++
	}
	class := classes[text[at]]
	end, limit := at+1, min(at+longest[class], len(text))
	for end < limit && classes[text[end]] == class {
		end++
	}
	return end
}

// pieceID hashes a piece, which is at most 6 bytes long, to its id.
func pieceID[T string | []byte](text T, from, to int) uint32 {
	v := uint64(1)
	for i := from; i < to; i++ {
		v = v<<8 | uint64(text[i])
	}
	h := v * 0x9e3779b97f4a7c15 >> 32
	return firstPiece + uint32(h*uint64(vocabSize-firstPiece)>>32) // below vocabSize
}

// appendPlaceholders appends what stands for a picture in vLLM: the same ids for all of
// them, told apart by their identifiers.
func appendPlaceholders(ids []uint32) []uint32 {
	for range imageTokens {
		ids = append(ids, imagePad)
	}
	return ids
}

// appendImage appends what stands for a picture in SGLang: other pictures have other
// ids, and the same picture has the same ones everywhere.
func appendImage(ids []uint32, digest uint64) []uint32 {
	for range imageTokens {
		digest = mix(digest, imageTokens)
		ids = append(ids, firstPiece+uint32((digest>>32)*uint64(vocabSize-firstPiece)>>32)) // below vocabSize
	}
	return ids
}

// words are what answers are made of. Each is one piece, with a space before it
// or without, so the ids of an answer sent back as history are those generated.
var words = [...]string{
	" the", " of", " and", " to", " in", " is", " that", " it", " was", " for",
	" on", " are", " with", " as", " his", " they", " be", " at", " one", " have",
	" this", " from", " or", " had", " by", " hot", " but", " some", " what", " there",
	" we", " can", " out", " were", " all", " your", " when", " up", " use", " word",
	" how", " said", " an", " each", " she", " which", " do", " their", " time", " if",
	" will", " way", " about", " many", " then", " them", " would", " write", " like", " so",
	" these", " her", " long", " make",
}

// word returns the text and the id of the token that follows pos others in an
// answer. seed stands for all that the answer depends on.
func word(seed uint64, pos int) (string, uint32) {
	text := words[mix(seed, uint64(pos))%uint64(len(words))] //nolint:gosec // pos is not negative
	if pos == 0 {
		text = text[1:]
	}
	return text, pieceID(text, 0, len(text))
}
