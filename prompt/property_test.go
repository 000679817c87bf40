package prompt

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tries is how often a property is tried: the long form is for LONG=1.
func tries(short, long int) int {
	if os.Getenv("LONG") == "1" {
		return long
	}
	return short
}

// streamOf parses a body and returns its key stream.
func streamOf(t testing.TB, p *Prompt, path string, body []byte) string {
	t.Helper()
	Parse(p, path, body)
	var b bytes.Buffer
	n, err := p.WriteTo(&b)
	require.NoError(t, err)
	require.EqualValues(t, b.Len(), n)
	return b.String()
}

func TestStreamIsThatOfTheOracle(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	m := maker{rnd}
	var p Prompt
	for range tries(30_000, 1_000_000) {
		path, v := m.request()
		body := []byte(spell(rnd, v))
		require.True(t, json.Valid(body), "%s", body)
		want, err := oracleStream(path, body)
		require.NoError(t, err)
		require.Equal(t, want, streamOf(t, &p, path, body), "%s", body)
		require.False(t, p.Partial, "%s", body)
		requireConsistent(t, &p, want)
	}
}

func TestSpellingDoesNotChangeTheStream(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	m := maker{rnd}
	var p, q Prompt
	for range tries(10_000, 1_000_000) {
		path, v := m.request()
		one, two := []byte(spell(rnd, v)), []byte(spell(rnd, v))
		require.Equal(t, streamOf(t, &p, path, one), streamOf(t, &q, path, two), "%s\n%s", one, two)
		require.Equal(t, p.Model, q.Model)
		require.Equal(t, []int{p.Prompts, p.TextBytes, p.TokenIDs, p.Media, p.OtherBytes}, []int{q.Prompts, q.TextBytes, q.TokenIDs, q.Media, q.OtherBytes})
	}
}

// frame is one frame of a key stream.
type frame struct {
	kind    Kind
	content string
}

// takeApart reads a key stream knowing only what the package's comment says of it.
func takeApart(t testing.TB, stream string) (frames []frame) {
	t.Helper()
	for stream != "" {
		require.Equal(t, byte('"'), stream[0])
		require.GreaterOrEqual(t, len(stream), 2)
		kind, rest := Kind(stream[1]), stream[2:]
		var n int
		switch kind {
		case KindValue, KindParameters, KindStrict, KindInput, KindToolError:
			d := json.NewDecoder(strings.NewReader(rest))
			var v json.RawMessage
			require.NoError(t, d.Decode(&v), "%q", rest)
			n = len(v)
		default:
			for n < len(rest) && rest[n] != '"' {
				if rest[n] == '\\' {
					n++
				}
				n++
			}
		}
		frames = append(frames, frame{kind, rest[:n]})
		stream = rest[n:]
	}
	return frames
}

func TestStreamCanBeTakenApartInOneWayOnly(t *testing.T) {
	rnd := rand.New(rand.NewPCG(9, 10))
	m := maker{rnd}
	var p Prompt
	for range tries(10_000, 1_000_000) {
		path, v := m.request()
		body := []byte(spell(rnd, v))
		frames := takeApart(t, streamOf(t, &p, path, body))
		require.Len(t, frames, len(p.Segments))
		for i, f := range frames {
			seg := p.Segments[i]
			require.Equal(t, seg.Kind, f.kind, "%s", body)
			require.Len(t, f.content, seg.Len(), "%s", body)
			if seg.Canonical() {
				require.Equal(t, string(p.Raw(seg)), f.content)
			}
		}
	}
}

// requireConsistent checks what must hold of any body, however broken.
func requireConsistent(t testing.TB, p *Prompt, stream string) {
	t.Helper()
	length, text := 0, 0
	for _, seg := range p.Segments {
		length += 2 + seg.Len()
		if seg.Kind.text() {
			text += seg.Len()
		}
	}
	require.Len(t, stream, length)
	if p.Prompts == 1 {
		require.Equal(t, text, p.TextBytes)
		require.Zero(t, p.OtherBytes)
	} else {
		require.GreaterOrEqual(t, p.TextBytes, text)
		require.GreaterOrEqual(t, p.OtherBytes, frameLen+p.TextBytes-text)
	}
	require.LessOrEqual(t, len(p.Segments), maxSegments+64)
	require.GreaterOrEqual(t, p.N, 1)
	require.GreaterOrEqual(t, p.MaxTokens, -1)
}
