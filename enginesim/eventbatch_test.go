package enginesim

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

// sample is a payload that a real engine has published.
type sample struct {
	Shape   Shape
	Case    string
	Payload string
}

func samples(t *testing.T) []sample {
	t.Helper()
	file, err := os.Open("testdata/events.jsonl")
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	var all []sample
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var s sample
		require.NoError(t, json.Unmarshal(lines.Bytes(), &s))
		if s.Payload != "" {
			all = append(all, s)
		}
	}
	return all
}

// differences are what a simulated engine sends other than a sample has it: some samples
// were asked for fields that no running engine sends like that.
var differences = map[Shape]map[string]map[any]any{
	ShapeVLLMArray: {
		"store-salt":        {10: "full_attention"},
		"store-lora":        {10: "full_attention"},
		"remove-all-fields": {2: gpu, 3: int8(0)},
	},
	ShapeSGLang: {"store-lora": {"lora_id": nil}},
	ShapeSGLangArray: {
		"store-lora":        {5: nil},
		"remove-all-fields": {2: gpu},
	},
}

// change sets members of an event, by place or by name.
func change(e any, to map[any]any) {
	for key, value := range to {
		switch fields := e.(type) {
		case []any:
			fields[key.(int)] = value
		case map[string]any:
			fields[key.(string)] = value
		}
	}
}

func TestEventsAreWrittenAsRealEnginesDo(t *testing.T) {
	tried := map[Shape]int{}
	for _, s := range samples(t) {
		want, err := hex.DecodeString(s.Payload)
		require.NoError(t, err)
		b := decodeBatch(t, want)
		events := make([]event, 0, len(b.events))
		for _, e := range b.events {
			events = append(events, e.event(t))
		}
		got := encodeBatch(s.Shape, HashInt, b.blockSize(), b.rank, b.at, events)
		tried[s.Shape]++
		if to := differences[s.Shape][s.Case]; to != nil {
			fields := rawEvents(t, want)
			change(fields[0], to)
			require.Equal(t, fields, rawEvents(t, got), "%s %s", s.Shape, s.Case)
			continue
		}
		const time = 10 // bytes up to where it ends; it is told to the microsecond
		require.Equal(t, s.Payload[2*time:], hex.EncodeToString(got[time:]), "%s %s", s.Shape, s.Case)
		require.Equal(t, b.at, decodeBatch(t, got).at, "%s %s", s.Shape, s.Case)
	}
	for _, shape := range shapes {
		require.GreaterOrEqual(t, tried[shape], 5, shape)
	}
}

func TestLongNamesEndWithTheShortOnes(t *testing.T) {
	e := []event{{kind: blocksStored, hashes: []uint64{7, math.MaxUint64}, parent: 1 << 63, child: true, tokens: []uint32{1, 2}, keys: [][]any{nil, nil}}}
	short := decodeBatch(t, encodeBatch(ShapeVLLM, HashInt, 1, 0, time.Unix(1, 0), e)).events[0]
	long := decodeBatch(t, encodeBatch(ShapeVLLM, HashBytes, 1, 0, time.Unix(1, 0), e)).events[0]
	require.Equal(t, short.hashes, long.hashes)
	require.Equal(t, short.parent, long.parent)
	require.Len(t, long.longest, 32)
}

// batch is a payload decoded, in whichever shape.
type batch struct {
	at     time.Time
	events []told
	rank   int
}

// told is an event as a subscriber reads it.
type told struct {
	kind    string
	hashes  []uint64 // the last 64 bits of each
	longest []byte   // a name that is bytes
	parent  *uint64
	tokens  []uint32
	size    int
	keys    []any
	adapter string
	id      int
	salt    string
	medium  any
}

func (b *batch) blockSize() int {
	for _, e := range b.events {
		if e.size > 0 {
			return e.size
		}
	}
	return 1
}

