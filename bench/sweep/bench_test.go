package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBenchmarksAreReadWithAllTheirFigures(t *testing.T) {
	r := readings{}
	order := r.add([]byte(`goos: linux
cpu: some
BenchmarkA/x=1-2         	    1000	      12.5 ns/op	 80.1 MB/s	       0 B/op
BenchmarkB
--- BENCH: BenchmarkB
BenchmarkB-2   	    10	     900 ns/op
PASS
`), nil)
	order = r.add([]byte("BenchmarkA/x=1-2 1 13.5 ns/op\n"), order)
	require.Equal(t, readings{
		{"A/x=1-2", "ns/op"}: {12.5, 13.5},
		{"A/x=1-2", "MB/s"}:  {80.1},
		{"A/x=1-2", "B/op"}:  {0},
		{"B-2", "ns/op"}:     {900},
	}, r)
	require.Equal(t, []reading{{"A/x=1-2", "ns/op"}, {"A/x=1-2", "MB/s"}, {"A/x=1-2", "B/op"}, {"B-2", "ns/op"}}, order)
}

func TestTheMedianIsShownWithItsNoise(t *testing.T) {
	for want, figures := range map[string][]float64{
		"3":          {3},
		"0":          {0, 0, 0},
		"1234568":    {1234567.8},
		"12.3":       {12.34},
		"200 ±25 %":  {250, 150, 200},
		"10 ±50 %":   {10, 20},
		"1000 ±90 %": {100, 1900, 1000, 900, 1100},
	} {
		require.Equal(t, want, middle(figures))
	}
}

func TestASweepOfABenchmarkHasARowForEachValue(t *testing.T) {
	r, err := fakeLab().answer(t.Context(), question{
		constant: "sweep/testdata/fake.one",
		values:   []value{{text: "3"}},
		how:      &benchmarks{pkg: "sweep/testdata/fake", pattern: "Slow", time: "1x", count: 2},
	}, nil)
	require.NoError(t, err)
	require.Len(t, r.tables, 1)
	table := r.tables[0]
	require.Contains(t, table.title, "Slow")
	require.Equal(t, []string{"", "ns/op", "slowness"}, table.head)
	require.Equal(t, []string{"1 (now)", "0.25"}, []string{table.rows[0][0], table.rows[0][2]})
	require.Equal(t, []string{"3", "0.75"}, []string{table.rows[1][0], table.rows[1][2]})
}

func TestNoSuchBenchmarkIsAnError(t *testing.T) {
	_, err := fakeLab().answer(t.Context(), question{
		constant: "sweep/testdata/fake.one",
		values:   []value{{text: "3"}},
		how:      &benchmarks{pkg: "sweep/testdata/fake", pattern: "None", time: "1x", count: 1},
	}, nil)
	require.ErrorContains(t, err, `package sweep/testdata/fake has no benchmark that matches "None"`)
}
