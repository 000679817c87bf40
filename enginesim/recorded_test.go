package enginesim

import (
	"bufio"
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// recording is a request to vLLM 0.32.0 and what it answered: one JSON value, or
// the data of each event of a stream. Texts and lists of ids are shortened.
type recording struct {
	Name    string           `json:"name"`
	Path    string           `json:"path"`
	Request jsontext.Value   `json:"request"`
	Status  int              `json:"status"`
	Answer  []jsontext.Value `json:"answer"`
}

func recordings(t *testing.T) (all []recording) {
	t.Helper()
	file, err := os.Open("testdata/vllm-0.32.0.jsonl")
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var r recording
		require.NoError(t, json.Unmarshal(lines.Bytes(), &r))
		all = append(all, r)
	}
	require.NoError(t, lines.Err())
	return all
}

// shape is what a client's parser sees of a value, apart from its content: the
// members in order and the kind of each value. Equal neighbours in a list count
// once.
func shape(t *testing.T, value jsontext.Value) string {
	t.Helper()
	switch value.Kind() {
	case '{':
		decoder := jsontext.NewDecoder(bytes.NewReader(value))
		_, err := decoder.ReadToken()
		require.NoError(t, err)
		var members []string
		for decoder.PeekKind() != '}' {
			name, err := decoder.ReadValue()
			require.NoError(t, err)
			name = name.Clone()
			member, err := decoder.ReadValue()
			require.NoError(t, err)
			members = append(members, string(name)+":"+shape(t, member.Clone()))
		}
		return "{" + strings.Join(members, ",") + "}"
	case '[':
		var items []jsontext.Value
		require.NoError(t, json.Unmarshal(value, &items))
		var shapes []string
		for _, item := range items {
			if s := shape(t, item); len(shapes) == 0 || shapes[len(shapes)-1] != s {
				shapes = append(shapes, s)
			}
		}
		return "[" + strings.Join(shapes, ",") + "]"
	}
	return value.Kind().String()
}

// answered are the JSON values of an answer, as in a recording.
func answered(t *testing.T, body string) (values []jsontext.Value) {
	t.Helper()
	if !strings.HasPrefix(body, "data: ") {
		return []jsontext.Value{jsontext.Value(body)}
	}
	for event := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		require.True(t, ok, event)
		if data == "[DONE]" {
			data = `"[DONE]"`
		}
		values = append(values, jsontext.Value(data))
	}
	return values
}

func TestAnswersHaveTheShapeOfRecordedOnes(t *testing.T) {
	opts := instantOptions()
	opts.Models = []string{"tiny-qwen3"}
	server, err := NewServer(opts)
	require.NoError(t, err)
	for _, r := range recordings(t) {
		t.Run(r.Name, func(t *testing.T) {
			got := post(server, r.Path, string(r.Request))
			require.Equal(t, r.Status, got.Code)
			values := answered(t, got.Body.String())
			require.Len(t, values, len(r.Answer))
			for i, value := range values {
				require.Equal(t, shape(t, r.Answer[i]), shape(t, value), "event %d", i)
			}
			if r.Status != 200 {
				require.JSONEq(t, string(r.Answer[0]), got.Body.String())
			}
		})
	}
}
