package main

import (
	"bytes"
	"flag"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestACommandLineAsksAQuestion(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		want question
	}{
		{
			"constant",
			[]string{"-const", "selection.decodeTokens", "-values", "0,16"},
			question{constant: "selection.decodeTokens", values: []value{{text: "0"}, {text: "16"}}},
		},
		{
			"text",
			[]string{"-replace", "a/b.go", "-old", "x, y", "-new", "y, x", "-new", ""},
			question{file: "a/b.go", old: "x, y", values: []value{{text: "y, x"}, {text: ""}}},
		},
		{
			"flag",
			[]string{"-flag", "belief", "-values", "0.5,1"},
			question{flag: "belief", values: []value{{text: "0.5"}, {text: "1"}}},
		},
		{
			"engines that are unlike each other",
			[]string{"-const", "fleet.minSamples", "-values", "2", "-speeds", "1,0.5", "-noise", "0.1"},
			question{constant: "fleet.minSamples", values: []value{{text: "2"}}, flags: []string{"-speeds", "1,0.5", "-noise", "0.1"}},
		},
		{
			"benchmark",
			[]string{"-const", "radix.ChunkBytes", "-values", "64", "-bench", "Route", "-package", "radix", "-count", "3", "-benchtime", "1x"},
			question{constant: "radix.ChunkBytes", values: []value{{text: "64"}}, how: &benchmarks{"radix", "Route", "1x", 3}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			o, err := parseOptions(test.args, io.Discard)
			require.NoError(t, err)
			require.Equal(t, []question{test.want}, o.questions)
		})
	}
}

func TestACommandLineThatAsksNothingSaysWhatToDo(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		says string
	}{
		{"nothing", nil, "say what to sweep"},
		{"two things", []string{"-const", "a.b", "-flag", "c", "-values", "1"}, "say what to sweep"},
		{"no values", []string{"-const", "a.b"}, "need -values"},
		{"text with values", []string{"-replace", "f", "-old", "x", "-new", "y", "-values", "1"}, "no -values"},
		{"text without another", []string{"-replace", "f", "-old", "x"}, "at least one -new"},
		{"constant with a text", []string{"-const", "a.b", "-values", "1", "-new", "2"}, "neither -old nor -new"},
		{"flag of nothing", []string{"-flag", "belief", "-values", "1", "-bench", "."}, "which is not run with -bench"},
		{"engines of nothing", []string{"-const", "a.b", "-values", "1", "-bench", ".", "-noise", "0.1"}, "which is not run with -bench"},
		{"no rounds", []string{"-const", "a.b", "-values", "1", "-bench", ".", "-count", "0"}, "-count 0: must be at least 1"},
		{"values as arguments", []string{"-const", "a.b", "-values", "1,", "2"}, `unexpected argument "2"`},
		{"all and one", []string{"-all", "-const", "a.b"}, "leave out -const"},
		{"all and engines", []string{"-all", "-speeds", "0.5"}, "leave out -const"},
		{"unknown", []string{"-x"}, "not defined"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := parseOptions(test.args, io.Discard)
			require.ErrorContains(t, err, test.says)
		})
	}
}

func TestHelpIsPrinted(t *testing.T) {
	var out bytes.Buffer
	_, err := parseOptions([]string{"-h"}, &out)
	require.ErrorIs(t, err, flag.ErrHelp)
	require.Contains(t, out.String(), "-const PACKAGE.NAME")
}
