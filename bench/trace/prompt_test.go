package trace

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/caddy-inference/caddy-inference/enginesim"
	"github.com/stretchr/testify/require"
)

func TestAPromptIsAsManyTokensAsTheTraceSays(t *testing.T) {
	complete := engine(t)
	for _, input := range []int{1, 2, 511, 512, 513, 1024, 5000, 120_000} {
		r := Request{Input: input, Blocks: numbered(uint64(input)<<20, input/BlockTokens+1)}
		require.Len(t, r.Text(), 4*input)
		prompt, _ := complete(&r)
		require.Equal(t, input, prompt)
	}
}

func TestEqualIdsAreEqualTextForAnEngine(t *testing.T) {
	complete := engine(t)
	first := Request{Input: 10*BlockTokens + 100, Blocks: numbered(0, 11)}
	_, cached := complete(&first)
	require.Zero(t, cached)

	for _, common := range []int{10, 4, 1, 0} {
		r := Request{Input: first.Input, Blocks: numbered(uint64(common+1)<<20, 11)}
		copy(r.Blocks, first.Blocks[:common])
		_, cached = complete(&r)
		require.Equal(t, common*BlockTokens, cached)
	}
}

func TestTextsOfNeighbouringIdsHaveNothingInCommon(t *testing.T) {
	const ids = 4096
	counts := make(map[string]int) // of first words
	beginnings := make(map[string]bool)
	same := 0
	var before string
	for id := range uint64(ids) {
		r := Request{Input: BlockTokens, Blocks: []uint64{id}}
		text := r.Text()
		counts[text[:wordBytes]]++
		beginnings[text[:10*wordBytes]] = true
		if before != "" && before[:wordBytes] == text[:wordBytes] {
			same++
		}
		before = text
	}
	require.Len(t, beginnings, ids)
	require.Len(t, counts, len(words))
	for word, n := range counts { // 32 on average
		require.Less(t, n, 64, word)
	}
	require.Less(t, same, 64) // 32 on average
}

func TestTheVocabularyIsWordsOfThreeLetters(t *testing.T) {
	fields := strings.Fields(vocabulary)
	require.Len(t, fields, len(words))
	seen := make(map[string]bool)
	for i, word := range fields {
		require.Regexp(t, "^[a-z]{3}$", word)
		require.False(t, seen[word], word)
		seen[word] = true
		require.Equal(t, " "+word, string(words[i][:]))
	}
}

func TestAPromptIsTheSameHoweverItIsRead(t *testing.T) {
	r := Request{Input: 3*BlockTokens + 77, Blocks: numbered(5, 4)}
	text := r.Text()
	for name, reader := range map[string]io.Reader{
		"as a whole":     r.Prompt(),
		"byte by byte":   iotest.OneByteReader(r.Prompt()),
		"in halves":      iotest.HalfReader(r.Prompt()),
		"as any reader":  struct{ io.Reader }{r.Prompt()},
		"within another": io.MultiReader(r.Prompt()),
	} {
		got, err := io.ReadAll(reader)
		require.NoError(t, err, name)
		require.Equal(t, text, string(got), name)
	}
	require.NoError(t, iotest.TestReader(r.Prompt(), []byte(text)))

	p := r.Prompt()
	require.Equal(t, len(text), p.Len())
	_, err := io.ReadFull(p, make([]byte, 3000))
	require.NoError(t, err)
	require.Equal(t, len(text)-3000, p.Len())
	var rest strings.Builder
	n, err := p.WriteTo(&rest)
	require.NoError(t, err)
	require.EqualValues(t, len(text)-3000, n)
	require.Equal(t, text[3000:], rest.String())
	require.Zero(t, p.Len())
}

func TestWritingAPromptStopsWhereTheWriterFails(t *testing.T) {
	r := Request{Input: 2 * BlockTokens, Blocks: numbered(5, 2)}
	p := r.Prompt()
	n, err := p.WriteTo(&failing{left: 3000})
	require.ErrorIs(t, err, io.ErrShortWrite)
	require.EqualValues(t, 3000, n)
	require.Equal(t, 4*r.Input-3000, p.Len())
}

func TestReadingAPromptAllocatesNothing(t *testing.T) {
	r := Request{Input: 100 * BlockTokens, Blocks: numbered(5, 100)}
	b := make([]byte, 1000)
	p := r.Prompt()
	require.Zero(t, testing.AllocsPerRun(100, func() { p.Read(b) })) //nolint:errcheck // it has more than that
}

func BenchmarkPrompt(b *testing.B) {
	r := Request{Input: 120_000, Blocks: numbered(5, 235)}
	buffer := make([]byte, 32<<10)
	b.SetBytes(int64(4 * r.Input))
	b.ReportAllocs()
	for b.Loop() {
		p := r.Prompt()
		for n := 1; n > 0; n, _ = p.Read(buffer) {
			continue
		}
	}
}

// failing is a writer that takes so many bytes.
type failing struct{ left int }

func (f *failing) Write(b []byte) (int, error) {
	n := min(len(b), f.left)
	f.left -= n
	if n < len(b) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// numbered returns ids that follow each other.
func numbered(from uint64, n int) []uint64 {
	ids := make([]uint64, n)
	for i := range ids {
		ids[i] = from + uint64(i)
	}
	return ids
}

// engine starts a simulated engine, and returns what sends it a request and tells
// the prompt's tokens and those of them that it had, as it counts them.
func engine(t *testing.T) (complete func(*Request) (prompt, cached int)) {
	options := enginesim.DefaultOptions()
	options.PrefillRate = 0
	server, err := enginesim.NewServer(options)
	require.NoError(t, err)
	listener := httptest.NewServer(server)
	t.Cleanup(listener.Close)
	return func(r *Request) (prompt, cached int) {
		body := io.MultiReader(strings.NewReader(`{"max_tokens":1,"prompt":"`), r.Prompt(), strings.NewReader(`"}`))
		response, err := listener.Client().Post(listener.URL+"/v1/completions", "application/json", body)
		require.NoError(t, err)
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, response.StatusCode, "%.200s", answer)
		var said struct {
			Usage struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		require.NoError(t, json.Unmarshal(answer, &said))
		return said.Usage.Prompt, said.Usage.Details.Cached
	}
}
