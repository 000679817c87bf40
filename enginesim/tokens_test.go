package enginesim

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const english = `Requests wait in one queue, first come first served. One prompt at a time is prefilled, and the
lookup in the prefix cache happens when its turn has come; 12,345 tokens take a second and a half. Whoever
leaves early gives the engine's time back to the others, and what was done already stays cached.`

func TestEnglishIsAboutFourBytesAToken(t *testing.T) {
	ids := appendTokens(nil, english)
	perToken := float64(len(english)) / float64(len(ids))
	require.InDelta(t, 4, perToken, 0.5)
}

func TestEachWordOfAnAnswerIsOneToken(t *testing.T) {
	for seed := range uint64(1000) {
		for pos := range 3 {
			text, id := word(seed, pos)
			require.Equal(t, []uint32{id}, appendTokens(nil, text))
		}
	}
}

func TestAnswerSentBackHasTheIDsItWasMadeOf(t *testing.T) {
	var text strings.Builder
	var ids []uint32
	for pos := range 200 {
		piece, id := word(42, pos)
		text.WriteString(piece)
		ids = append(ids, id)
	}
	require.Equal(t, ids, appendTokens(nil, text.String()))
}

func TestImagesHaveTheirOwnPlaceholders(t *testing.T) {
	one, again, other := appendImage(nil, 1), appendImage(nil, 1), appendImage(nil, 2)
	require.Len(t, one, imageTokens)
	require.Equal(t, one, again)
	require.NotEqual(t, one[0], other[0])
}

func FuzzTokens(f *testing.F) {
	f.Add("")
	f.Add(english)
	f.Add("  \n\tdef f(x):\n        return x ** 2  # 東京 😀\xff\xfe")
	f.Fuzz(func(t *testing.T, text string) {
		at, pieces := 0, 0
		for at < len(text) {
			end := pieceEnd(text, at)
			require.Greater(t, end, at)
			require.LessOrEqual(t, end-at, 6)
			at = end
			pieces++
		}
		require.Equal(t, len(text), at)
		ids := appendTokens(nil, text)
		require.Len(t, ids, pieces)
		require.Equal(t, ids, appendTokens(nil, []byte(text)))
		for _, id := range ids {
			require.GreaterOrEqual(t, id, firstPiece)
			require.Less(t, id, uint32(vocabSize))
		}
		// What follows a message's border never changes what is before it.
		more := appendTokens(append(slices.Clip(ids), messageEnd), "more")
		require.True(t, slices.Equal(ids, more[:len(ids)]))
	})
}

func BenchmarkTokens16KiB(b *testing.B) {
	text := strings.Repeat(english, 16<<10/len(english)+1)[:16<<10]
	ids := make([]uint32, 0, len(text))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		ids = appendTokens(ids[:0], text)
	}
}
