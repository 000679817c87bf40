package kvindex_test

import (
	"fmt"
	"time"

	"github.com/caddy-inference/caddy-inference/kvindex"
)

func Example() {
	index := kvindex.New(kvindex.Options{})
	worker := index.Add()
	index.Store(worker, &kvindex.Stored{
		Root:      true,
		Names:     []uint64{0xca1f, 0xbea7},
		Tokens:    []uint32{9707, 11, 847, 829, 374, 41210, 11, 323},
		BlockSize: 4,
	})

	var matches kvindex.Matches
	prompt := kvindex.Prompt{Tokens: []uint32{9707, 11, 847, 829, 374, 41210, 13, 15, 16}}
	index.Lookup(&prompt, time.Now(), &matches)
	fmt.Println(matches.Held(worker), "tokens")

	index.Drop(worker, &kvindex.Dropped{Names: []uint64{0xca1f}})
	index.Lookup(&prompt, time.Now(), &matches)
	fmt.Println(matches.Held(worker), "tokens")

	// Output:
	// 4 tokens
	// 0 tokens
}
