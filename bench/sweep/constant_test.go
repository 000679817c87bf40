package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

var fakeFiles = []string{"fake.go", "other.go"}

func TestAConstantIsFoundWhereItIsDeclared(t *testing.T) {
	for name, text := range map[string]string{
		"Alone":     "7",
		"plain":     "64",
		"ratio":     "1.0 / 4",
		"one":       "1",
		"two":       "2",
		"typed":     "2 << 10",
		"halfLife":  "time.Minute",
		"call":      "max(one, two)",
		"first":     "iota",
		"elsewhere": `"text"`,
	} {
		t.Run(name, func(t *testing.T) {
			p, err := findConstant("testdata/fake", fakeFiles, name)
			require.NoError(t, err)
			require.Equal(t, text, p.text())
		})
	}
}

func TestWhatIsNoConstantIsAnError(t *testing.T) {
	for name, says := range map[string]string{
		"missing":  "there is no constant missing; there are: Alone, call, elsewhere, first, halfLife, one, plain, ratio, second, two, typed",
		"variable": "there is no constant variable",
		"second":   "fake.go:21:2: constant second has the expression of a line above",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := findConstant("testdata/fake", fakeFiles, name)
			require.ErrorContains(t, err, says)
		})
	}
}

func TestNothingButTheValueIsChanged(t *testing.T) {
	dir := t.TempDir()
	write := func(source string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "a.go"), []byte(source), 0o600))
	}
	write("package a\n\nconst é = 1 // ä\nconst x, y = 1, 2 /* c */ // d\n")
	p, err := findConstant(dir, []string{"a.go"}, "x")
	require.NoError(t, err)
	require.Equal(t, "package a\n\nconst é = 1 // ä\nconst x, y = 3*time.Second, 2 /* c */ // d\n", string(p.with("3*time.Second")))

	write("//line elsewhere.go:7\npackage a\nconst x = 1\n")
	p, err = findConstant(dir, []string{"a.go"}, "x")
	require.NoError(t, err)
	require.Equal(t, "1", p.text(), "a line directive moves nothing")
}

func TestValuesAreCutAtCommasBetweenExpressions(t *testing.T) {
	for list, want := range map[string][]value{
		"1":                    {{text: "1"}},
		"0, 16,64":             {{text: "0"}, {text: "16"}, {text: "64"}},
		"max(1, 2), 3":         {{text: "max(1, 2)"}, {text: "3"}},
		`"a,b",2*time.Second `: {{text: `"a,b"`}, {text: "2*time.Second"}},
	} {
		got, err := parseValues(list)
		require.NoError(t, err, list)
		require.Equal(t, want, got)
	}
	for _, list := range []string{"1,,2", "1)", "1), g(2", "a b"} {
		_, err := parseValues(list)
		require.ErrorContains(t, err, "must be Go expressions", list)
	}
}

func TestEqualNumbersAreTheSameValue(t *testing.T) {
	for _, pair := range [][2]string{
		{"2 << 10", "2048"},
		{"1.0 / 4", "0.25"},
		{"1e3", "1000"},
		{"time.Minute", " time.Minute"},
	} {
		require.True(t, same(pair[0], pair[1]), pair)
	}
	for _, pair := range [][2]string{
		{"1", "2"},
		{"time.Minute", "time.Second"},
		{`"a"`, "1"},
		{"true", "false"},
		{"1 / 0", "1"},
	} {
		require.False(t, same(pair[0], pair[1]), pair)
	}
}
