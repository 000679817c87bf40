package inference

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAdaptersAreBounded learns more than are remembered, from several goroutines.
func TestAdaptersAreBounded(t *testing.T) {
	var a adapters
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for n := range 2 * maxAdapters {
				a.learn(fmt.Sprint(n))
				_ = a.named([]byte("1"))
			}
		})
	}
	a.learn("")
	wg.Wait()
	require.Len(t, *a.names.Load(), maxAdapters)
	require.Empty(t, a.named(nil))
}

// TestLookingForAnAdapterAllocatesNothing, as it is done for each request.
func TestLookingForAnAdapterAllocatesNothing(t *testing.T) {
	var a adapters
	a.learn("lora-a")
	name := []byte("lora-a")
	found := ""
	requireNoAllocations(t, 10, func() { found = a.named(name) })
	require.Equal(t, "lora-a", found)
}
