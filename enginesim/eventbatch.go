package enginesim

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// medium of all blocks: a simulated engine has no other tier.
const gpu = "GPU"

// batchWriter puts events into the words of an engine. Writing to its buffer does not
// fail, and neither does putting numbers, strings and lists of them into msgpack.
type batchWriter struct {
	*msgpack.Encoder
	buf       bytes.Buffer
	shape     Shape
	hashes    HashForm
	blockSize int
}

// encodeBatch is the payload of a batch: its time in seconds, its events, its rank.
func encodeBatch(shape Shape, hashes HashForm, blockSize, rank int, at time.Time, events []event) []byte {
	w := &batchWriter{shape: shape, hashes: hashes, blockSize: blockSize}
	w.Encoder = msgpack.NewEncoder(&w.buf)
	w.UseCompactInts(true)
	w.array(3)
	_ = w.EncodeFloat64(float64(at.UnixMicro()) / 1e6)
	w.array(len(events))
	for i := range events {
		w.event(&events[i])
	}
	w.number(rank)
	return w.buf.Bytes()
}

func (w *batchWriter) event(e *event) {
	switch {
	case e.kind == allCleared:
		w.tagged("AllBlocksCleared", nil)
	case e.kind == blocksRemoved:
		w.tagged("BlockRemoved", w.removedFields(e))
	case w.shape.radix():
		w.tagged("BlockStored", w.radixFields(e))
	default:
		w.tagged("BlockStored", w.pagedFields(e))
	}
}

// field is a member of an event. Maps have its name, arrays only its place.
type field struct {
	name  string
	write func()
}

// tagged writes an event, whose type is its first member.
func (w *batchWriter) tagged(kind string, fields []field) {
	if !w.shape.maps() {
		w.array(len(fields) + 1)
		w.text(kind)
		for _, f := range fields {
			f.write()
		}
		return
	}
	_ = w.EncodeMapLen(len(fields) + 1)
	w.text("type")
	w.text(kind)
	for _, f := range fields {
		w.text(f.name)
		f.write()
	}
}

// commonFields are what all shapes say of blocks that are stored.
func (w *batchWriter) commonFields(e *event) []field {
	return []field{
		{"block_hashes", func() { w.names(e.hashes) }},
		{"parent_block_hash", func() { w.parent(e) }},
		{"token_ids", func() { w.tokens(e.tokens) }},
		{"block_size", func() { w.number(w.blockSize) }},
	}
}

// pagedFields are vLLM's.
func (w *batchWriter) pagedFields(e *event) []field {
	fields := append(w.commonFields(e),
		field{"lora_id", func() { w.numberOrNil(e.space.adapterID) }},
		field{"medium", func() { w.text(gpu) }},
		field{"lora_name", func() { w.textOrNil(e.space.adapter) }},
		field{"extra_keys", func() { w.keys(e.keys) }},
		field{"group_idx", func() { w.number(0) }},
		field{"kv_cache_spec_kind", func() { w.text("full_attention") }},
	)
	if !w.shape.maps() { // maps leave out what is as ever
		fields = append(fields, field{"kv_cache_spec_sliding_window", w.null})
	}
	return fields
}

// radixFields are SGLang's. It says nothing of adapters in arrays, and of salts in maps only.
func (w *batchWriter) radixFields(e *event) []field {
	fields := append(w.commonFields(e),
		field{"lora_id", w.null},
		field{"medium", func() { w.text(gpu) }},
	)
	if !w.shape.maps() {
		return fields
	}
	if e.space.salt != "" {
		fields = append(fields, field{"cache_salt", func() { w.text(e.space.salt) }})
	}
	if e.space.adapter != "" {
		fields = append(fields, field{"lora_name", func() { w.text(e.space.adapter) }})
	}
	return fields
}

func (w *batchWriter) removedFields(e *event) []field {
	fields := []field{
		{"block_hashes", func() { w.names(e.hashes) }},
		{"medium", func() { w.text(gpu) }},
	}
	if !w.shape.radix() {
		fields = append(fields, field{"group_idx", func() { w.number(0) }})
	}
	return fields
}

func (w *batchWriter) names(hashes []uint64) {
	w.array(len(hashes))
	for _, hash := range hashes {
		w.name(hash)
	}
}

func (w *batchWriter) parent(e *event) {
	if !e.child {
		w.null()
		return
	}
	w.name(e.parent)
}

// name writes what the engine calls a block.
func (w *batchWriter) name(hash uint64) {
	switch {
	case w.shape.radix():
		_ = w.EncodeInt(int64(hash)) //nolint:gosec // the same bits, with a sign
	case w.hashes == HashBytes:
		_ = w.EncodeBytes(longName(hash))
	default:
		_ = w.EncodeUint(hash)
	}
}

// longName is the 32 bytes of which the hash is the last 8.
func longName(hash uint64) []byte {
	short := binary.BigEndian.AppendUint64(nil, hash)
	long := sha256.Sum256(short)
	return append(long[:24], short...)
}

func (w *batchWriter) tokens(ids []uint32) {
	w.array(len(ids))
	for _, id := range ids {
		_ = w.EncodeUint(uint64(id))
	}
}

// keys writes the list of each block's keys. A key is a text, or a list of its own.
func (w *batchWriter) keys(blocks [][]any) {
	w.array(len(blocks))
	for _, keys := range blocks {
		if keys == nil {
			w.null()
			continue
		}
		_ = w.Encode(keys)
	}
}

func (w *batchWriter) array(n int)   { _ = w.EncodeArrayLen(n) }
func (w *batchWriter) number(n int)  { _ = w.EncodeInt(int64(n)) }
func (w *batchWriter) text(s string) { _ = w.EncodeString(s) }
func (w *batchWriter) null()         { _ = w.EncodeNil() }

func (w *batchWriter) numberOrNil(n int) {
	if n == 0 {
		w.null()
		return
	}
	w.number(n)
}

func (w *batchWriter) textOrNil(s string) {
	if s == "" {
		w.null()
		return
	}
	w.text(s)
}
