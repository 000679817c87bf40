// Package trace is traffic to replay: who asks when, with how long a prompt, and
// which beginnings of prompts are the same. Traces are recorded ones, in the
// format of the Mooncake project (github.com/kvcache-ai/Mooncake), or generated
// ones, which are written in that format too, for use elsewhere.
//
// A trace has no text, only ids of blocks of 512 tokens: equal ids stand for
// equal text. [Request.Prompt] makes up a text of exactly as many tokens, which
// begins as another one does where their ids are equal.
//
// The package sends nothing and knows no engine.
package trace

import (
	"fmt"
	"time"
)

// BlockTokens is the length in tokens of the text that an id stands for.
const BlockTokens = 512

// Limits of what is believed of a trace.
const (
	maxTokens = 1 << 24              // of a prompt or an answer
	maxAt     = 366 * 24 * time.Hour // more is a date, not a time from the start
)

// Request is a request of a trace.
type Request struct {
	At     time.Duration // from the start of the trace
	Input  int           // tokens of the prompt
	Output int           // tokens of the answer

	// Blocks are the ids of the prompt's blocks of BlockTokens tokens each, of which
	// the last may be a part. An id stands for its text, wherever it is found.
	Blocks []uint64
}

// check reports the first value that no trace can have.
func (r *Request) check() error {
	if r.At < 0 || r.At > maxAt {
		return fmt.Errorf("timestamp is %d ms: it must be between 0, the start of the trace, and %d", r.At.Milliseconds(), maxAt.Milliseconds())
	}
	if r.Input < 1 || r.Input > maxTokens {
		return fmt.Errorf("input_length is %d: it must be between 1 and %d tokens", r.Input, maxTokens)
	}
	if r.Output < 0 || r.Output > maxTokens {
		return fmt.Errorf("output_length is %d: it must be between 0 and %d tokens", r.Output, maxTokens)
	}
	if needed := (r.Input + BlockTokens - 1) / BlockTokens; len(r.Blocks) < needed {
		return fmt.Errorf("%d hash_ids for an input_length of %d: it takes %d, one for each %d tokens", len(r.Blocks), r.Input, needed, BlockTokens)
	}
	return nil
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
