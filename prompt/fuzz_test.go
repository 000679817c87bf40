package prompt

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// fuzzPaths are a path of each API; the corpus has their numbers, so new ones go last.
var fuzzPaths = []string{
	chatPath, completionsPath, messagesPath, embeddingsPath, responsesPath, generatePath, tokenGeneratePath,
	poolingPath, classifyPath, scorePath, rerankPath, "/tokenize", "/v1/foo",
}

// FuzzParse feeds any bytes. Whatever they are, nothing panics, the stream is always the
// same and of the length that the segments say, and of valid JSON it is the oracle's.
func FuzzParse(f *testing.F) {
	for _, pair := range pairs {
		for i, path := range fuzzPaths {
			if path == pair.path && len(pair.a) < 1000 {
				f.Add(uint8(i), []byte(pair.a))
				f.Add(uint8(i), []byte(pair.b))
			}
		}
	}
	for i, path := range fuzzPaths {
		for _, body := range inOrder[path] {
			f.Add(uint8(i), []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, n uint8, body []byte) {
		path := fuzzPaths[int(n)%len(fuzzPaths)]
		before := bytes.Clone(body)
		var p, q Prompt
		stream := streamOf(t, &p, path, body)
		requireConsistent(t, &p, stream)
		streamOf(t, &q, messagesPath, []byte(inOrder[messagesPath][0]))
		require.Equal(t, stream, streamOf(t, &q, path, body), "a used prompt and a new one")
		require.Equal(t, before, body)
		if want, ok := oracleReads(path, body); ok && !p.Partial {
			require.Equal(t, want, stream)
		}
	})
}

// oracleReads returns the oracle's stream for bodies that encoding/json reads as they
// stand: it puts U+FFFD for bytes that are not UTF-8 and for half surrogate pairs.
func oracleReads(path string, body []byte) (string, bool) {
	body = bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))
	if !json.Valid(body) || !utf8.Valid(body) || bytes.Contains(bytes.ToLower(body), []byte(`\ud`)) {
		return "", false
	}
	stream, err := oracleStream(path, body)
	return stream, err == nil
}

// FuzzCut cuts a body where it likes: what is read of it must be there in every longer cut
// of the same text.
func FuzzCut(f *testing.F) {
	f.Add("text \n \u00e9 \"quoted\"", 20)
	f.Add("\x00\x1f😀\\", 3)
	f.Fuzz(func(t *testing.T, text string, cut int) {
		quoted, err := json.Marshal(text)
		require.NoError(t, err)
		body := []byte(`{"messages":[{"role":"user","content":` + string(quoted) + `}]}`)
		cut = max(0, min(cut, len(body)))
		var p, q Prompt
		part, whole := streamOf(t, &p, chatPath, body[:cut]), streamOf(t, &q, chatPath, body)
		require.True(t, strings.HasPrefix(whole, part), "%q of %q", part, whole)
	})
}

// FuzzEqual spells a made-up request in two ways, which must not show in the stream.
func FuzzEqual(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed, seed+1)
	}
	f.Fuzz(func(t *testing.T, seed, spelling uint64) {
		m := maker{rand.New(rand.NewPCG(seed, 0))}
		path, v := m.request()
		var p, q Prompt
		one := []byte(spell(rand.New(rand.NewPCG(spelling, 1)), v))
		two := []byte(spell(rand.New(rand.NewPCG(spelling, 2)), v))
		require.Equal(t, streamOf(t, &p, path, one), streamOf(t, &q, path, two))
	})
}
