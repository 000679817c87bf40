package enginesim

import (
	"errors"
	"fmt"
	"time"
)

const (
	// maxBlocks bounds a cache's bookkeeping, about 40 bytes a block once used.
	maxBlocks = 1 << 24

	// maxQueued is how many sequences may wait for prefill; the next one is
	// turned away with 503, as an engine with a bounded queue does.
	maxQueued = 16384

	// maxSequences is how many sequences one request may ask for (prompts × n).
	maxSequences = 256

	// maxRanks is how many data parallel ranks there may be.
	maxRanks = 256

	// maxBody is the largest request body in bytes. Images arrive inside it.
	maxBody = 32 << 20
)

// Options are an engine's settings.
type Options struct {
	// Models are the names it serves. The first answers requests that name none.
	// Each has its own prefixes; all but the first are adapters of that one.
	Models []string

	// Ranks is how many data parallel ranks it has. Each is an engine of its own behind
	// the same pages, with all of the settings here.
	Ranks int

	// Capacity is the size of the KV cache in tokens, rounded down to blocks.
	Capacity int

	// BlockSize is the number of tokens in a cache block.
	BlockSize int

	// MaxModelLen bounds prompt and output of one request together, in tokens.
	MaxModelLen int

	// PrefillRate is how many uncached prompt tokens a second are prefilled.
	// 0 means that nothing takes any time, decoding included.
	PrefillRate float64

	// DecodeBase and DecodePerRunning are the time between two tokens of a
	// request: DecodeBase + DecodePerRunning × running requests.
	DecodeBase       time.Duration
	DecodePerRunning time.Duration

	// Speed divides all simulated time: 2 is twice as fast.
	Speed float64

	// StreamInterval is the number of tokens that an event of a stream carries, as
	// with the --stream-interval of vLLM and SGLang: the first token comes at once,
	// then so many together, and what is left at the end. The steps of an interval
	// are waited for in one go, also for an answer in one piece: a higher value
	// costs less, changes when tokens are seen, and leaves when an answer ends
	// about what it is with 1.
	StreamInterval int

	// PromptsOnly keeps prompts alone in the cache, and has requests that run take
	// nothing of it: no prompt waits for room, and answers are not cached. No real
	// engine is like that. Models of routing are, so this is what they are compared in.
	PromptsOnly bool

	// PromptTokensDetails puts cached_tokens into usage, as vLLM does when it is
	// started with --enable-prompt-tokens-details.
	PromptTokensDetails bool

	// Events is how the cache's content is published; nil is not at all. See
	// Server.OpenEvents.
	Events *EventOptions
}

// DefaultOptions returns the settings of a mid-sized engine: model "sim",
// 524,288 tokens of KV cache in blocks of 16, 8,000 tokens a second of prefill,
// 6 ms + 0.35 ms × running requests a token.
func DefaultOptions() Options {
	return Options{
		Models:              []string{"sim"},
		Ranks:               1,
		Capacity:            524288,
		BlockSize:           16,
		MaxModelLen:         131072,
		PrefillRate:         8000,
		DecodeBase:          6 * time.Millisecond,
		DecodePerRunning:    350 * time.Microsecond,
		Speed:               1,
		StreamInterval:      1,
		PromptTokensDetails: true,
	}
}

// Validate reports the first setting that no engine can run with.
func (o Options) Validate() error {
	if len(o.Models) == 0 {
		return errors.New("no model: name at least one")
	}
	for i, name := range o.Models {
		if name == "" {
			return fmt.Errorf("model %d has an empty name: give it one or leave it out", i+1)
		}
	}
	if o.Ranks < 1 || o.Ranks > maxRanks {
		return fmt.Errorf("ranks is %d: it must be between 1 and %d", o.Ranks, maxRanks)
	}
	if o.BlockSize < 1 {
		return fmt.Errorf("block_size is %d: it must be at least 1 token", o.BlockSize)
	}
	if o.Capacity < o.BlockSize {
		return fmt.Errorf("capacity is %d tokens, less than one block of %d: raise capacity or lower block_size", o.Capacity, o.BlockSize)
	}
	if o.blocks() > maxBlocks {
		return fmt.Errorf("capacity of %d tokens makes %d blocks, the most is %d: lower capacity or raise block_size", o.Capacity, o.blocks(), maxBlocks)
	}
	if o.MaxModelLen < 1 || o.MaxModelLen > o.blocks()*o.BlockSize {
		return fmt.Errorf("max_model_len is %d: it must be between 1 and the %d tokens that the cache's blocks hold", o.MaxModelLen, o.blocks()*o.BlockSize)
	}
	if !(o.PrefillRate >= 0) || o.PrefillRate > 1e12 {
		return fmt.Errorf("prefill_rate is %v: it must be tokens a second up to 1e12, or 0 for no delays", o.PrefillRate)
	}
	if o.DecodeBase < 0 || o.DecodePerRunning < 0 {
		return errors.New("decode_base and decode_per_running must not be negative")
	}
	if !(o.Speed >= 1e-6 && o.Speed <= 1e6) {
		return fmt.Errorf("speed is %v: it must be between 0.000001 and 1000000", o.Speed)
	}
	if o.StreamInterval < 1 {
		return fmt.Errorf("stream_interval is %d: it must be at least 1 token", o.StreamInterval)
	}
	return o.validateEvents()
}

func (o Options) validateEvents() error {
	if o.Events == nil {
		return nil
	}
	if err := o.Events.validate(o.Ranks); err != nil {
		return fmt.Errorf("events: %w", err)
	}
	return nil
}

func (o Options) blocks() int { return o.Capacity / max(o.BlockSize, 1) }

// instant reports whether nothing takes simulated time.
func (o Options) instant() bool { return o.PrefillRate == 0 }

// prefillTime is how long tokens that the cache does not hold take.
func (o Options) prefillTime(tokens int) time.Duration {
	if o.instant() {
		return 0
	}
	return time.Duration(float64(tokens) / (o.PrefillRate * o.Speed) * float64(time.Second))
}

// prefilledIn is the reverse of prefillTime: whole tokens done after d.
func (o Options) prefilledIn(d time.Duration) int {
	if o.instant() || d <= 0 {
		return 0
	}
	return int(d.Seconds() * o.PrefillRate * o.Speed)
}

// tokenTime is the time between two tokens of each of running requests.
func (o Options) tokenTime(running int) time.Duration {
	if o.instant() {
		return 0
	}
	return time.Duration(float64(o.DecodeBase+time.Duration(running)*o.DecodePerRunning) / o.Speed)
}

// simulated is how much simulated time passes in d.
func (o Options) simulated(d time.Duration) time.Duration {
	return time.Duration(float64(d) * o.Speed)
}
