// Package trace is traffic to replay: who asks when, with how long a prompt, and
// which beginnings of prompts are the same. Traces are recorded ones, in the
// format of the Mooncake project (github.com/kvcache-ai/Mooncake), or generated
// ones, which are written in that format too, for use elsewhere.
//
// A trace has no text, only ids of blocks of 512 tokens: equal ids stand for
// equal text. [Request.Prompt] makes up a text of as many tokens, exactly as many
// for a simulated engine, which begins as another one does where their ids are equal.
//
// The package sends nothing and knows no engine.
package trace

import "time"

// BlockTokens is the length in tokens of the text that an id stands for.
const BlockTokens = 512

// Request is a request of a trace.
type Request struct {
	At     time.Duration // from the start of the trace
	Input  int           // tokens of the prompt
	Output int           // tokens of the answer

	// Blocks are the ids of the prompt's blocks of BlockTokens tokens each, of which
	// the last may be a part. An id stands for its text, wherever it is found.
	Blocks []uint64
}

// Cached returns how many tokens of the prompt an engine need not compute that
// holds those blocks: whole blocks from the start, and never the last token.
func (r *Request) Cached(holds func(id uint64) bool) int {
	n := 0
	for n < len(r.Blocks) && holds(r.Blocks[n]) {
		n++
	}
	return min(n, (r.Input-1)/BlockTokens) * BlockTokens
}
