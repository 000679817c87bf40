package radix_test

import (
	"fmt"
	"strings"

	"github.com/caddy-inference/caddy-inference/radix"
)

func Example() {
	const model = 1 // a fingerprint of what separates caches
	tree := radix.New(radix.Options{MaxBytes: 64 << 20})
	a, b := tree.Add(), tree.Add()
	chunker := radix.NewChunker(42)
	var matches radix.Matches

	// A prompt is sent to a.
	system := strings.Repeat("You are a helpful harbour master. ", 20)
	_, _ = chunker.WriteString(system + "When does the ferry leave?")
	tree.Insert(a, chunker.Key(model))

	// Another one starts the same way.
	chunker.Reset()
	_, _ = chunker.WriteString(system + "May I moor here tonight?")
	tree.Match(chunker.Key(model), &matches)
	fmt.Println(matches.Bytes(a), matches.Bytes(b))
	// Output: 640 0
}
