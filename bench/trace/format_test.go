package trace

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTracesAreReadInOrderOfTime(t *testing.T) {
	requests, err := Read(strings.NewReader(`
{"timestamp": 3000, "input_length": 513, "output_length": 0, "hash_ids": [0, 7], "type": "chat"}

{"timestamp": 1.5, "input_length": 512, "output_length": 20, "hash_ids": [18446744073709551615, 1]}
`))
	require.NoError(t, err)
	require.Equal(t, []Request{
		{At: 1500 * time.Microsecond, Input: 512, Output: 20, Blocks: []uint64{1<<64 - 1, 1}},
		{At: 3 * time.Second, Input: 513, Blocks: []uint64{0, 7}},
	}, requests)
}

func TestErrorsNameTheLineAndWhatIsWrongWithIt(t *testing.T) {
	const good = `{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}` + "\n"
	for _, test := range []struct{ input, want string }{
		{"", "there is no request in it"},
		{"\n \n", "there is no request in it"},
		{good + "{", "line 2: unexpected end of JSON input"},
		{good + "\n" + good + "[]", "line 4: json: cannot unmarshal array"},
		{good + `{"timestamp": -1}`, "line 2: timestamp is -1 ms: it must be between 0, the start of the trace, and 31622400000"},
		{`{"timestamp": 1800000000000}`, "line 1: timestamp is 1800000000000 ms: it must be"},
		{`{"timestamp": 31622400000.001}`, "line 1: timestamp is 31622400000.001 ms: it must be"},
		{`{"timestamp": -0.25}`, "line 1: timestamp is -0.25 ms: it must be"},
		{`{"timestamp": 1e300}`, "line 1: timestamp is 1e+300 ms: it must be"},
		{`{"timestamp": 1e400}`, "line 1: json: cannot unmarshal number"},
		{`{"input_length": 0}`, "line 1: input_length is 0: it must be between 1 and 16777216 tokens"},
		{`{"input_length": -5}`, "line 1: input_length is -5"},
		{`{"input_length": 1e20}`, "line 1: json: cannot unmarshal number"},
		{`{"input_length": 16777217}`, "line 1: input_length is 16777217"},
		{`{"input_length": 1, "output_length": -1}`, "line 1: output_length is -1: it must be between 0 and 16777216 tokens"},
		{`{"input_length": 1, "output_length": 16777217}`, "line 1: output_length is 16777217"},
		{`{"input_length": 1}`, "line 1: 0 hash_ids for an input_length of 1: it takes 1, one for each 512 tokens"},
		{`{"input_length": 1025, "hash_ids": [1, 2]}`, "line 1: 2 hash_ids for an input_length of 1025: it takes 3"},
		{`{"input_length": 1, "hash_ids": [-1]}`, "line 1: json: cannot unmarshal number -1"},
		{good + strings.Repeat(" ", maxLine), "line 2 is longer than 16777216 bytes"},
	} {
		requests, err := Read(strings.NewReader(test.input))
		require.ErrorContains(t, err, test.want)
		require.Nil(t, requests)
	}
}

func TestErrorsNameTheFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "bad.jsonl")
	require.NoError(t, os.WriteFile(name, []byte("{}\n"), 0o600))
	_, err := ReadFile(name)
	require.ErrorContains(t, err, name+": line 1: input_length is 0")
}

func TestGeneratedTracesAreReadBackAsTheyWereWritten(t *testing.T) {
	for _, name := range []string{"agents", "burst", "long", "unique"} { // shared is large and like them
		generated := made(name)[:900]
		file := filepath.Join(t.TempDir(), name)
		f, err := os.Create(file)
		require.NoError(t, err)
		require.NoError(t, Write(f, generated))
		require.NoError(t, f.Close())
		read, err := ByName(file, 1)
		require.NoError(t, err)
		require.Equal(t, generated, read)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]}`))
	f.Add([]byte(`{"timestamp": 1.0005, "input_length": 1, "hash_ids": [1]}` + "\n\n" + `{"timestamp": 0.1, "input_length": 1, "hash_ids": [1]}`))
	f.Add([]byte(`{"timestamp": 3.1622400000e10, "input_length": 1, "output_length": 1, "hash_ids": [1, 2]}`))
	f.Fuzz(func(t *testing.T, input []byte) {
		requests, err := Read(bytes.NewReader(input))
		if err != nil {
			return
		}
		var file bytes.Buffer
		require.NoError(t, Write(&file, requests))
		again, err := Read(&file)
		require.NoError(t, err)
		require.Equal(t, requests, again)
		for _, r := range requests {
			require.NoError(t, lineOf(&r).check())
		}
	})
}
