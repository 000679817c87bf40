package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhatWasChosenIsInTheSource fails when the product was changed and the list
// was not.
func TestWhatWasChosenIsInTheSource(t *testing.T) {
	for _, q := range chosen {
		t.Run(q.title(), func(t *testing.T) {
			require.NotEmpty(t, q.why)
			variants, err := q.variants(t.Context(), product)
			require.NoError(t, err)
			require.Greater(t, len(variants), 1)
			if q.flag == "" {
				require.Len(t, variants, len(q.values), "the value that it has is none of the list")
			}
		})
	}
}
