package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// fakeLab sweeps the fake package with the fake program.
func fakeLab() *lab {
	return &lab{
		module:  here,
		program: here + "/sweep/testdata/virtual",
		flags:   []string{"-trace", "a,dir/b.jsonl", "-capacity", "2048"},
		seeds:   2,
		known:   map[string]outcomes{},
	}
}

// text returns an answer as text, with one space between columns.
func text(t *testing.T, r report) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, r.writeText(&b))
	return regexp.MustCompile(`(?m)^ +| {2,}`).ReplaceAllString(b.String(), " ")
}

func TestASweepMeasuresEachValueAndTheProduct(t *testing.T) {
	before, err := os.ReadFile("testdata/fake/fake.go")
	require.NoError(t, err)
	r, err := fakeLab().answer(t.Context(), question{constant: "sweep/testdata/fake.one", values: []value{{text: "2"}, {text: "6.0"}}}, metrics[:1])
	require.NoError(t, err)
	require.Equal(t, `sweep/testdata/fake.one

Mean time to first token, in seconds:
 a 2k b 2k
 1 (now) 0.265 0.265
 2 0.515 0.515
 6.0 1.515 1.515

The same, compared with now, in %:
 a 2k b 2k all
 1 (now) +0.0 +0.0 +0.0
 2 +94.4 ±1.8 +94.4 ±1.8 +94.4
 6.0 +471.9 ±8.9 +471.9 ±8.9 +471.8

`, text(t, r))
	after, err := os.ReadFile("testdata/fake/fake.go")
	require.NoError(t, err)
	require.Equal(t, string(before), string(after), "the source was touched")
}

func TestASweepOfATextMarksTheOneThatStandsThere(t *testing.T) {
	r, err := fakeLab().answer(t.Context(), question{
		name: "what is divided by", file: fakeFile, old: "float64(one) / 4",
		values: []value{{text: "float64(one) / 8", name: "eight"}, {text: "float64(one) / 4", name: "four"}},
	}, metrics)
	require.NoError(t, err)
	said := text(t, r)
	require.Contains(t, said, "\n eight 0.140 0.140\n four (now) 0.265 0.265\n")
	require.Contains(t, said, "Work of the busiest engine over the mean:\n a 2k b 2k\n eight 1.25 1.25\n")
}

func TestASweepOfAFlagComparesWithItsDefault(t *testing.T) {
	l := fakeLab()
	q := question{flag: "belief", values: []value{{text: "0.5"}}}
	first, err := l.answer(t.Context(), q, metrics[:1])
	require.NoError(t, err)
	require.Contains(t, text(t, first), "\n default (now) 0.265 0.265\n 0.5 0.140 0.140\n")

	l.flags = []string{"-none"}
	again, err := l.answer(t.Context(), q, metrics[:1])
	require.NoError(t, err, "what is known was measured again")
	require.Equal(t, first, again)
}

func TestAQuestionBringsFlagsOfItsOwn(t *testing.T) {
	r, err := fakeLab().answer(t.Context(), question{flag: "belief", values: []value{{text: "0.5"}}, flags: []string{"-noise", "1"}}, metrics[:1])
	require.NoError(t, err)
	require.Equal(t, "-belief, with -noise 1", r.title)
	require.Contains(t, text(t, r), "\n default (now) 1.265 1.265\n 0.5 1.140 1.140\n")
}

func TestEveryVariantHasTheFlagsOfItsQuestion(t *testing.T) {
	for _, q := range []question{
		{constant: "sweep/testdata/fake.one", values: []value{{text: "1"}, {text: "2"}}},
		{file: fakeFile, old: "float64(one) / 4", values: []value{{text: "1"}}},
		{flag: "belief", values: []value{{text: "0.5"}}},
	} {
		plain, err := q.variants(t.Context(), here)
		require.NoError(t, err)
		q.flags = []string{"-noise", "1"}
		noisy, err := q.variants(t.Context(), here)
		require.NoError(t, err)
		for i := range noisy {
			require.Equal(t, append([]string{"-noise", "1"}, plain[i].flags...), noisy[i].flags)
			require.NotEqual(t, plain[i].key(), noisy[i].key(), "taken for the same")
		}
	}
}

func TestAChangeOfTheSourceMeanwhileIsAnError(t *testing.T) {
	l := fakeLab()
	l.now = []byte("another")
	_, err := l.answer(t.Context(), question{flag: "belief", values: []value{{text: "0.5"}}}, metrics[:1])
	require.ErrorContains(t, err, "the source was changed meanwhile")
}

func TestAValueThatDoesNotCompileIsNamedWithTheCompilersError(t *testing.T) {
	_, err := fakeLab().answer(t.Context(), question{constant: "sweep/testdata/fake.one", values: []value{{text: "three"}}}, metrics[:1])
	require.ErrorContains(t, err, "sweep/testdata/fake.one: the value three does not compile")
	require.ErrorContains(t, err, "sweep/testdata/fake/fake.go:13:19: undefined: three")
}

func TestAFlagThatVirtualDoesNotHaveIsAnError(t *testing.T) {
	_, err := fakeLab().answer(t.Context(), question{flag: "none", values: []value{{text: "1"}}}, metrics[:1])
	require.ErrorContains(t, err, "the value 1: exit status 2\nflag provided but not defined: -none")
}

func TestMarkdownHasTheSameTables(t *testing.T) {
	var b strings.Builder
	r := report{"subject", "Because.", []table{{"Seconds", []string{"", "a"}, [][]string{{"x | y (now)", "0.250"}}}}}
	require.NoError(t, r.writeMarkdown(&b))
	require.Equal(t, "## subject\n\nBecause.\n\nSeconds:\n\n|  | a |\n|---|---:|\n| x \\| y (now) | 0.250 |\n\n", b.String())
}

// TestTheProductIsSwept sweeps the real thing. Of the traffic every second prompt is
// the one before it, so two of its three blocks can be found in a cache; but not if
// a request in flight keeps others away.
func TestTheProductIsSwept(t *testing.T) {
	var requests []trace.Request
	for i := range 200 {
		id := uint64(i / 2 * 10)
		requests = append(requests, trace.Request{At: time.Duration(i) * 50 * time.Millisecond, Input: 1500, Output: 10, Blocks: []uint64{id, id + 1, id + 2}})
	}
	dir := t.TempDir()
	file, document := filepath.Join(dir, "pairs.jsonl"), filepath.Join(dir, "out.md")
	f, err := os.Create(file)
	require.NoError(t, err)
	require.NoError(t, trace.Write(f, requests))
	require.NoError(t, f.Close())

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{
		"-trace", file, "-capacity", "524288", "-seeds", "1", "-v", "-o", document,
		"-const", "selection.decodeTokens", "-values", "1e6",
	}, &out))
	require.Contains(t, out.String(), "pairs 512k")
	written, err := os.ReadFile(document)
	require.NoError(t, err)
	found := 2 * trace.BlockTokens / 1500.0 / 2
	require.Contains(t, string(written), fmt.Sprintf(`Share of prompt tokens found in a cache:

|  | pairs 512k |
|---|---:|
| 64 (now) | %.3f |
| 1e6 | 0.000 |
`, found))
}
