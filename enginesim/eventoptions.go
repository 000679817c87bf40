package enginesim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Shape is how an engine writes its KV cache events.
type Shape string

// The shapes there are: of each engine the one it writes now, in which an event is a
// map, and the one it wrote before, in which it is an array.
const (
	ShapeVLLM        Shape = "vllm"         // vLLM 0.32
	ShapeVLLMArray   Shape = "vllm-array"   // vLLM 0.22 and 0.23
	ShapeSGLang      Shape = "sglang"       // SGLang 0.5.23
	ShapeSGLangArray Shape = "sglang-array" // SGLang 0.5.9 to 0.5.19
)

var shapes = []Shape{ShapeVLLM, ShapeVLLMArray, ShapeSGLang, ShapeSGLangArray}

// radix reports whether the shape is that of an engine whose cache is a tree: SGLang.
func (s Shape) radix() bool { return s == ShapeSGLang || s == ShapeSGLangArray }

// maps reports whether events are maps. Such engines name the topic in a replay, too.
func (s Shape) maps() bool { return s == ShapeVLLM || s == ShapeSGLang }

func (s Shape) validate() error {
	if slices.Contains(shapes, s) {
		return nil
	}
	return fmt.Errorf("shape is %q: use vllm, vllm-array, sglang or sglang-array", string(s))
}

// HashForm is how an engine names a block in its events.
type HashForm string

const (
	HashInt   HashForm = "int"   // 64 bits; SGLang's are signed
	HashBytes HashForm = "bytes" // 32 bytes, of which the last 8 are those of HashInt
)

const (
	maxBufferSteps = 1 << 20
	maxTopic       = 254 // bytes
)

// EventOptions say how an engine publishes what its KV cache stores and lets go.
type EventOptions struct {
	// The engine and the release whose events are written: `vllm` (0.32), `vllm-array`
	// (0.22, 0.23), `sglang` (0.5.23) or `sglang-array` (0.5.9 to 0.5.19). SGLang's also
	// make the cache keep blocks as SGLang does: none twice, and those of an answer
	// when it ends. Default: `vllm`.
	Shape Shape `json:"shape,omitempty"`

	// The ZeroMQ endpoint of the PUB socket. The port is that of rank 0, and one higher
	// for each further rank. As in the engines it is listened on only if there is a `*` or
	// `::` in it, else connected to. `tcp://*:0` takes any free port of the loopback
	// interface. Default: `tcp://*:5557`.
	Endpoint string `json:"endpoint,omitempty"`

	// The ZeroMQ endpoint of the ROUTER socket that replays batches, which is always
	// listened on; ports are as with endpoint. Default: no replay.
	Replay string `json:"replay,omitempty"`

	// The topic of all messages. Default: empty.
	Topic string `json:"topic,omitempty"`

	// How many batches are kept for replay, for each rank. Default: 10000.
	BufferSteps int `json:"buffer_steps,omitempty"`

	// How blocks are named: `int`, or `bytes` as vLLM does with
	// VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0. Default: `int`.
	Hashes HashForm `json:"hashes,omitempty"`
}

// DefaultEventOptions are those of vLLM, and no replay.
func DefaultEventOptions() EventOptions {
	return EventOptions{Shape: ShapeVLLM, Endpoint: "tcp://*:5557", BufferSteps: 10000, Hashes: HashInt}
}

func (o *EventOptions) setDefaults() {
	defaults := DefaultEventOptions()
	if o.Shape == "" {
		o.Shape = defaults.Shape
	}
	if o.Endpoint == "" {
		o.Endpoint = defaults.Endpoint
	}
	if o.BufferSteps == 0 {
		o.BufferSteps = defaults.BufferSteps
	}
	if o.Hashes == "" {
		o.Hashes = defaults.Hashes
	}
}

// validate checks the options of an engine with so many ranks.
func (o *EventOptions) validate(ranks int) error {
	if err := o.Shape.validate(); err != nil {
		return err
	}
	if o.Hashes != HashInt && o.Hashes != HashBytes {
		return fmt.Errorf("hashes is %q: use int or bytes", string(o.Hashes))
	}
	if o.Hashes == HashBytes && o.Shape.radix() {
		return errors.New("hashes is bytes: SGLang has none but int")
	}
	if o.BufferSteps < 1 || o.BufferSteps > maxBufferSteps {
		return fmt.Errorf("buffer_steps is %d: it must be between 1 and %d batches", o.BufferSteps, maxBufferSteps)
	}
	if len(o.Topic) > maxTopic {
		return fmt.Errorf("topic has %d bytes, the most is %d", len(o.Topic), maxTopic)
	}
	return o.validateEndpoints(ranks)
}

func (o *EventOptions) validateEndpoints(ranks int) error {
	live, err := parseEndpoint(o.Endpoint)
	if err != nil {
		return err
	}
	if err := live.validate(ranks); err != nil || o.Replay == "" {
		return err
	}
	replay, err := parseEndpoint(o.Replay)
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	if err := replay.validate(ranks); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	if live.overlaps(replay, ranks) {
		return fmt.Errorf("endpoint and replay share ports, as each has %d: set them %d apart", ranks, ranks)
	}
	if o.Shape.radix() && ranks > 1 && (live.anyPort() || replay.anyPort()) {
		return errors.New("port 0 with ranks: SGLang names the first port alone, so the ports must be in a row")
	}
	return nil
}

// radix reports whether the cache keeps blocks as SGLang does.
func (o Options) radix() bool { return o.Events != nil && o.Events.Shape.radix() }

// listens is the engines' own rule for when the PUB socket is listened on.
func listens(endpoint string) bool {
	return strings.Contains(endpoint, "*") || strings.Contains(endpoint, "::") || strings.HasPrefix(endpoint, "ipc://")
}
