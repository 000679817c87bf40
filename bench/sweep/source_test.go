package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const fakeFile = "sweep/testdata/fake/fake.go"

// here is the module that stands for the product.
const here = product + "/bench"

func TestATextIsFoundWhereItStandsOnce(t *testing.T) {
	p, err := textPlace(t.Context(), here, fakeFile, "halfLife.Seconds() * ratio")
	require.NoError(t, err)
	require.Equal(t, "halfLife.Seconds() * ratio", p.text())
	require.Contains(t, string(p.with("1")), "\tscore := 1\n")
}

func TestATextThatCannotBeReplacedIsAnError(t *testing.T) {
	for _, test := range []struct{ name, file, text, says string }{
		{"missing", fakeFile, "halfLife.Hours()", "does not occur"},
		{"twice", fakeFile, "plain = ", "occurs 2 times"},
		{"empty", fakeFile, "", "is empty"},
		{"no file", "sweep/testdata/none.go", "x", "no such file"},
		{"outside", "../go.mod", "x", "must be a path inside the module"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := textPlace(t.Context(), here, test.file, test.text)
			require.ErrorContains(t, err, test.says)
		})
	}
}

func TestAConstantIsNamedWithItsPackage(t *testing.T) {
	p, err := constantPlace(t.Context(), here, "sweep/testdata/fake.Alone")
	require.NoError(t, err)
	require.Equal(t, "7", p.text())
	_, err = constantPlace(t.Context(), here, "Alone")
	require.ErrorContains(t, err, "must be named with its package")
	_, err = constantPlace(t.Context(), here, "sweep/testdata/missing.Alone")
	require.ErrorContains(t, err, "sweep/testdata/missing")
}
