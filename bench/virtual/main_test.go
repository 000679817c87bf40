package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryCombinationIsReplayed(t *testing.T) {
	file := small(t)
	printed, err := virtual("-trace", file+","+file, "-capacity", "8192,4096", "-rules", "round_robin,cache_aware", "-routers", "1,2", "-belief", "1,0", "-json")
	require.NoError(t, err)
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(printed), &rows))
	require.Len(t, rows, 2*2*2*2*2)
	require.Equal(t, rows[:16], rows[16:])
	require.Equal(t, row{
		Trace: file, Capacity: 8192, Rule: "round_robin", Routers: 1, Belief: 1,
		TTFTMean: 0.256, P50: 0.256, P90: 0.256, P99: 0.256, Busiest: 4,
	}, rows[0])
	require.Equal(t, row{
		Trace: file, Capacity: 8192, Rule: "cache_aware", Routers: 1, Belief: 1,
		TTFTMean: 0.16, P50: 0.064, P90: 0.256, P99: 0.256, Hit: 0.375, Busiest: 8,
	}, rows[1])
	require.Equal(t, "cache_aware", rows[15].Rule)
	require.Equal(t, 4096, rows[15].Capacity)
	require.Equal(t, 2, rows[15].Routers)
	require.Zero(t, rows[15].Belief)
}

func TestATableIsPrintedForPeople(t *testing.T) {
	file := small(t)
	printed, err := virtual("-trace", file, "-capacity", "8192", "-rules", "cache_aware")
	require.NoError(t, err)
	lines := strings.Split(printed, "\n")
	require.Equal(t, file+": 2 requests in 2s, on average 2048 tokens in (37.5 % of them seen before) and 1 out", lines[0])
	require.Equal(t, strings.Fields("trace capacity routers belief rule TTFT mean, s p50 p90 p99 hit busiest/mean"), strings.Fields(lines[2]))
	require.Equal(t, strings.Fields(file+" 8192 1 1 cache_aware 0.160 0.064 0.256 0.256 0.375 8.00"), strings.Fields(lines[3]))
}

func TestEnginesMayBeUnlikeEachOther(t *testing.T) {
	args := []string{"-trace", small(t), "-capacity", "8192", "-rules", "round_robin", "-speeds", "0.5,2"}
	printed, err := virtual(append(args, "-json")...)
	require.NoError(t, err)
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(printed), &rows))
	require.Equal(t, []float64{0.5, 2}, rows[0].Speeds)
	require.Equal(t, 0.128, rows[0].P50)
	require.Equal(t, 0.512, rows[0].P99)

	first, err := virtual(append(args, "-noise", "0.1")...)
	require.NoError(t, err)
	require.Contains(t, first, "\nspeeds: [0.5 2]\nnoise: 0.1\n")
	second, err := virtual(append(args, "-noise", "0.1", "-seed", "2")...)
	require.NoError(t, err)
	require.NotEqual(t, first, second)
}

func TestThePrefixThatAPromptIsPlacedByMayBeLonger(t *testing.T) {
	args := []string{"-trace", "agents", "-capacity", "131072", "-rules", "prefix_hash"}
	usual, err := virtual(args...)
	require.NoError(t, err)
	long, err := virtual(append(args, "-prefix", "65536")...)
	require.NoError(t, err)
	require.NotEqual(t, usual, long)
	said, err := virtual(append(args, "-prefix", "1024")...)
	require.NoError(t, err)
	require.Equal(t, usual, said)
}

func TestAGeneratedTraceIsWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "long.jsonl")
	printed, err := virtual("-trace", "long", "-seed", "2", "-write", file)
	require.NoError(t, err)
	require.Contains(t, printed, file+": 1077 requests in 20m0s")
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, 1077, bytes.Count(content, []byte("\n")))
}

func TestWhatCannotBeDoneIsSaid(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"agents"}, `"agents": there are only flags, see -h`},
		{[]string{"-speed", "2"}, "flag provided but not defined: -speed"},
		{[]string{"-trace", "agent"}, `trace "agent" is neither a file nor one of agents, burst, long, shared, unique`},
		{[]string{"-trace", ""}, `-trace: "" has an empty value: give one or more, separated by commas`},
		{[]string{"-capacity", "131072,"}, `-capacity: "131072," has an empty value`},
		{[]string{"-capacity", "128k"}, `-capacity: "128k" is not a whole number`},
		{[]string{"-belief", "all"}, `-belief: "all" is not a number`},
		{[]string{"-capacity", "100"}, "a capacity of 100 tokens: it must be at least a block of 512"},
		{[]string{"-rules", "random"}, `-rules: there is no rule "random"`},
		{[]string{"-routers", "0"}, "0 routers: "},
		{[]string{"-belief", "-1"}, "a belief of -1 times"},
		{[]string{"-prefix", "0"}, "a prefix of 0 bytes: it must be at least 1"},
		{[]string{"-speeds", "1,fast"}, `-speeds: "fast" is not a number`},
		{[]string{"-speeds", "1,0"}, "a speed of 0, number 2: "},
		{[]string{"-noise", "2"}, "a noise of 2: it must be between 0 and 1"},
		{[]string{"-trace", "agents,long", "-write", "x"}, "-write: 2 traces do not go into one file"},
		{[]string{"-trace", "long", "-write", filepath.Join(t.TempDir(), "none", "x")}, "no such file or directory"},
	} {
		printed, err := virtual(test.args...)
		require.ErrorContains(t, err, test.want)
		require.Empty(t, printed)
	}
}

func TestHelpIsNoError(t *testing.T) {
	printed, err := virtual("-h")
	require.NoError(t, err)
	require.Contains(t, printed, "-belief share")
}

// virtual returns what the program prints.
func virtual(args ...string) (string, error) {
	var out bytes.Buffer
	err := run(args, &out)
	return out.String(), err
}

// small writes a trace of a prompt and the same again.
func small(t *testing.T) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "small.jsonl")
	const content = `{"timestamp": 0, "input_length": 2048, "output_length": 1, "hash_ids": [1, 2, 3, 4]}
{"timestamp": 2000, "input_length": 2048, "output_length": 1, "hash_ids": [1, 2, 3, 4]}
`
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}
