package prompt

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorded is a request that a vLLM 0.32.0 was sent and the token ids that it made of it.
type recorded struct {
	Note string
	Path string
	Body string
	IDs  []int

	stream string
}

func readRecorded(t *testing.T) (all []recorded) {
	t.Helper()
	file, err := os.Open("testdata/vllm-0.32.0.jsonl")
	require.NoError(t, err)
	defer file.Close()
	lines := bufio.NewScanner(file)
	var p Prompt
	for lines.Scan() {
		var r recorded
		require.NoError(t, json.Unmarshal(lines.Bytes(), &r))
		r.stream = streamOf(t, &p, r.Path, []byte(r.Body))
		require.False(t, p.Partial)
		all = append(all, r)
	}
	require.NoError(t, lines.Err())
	return all
}

// unused are the recorded requests with something in them that may enter a prompt but that
// this model's template and tokenizer make nothing of. No router can know.
var unused = []string{"reasoning_effort", "add_special_tokens false"}

func TestRecordedPromptsMatchAsTheEnginesTokensDo(t *testing.T) {
	all := readRecorded(t)
	equal := 0
	for i, a := range all {
		for _, b := range all[:i] {
			if slices.Contains(unused, a.Note) || slices.Contains(unused, b.Note) {
				continue
			}
			if (a.Path == tokenGeneratePath) != (b.Path == tokenGeneratePath) {
				continue // nothing here tells what text ids stand for
			}
			require.Equal(t, slices.Equal(a.IDs, b.IDs), a.stream == b.stream, "%s and %s", a.Note, b.Note)
			if a.stream == b.stream {
				equal++
			}
		}
	}
	require.Greater(t, equal, 10)
}

func TestRecordedPromptsThatGoOnShareTheEnginesTokens(t *testing.T) {
	all := readRecorded(t)
	longer := 0
	for _, a := range all {
		for _, b := range all {
			if len(a.stream) >= len(b.stream) || !strings.HasPrefix(b.stream, a.stream) {
				continue
			}
			longer++
			shared := 0
			for shared < min(len(a.IDs), len(b.IDs)) && a.IDs[shared] == b.IDs[shared] {
				shared++
			}
			// All but the words with which the template asks for an answer.
			require.GreaterOrEqual(t, shared, len(a.IDs)-8, "%s and %s", a.Note, b.Note)
		}
	}
	require.Greater(t, longer, 5)
}