// event is what the engine was told that told this.
func (e *told) event(t *testing.T) event {
	t.Helper()
	out := event{hashes: e.hashes, tokens: e.tokens, space: namespace{adapter: e.adapter, adapterID: e.id, salt: e.salt}}
	switch e.kind {
	case "AllBlocksCleared":
		return event{kind: allCleared}
	case "BlockRemoved":
		out.kind = blocksRemoved
	case "BlockStored":
		if e.parent != nil {
			out.parent, out.child = *e.parent, true
		}
		for _, keys := range e.keys {
			list, _ := keys.([]any)
			out.keys = append(out.keys, list)
		}
	default:
		require.Fail(t, "no such event", e.kind)
	}
	return out
}

func rawBatch(t *testing.T, payload []byte) []any {
	t.Helper()
	d := msgpack.NewDecoder(bytes.NewReader(payload))
	value, err := d.DecodeInterface()
	require.NoError(t, err)
	list, ok := value.([]any)
	require.True(t, ok, "a batch is an array")
	require.Len(t, list, 3)
	return list
}

func rawEvents(t *testing.T, payload []byte) []any { return rawBatch(t, payload)[1].([]any) }

// arrayFields are the names of what stands where in an event that is an array.
var arrayFields = map[string][]string{
	"BlockStored":      {"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx"},
	"BlockRemoved":     {"type", "block_hashes", "medium", "group_idx"},
	"AllBlocksCleared": {"type"},
}

func decodeBatch(t *testing.T, payload []byte) batch {
	t.Helper()
	list := rawBatch(t, payload)
	seconds := list[0].(float64)
	b := batch{at: time.UnixMicro(int64(math.Round(seconds * 1e6))), rank: int(whole64(t, list[2]))}
	for _, raw := range list[1].([]any) {
		fields, ok := raw.(map[string]any)
		if !ok {
			array := raw.([]any)
			fields = map[string]any{}
			for i, name := range arrayFields[array[0].(string)] {
				if i < len(array) {
					fields[name] = array[i]
				}
			}
		}
		b.events = append(b.events, decodeEvent(t, fields))
	}
	return b
}

func decodeEvent(t *testing.T, fields map[string]any) told {
	t.Helper()
	e := told{kind: fields["type"].(string), medium: fields["medium"]}
	hashes, _ := fields["block_hashes"].([]any)
	for _, name := range hashes {
		e.hashes = append(e.hashes, hashOf(t, name))
		e.longest, _ = name.([]byte)
	}
	if name := fields["parent_block_hash"]; name != nil {
		e.parent = new(hashOf(t, name))
	}
	ids, _ := fields["token_ids"].([]any)
	for _, id := range ids {
		e.tokens = append(e.tokens, uint32(whole64(t, id)))
	}
	if size, ok := fields["block_size"]; ok {
		e.size = int(whole64(t, size))
	}
	if id := fields["lora_id"]; id != nil {
		e.id = int(whole64(t, id))
	}
	e.adapter, _ = fields["lora_name"].(string)
	e.salt, _ = fields["cache_salt"].(string)
	e.keys, _ = fields["extra_keys"].([]any)
	for _, keys := range e.keys {
		list, _ := keys.([]any)
		for _, key := range list { // for events that are made of this one
			if pair, ok := key.([]any); ok {
				pair[1] = int(whole64(t, pair[1]))
			}
		}
	}
	return e
}

func hashOf(t *testing.T, name any) uint64 {
	t.Helper()
	if long, ok := name.([]byte); ok {
		require.Len(t, long, 32)
		return bigEndian(long[24:])
	}
	return uint64(whole64(t, name))
}

// whole64 is a whole number, as 64 bits.
func whole64(t *testing.T, value any) int64 {
	t.Helper()
	switch v := reflect.ValueOf(value); {
	case v.CanInt():
		return v.Int()
	case v.CanUint():
		return int64(v.Uint())
	}
	require.Fail(t, "not a whole number", "%T %v", value, value)
	return 0
}
