package kvevents

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/zeebo/xxh3"
)

// lines calls f with each line of a recording.
func lines(t testing.TB, name string, f func(line []byte)) {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", name+".jsonl.gz"))
	require.NoError(t, err)
	defer file.Close()
	z, err := gzip.NewReader(file)
	require.NoError(t, err)
	s := bufio.NewScanner(z)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		f(s.Bytes())
	}
	require.NoError(t, s.Err())
}

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

// encoding is a payload that a release has sent, and what it means.
type encoding struct {
	Kind     string
	Case     string
	Versions []string
	Frames   []*string
	Decoded  any
}

func encodings(t testing.TB, f func(name string, payload []byte, decoded any)) {
	t.Helper()
	for _, engine := range []string{"vllm", "sglang"} {
		lines(t, "encodings-"+engine, func(line []byte) {
			var e encoding
			d := json.NewDecoder(bytes.NewReader(line))
			d.UseNumber()
			require.NoError(t, d.Decode(&e))
			if e.Kind != "encoding" || strings.HasPrefix(e.Case, "load-stat") {
				return
			}
			name := fmt.Sprintf("%s %s %s", engine, e.Versions[0], e.Case)
			f(name, unhex(t, *e.Frames[2]), e.Decoded)
		})
	}
}

func TestEveryReleaseIsUnderstood(t *testing.T) {
	var b Batch
	seen := 0
	encodings(t, func(name string, payload []byte, decoded any) {
		seen++
		require.NoError(t, b.Decode(payload), name)
		require.Zero(t, b.Skipped, name)
		if decoded == nil {
			require.Len(t, b.Events, 1, name)
			require.Equal(t, Cleared, b.Events[0].Kind, name)
			require.Equal(t, -1, b.Rank, name)
			return
		}
		require.Equal(t, reading(t, decoded), shown(&b), name)
	})
	require.Greater(t, seen, 150)
}

func TestDecoderAgreesWithALibrary(t *testing.T) {
	var b Batch
	encodings(t, func(name string, payload []byte, _ any) {
		value, err := msgpack.NewDecoder(bytes.NewReader(payload)).DecodeInterface()
		require.NoError(t, err, name)
		require.NoError(t, b.Decode(payload), name)
		require.Equal(t, reading(t, value), shown(&b), name)
	})
}

// generic is a value as a library would decode it, in a plain form.
func generic(t testing.TB, v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := strconv.ParseUint(v.String(), 10, 64); err == nil {
			return n
		}
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return uint64(n)
		}
		f, err := v.Float64()
		require.NoError(t, err)
		return f
	case []byte:
		return v
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = generic(t, v[i])
		}
		return out
	case map[string]any:
		if h, ok := v["hex"].(string); ok {
			return unhex(t, h)
		}
		out := map[string]any{}
		for k := range v {
			out[k] = generic(t, v[k])
		}
		return out
	}
	switch r := reflect.ValueOf(v); {
	case r.CanInt():
		return uint64(r.Int())
	case r.CanUint():
		return r.Uint()
	}
	return v
}

var (
	storedNames = []string{
		"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
		"extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership",
	}
	removedNames = []string{"type", "block_hashes", "medium", "group_idx", "locality", "ownership"}
)

// reading writes down a batch from values of a library, field by field.
func reading(t testing.TB, v any) []string {
	batch := generic(t, v).([]any)
	rank := "-1"
	if len(batch) > 2 && batch[2] != nil {
		rank = fmt.Sprint(batch[2])
	}
	out := []string{fmt.Sprintf("%.3f rank %s", batch[0], rank)}
	for _, e := range batch[1].([]any) {
		m, ok := e.(map[string]any)
		if !ok {
			m = map[string]any{}
			names := storedNames
			if e.([]any)[0] == "BlockRemoved" {
				names = removedNames
			}
			for i, v := range e.([]any) {
				m[names[i]] = v
			}
		}
		var fields []string
		add := func(name string, v any) {
			if v != nil {
				fields = append(fields, fmt.Sprintf("%s=%v", name, v))
			}
		}
		add("kind", m["type"])
		for _, h := range list(m["block_hashes"]) {
			add("hash", hashOf(h))
		}
		if p := m["parent_block_hash"]; p != nil {
			add("parent", hashOf(p))
		}
		for _, id := range list(m["token_ids"]) {
			if pair, ok := id.([]any); ok {
				add("token", pair[0])
				add("token", pair[1])
				continue
			}
			add("token", id)
		}
		for _, name := range []string{"block_size", "lora_id", "medium", "lora_name", "group_idx", "kv_cache_spec_sliding_window", "locality", "ownership", "session_id", "cache_salt"} {
			add(name, m[name])
		}
		for i, keys := range list(m["extra_keys"]) {
			for _, k := range list(keys) {
				switch k := k.(type) {
				case []byte:
					add("extra", fmt.Sprintf("%d bytes %x", i, k))
				case []any:
					add("extra", fmt.Sprintf("%d %v at %d", i, k[0], int64(k[1].(uint64))))
				default:
					add("extra", fmt.Sprintf("%d %v", i, k))
				}
			}
		}
		out = append(out, strings.Join(fields, " "))
	}
	return out
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func hashOf(v any) Hash {
	if b, ok := v.([]byte); ok {
		return Hash(xxh3.HashSeed(b, seed))
	}
	return Hash(v.(uint64))
}

// shown writes a decoded batch down in the same way.
func shown(b *Batch) []string {
	out := []string{fmt.Sprintf("%.3f rank %d", b.Time, b.Rank)}
	names := map[Kind]string{Stored: "BlockStored", Removed: "BlockRemoved", Cleared: "AllBlocksCleared"}
	for _, e := range b.Events {
		var fields []string
		add := func(name string, set bool, v any) {
			if set {
				fields = append(fields, fmt.Sprintf("%s=%v", name, v))
			}
		}
		add("kind", true, names[e.Kind])
		for _, h := range e.Hashes {
			add("hash", true, h)
		}
		add("parent", e.HasParent, e.Parent)
		for _, id := range e.Tokens {
			add("token", true, id)
		}
		add("block_size", e.BlockSize > 0, e.BlockSize)
		add("lora_id", e.HasLoRAID, e.LoRAID)
		add("medium", e.Medium != nil, string(e.Medium))
		add("lora_name", e.LoRAName != nil, string(e.LoRAName))
		add("group_idx", e.HasGroup, e.Group)
		add("kv_cache_spec_sliding_window", e.Window > 0, e.Window)
		add("locality", e.Locality != nil, string(e.Locality))
		add("ownership", e.Ownership != nil, string(e.Ownership))
		add("session_id", e.SessionID != nil, string(e.SessionID))
		add("cache_salt", e.CacheSalt != nil, string(e.CacheSalt))
		for i, keys := range e.ExtraKeys {
			for _, k := range keys {
				switch k.Kind {
				case ExtraBytes:
					add("extra", true, fmt.Sprintf("%d bytes %x", i, k.Text))
				case ExtraMedia:
					add("extra", true, fmt.Sprintf("%d %s at %d", i, k.Text, k.Offset))
				default:
					add("extra", true, fmt.Sprintf("%d %s", i, k.Text))
				}
			}
		}
		out = append(out, strings.Join(fields, " "))
	}
	return out
}

// pack encodes values as an engine could.
func pack(t testing.TB, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	e.UseCompactInts(true)
	e.SetSortMapKeys(true)
	require.NoError(t, e.Encode(v))
	return b.Bytes()
}

type (
	array  = []any
	object = map[string]any
)

func stored(more ...any) array {
	return append(array{"BlockStored", array{1, 2}, nil, array{1, 2, 3, 4}, 2}, more...)
}

func TestShapesThatNoReleaseHasSentYet(t *testing.T) {
	nested := any(1)
	for range 1000 {
		nested = array{nested}
	}
	for _, test := range []struct {
		name  string
		batch any
		want  func(t *testing.T, b *Batch)
	}{
		{"a batch of five elements", array{1.5, array{stored()}, 3, "epoch", object{"a": 1}}, func(t *testing.T, b *Batch) {
			require.Equal(t, 3, b.Rank)
			require.Equal(t, []Hash{1, 2}, b.Events[0].Hashes)
		}},
		{"a batch that is a map", object{"ts": 7, "events": array{stored()}, "data_parallel_rank": 1, "more": nested}, func(t *testing.T, b *Batch) {
			require.Equal(t, 1, b.Rank)
			require.Equal(t, 7.0, b.Time)
			require.Len(t, b.Events, 1)
		}},
		{"unknown events and keys", array{1, array{array{"BlockMoved", nested}, object{"type": "Weather", "rain": true}, object{"type": "BlockRemoved", "block_hashes": array{5}, "why": nested}}}, func(t *testing.T, b *Batch) {
			require.Equal(t, 2, b.Skipped)
			require.Equal(t, Removed, b.Events[0].Kind)
			require.Equal(t, []Hash{5}, b.Events[0].Hashes)
		}},
		{"keys that are no text", array{1, array{map[any]any{"type": "BlockRemoved", "block_hashes": array{5}, 7: 8, nil: 9}}}, func(t *testing.T, b *Batch) {
			require.Len(t, b.Events, 1)
		}},
		{"SGLang's metadata after the medium", array{1, array{stored(nil, "GPU", object{"cache_salt": "s", "session_id": "t", "new": nested})}}, func(t *testing.T, b *Batch) {
			e := b.Events[0]
			require.Equal(t, "s", string(e.CacheSalt))
			require.Equal(t, "t", string(e.SessionID))
			require.Nil(t, e.LoRAName)
			require.Equal(t, TierDevice, e.Tier)
		}},
		{"more trailing fields than known", array{1, array{stored(nil, "CPU", "a", nil, 1, "full_attention", nil, "LOCAL", "o", "s", 1, 2, nested)}}, func(t *testing.T, b *Batch) {
			e := b.Events[0]
			require.Equal(t, TierHost, e.Tier)
			require.Equal(t, AttentionFull, e.Attention)
			require.Equal(t, "o", string(e.Ownership))
		}},
		{"details of other types than known", array{1, array{stored("seven", 8, array{1}, "text", "group", 5, "window", 6, 7)}}, func(t *testing.T, b *Batch) {
			e := b.Events[0]
			require.False(t, e.HasLoRAID || e.HasGroup)
			require.Nil(t, e.LoRAName)
			require.Zero(t, e.Window)
		}},
		{"tagged extra keys", array{1, array{object{
			"type": "BlockStored", "block_hashes": array{1, 2, 3}, "token_ids": array{}, "block_size": 2,
			"extra_keys": array{array{array{"lora", "ad", "/path"}, array{"cache_salt", "s"}}, nil, array{array{"mm", "id", -4}, 9, nil}},
		}}}, func(t *testing.T, b *Batch) {
			keys := b.Events[0].ExtraKeys
			require.Len(t, keys, 3)
			require.Equal(t, "lora ad", string(keys[0][0].Tag)+" "+string(keys[0][0].Text))
			require.Equal(t, "cache_salt s", string(keys[0][1].Tag)+" "+string(keys[0][1].Text))
			require.Empty(t, keys[1])
			require.Equal(t, ExtraMedia, keys[2][0].Kind)
			require.Equal(t, "mm id", string(keys[2][0].Tag)+" "+string(keys[2][0].Text))
			require.Equal(t, int64(-4), keys[2][0].Offset)
			require.Equal(t, ExtraOther, keys[2][1].Kind)
			require.Equal(t, []byte{9}, keys[2][1].Raw)
		}},
		{"media that are not known", array{1, array{stored(nil, "TAPE")}}, func(t *testing.T, b *Batch) {
			require.Equal(t, TierUnknown, b.Events[0].Tier)
			require.Equal(t, "TAPE", string(b.Events[0].Medium))
		}},
		{"pairs of tokens", array{1, array{array{"BlockStored", array{1}, 7, array{array{1, 2}, array{2, 3}}, 2}}}, func(t *testing.T, b *Batch) {
			require.Equal(t, 2, b.Events[0].TokenWidth)
			require.Equal(t, []uint32{1, 2, 2, 3}, b.Events[0].Tokens)
		}},
		{"hashes of any length", array{1, array{array{"BlockRemoved", array{[]byte{}, []byte("12345678"), make([]byte, 64), "text", math.MinInt64, uint64(math.MaxUint64)}}}}, func(t *testing.T, b *Batch) {
			require.Len(t, b.Events[0].Hashes, 6)
			require.Equal(t, []Hash{1 << 63, math.MaxUint64}, b.Events[0].Hashes[4:])
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var b Batch
			require.NoError(t, b.Decode(pack(t, test.batch)))
			test.want(t, &b)
		})
	}
}

func TestWhatIsNoBatchIsRefused(t *testing.T) {
	wide := func(width int) array {
		return array{1, array{array{"BlockStored", array{1}, nil, array{make(array, width)}, 2}}}
	}
	for name, batch := range map[string]any{
		"nothing but a number":     7,
		"a batch of one element":   array{1},
		"a batch without events":   object{"ts": 1},
		"a load report":            array{"LoadStat", 1, 2, 3},
		"events that are no list":  array{1, 2},
		"an event that is no list": array{1, array{2}},
		"an empty event":           array{1, array{array{}}},
		"no hashes":                array{1, array{array{"BlockRemoved"}}},
		"hashes that are none":     array{1, array{array{"BlockRemoved", array{nil}}}},
		"a parent that is none":    array{1, array{array{"BlockStored", array{1}, 1.5, array{1, 2}, 2}}},
		"no block size":            array{1, array{array{"BlockStored", array{1}, nil, array{1, 2}}}},
		"a negative block size":    array{1, array{array{"BlockStored", array{1}, nil, array{1, 2}, -2}}},
		"a huge block size":        array{1, array{array{"BlockStored", array{1}, nil, array{1, 2}, maxBlockSize + 1}}},
		"a negative token":         array{1, array{array{"BlockStored", array{1}, nil, array{1, -1}, 2}}},
		"a token of 33 bits":       array{1, array{array{"BlockStored", array{1}, nil, array{1, 1 << 32}, 2}}},
		"tokens of text":           array{1, array{array{"BlockStored", array{1}, nil, array{"a"}, 2}}},
		"positions without tokens": wide(0),
		"very wide positions":      wide(maxWidth + 1),
		"positions of two widths":  array{1, array{array{"BlockStored", array{1}, nil, array{array{1, 2}, array{1}}, 2}}},
	} {
		t.Run(name, func(t *testing.T) {
			var b Batch
			require.Error(t, b.Decode(pack(t, batch)))
			require.Empty(t, b.Events)
		})
	}
}

func TestEveryBeginningOfABatchIsRefused(t *testing.T) {
	var b Batch
	encodings(t, func(name string, payload []byte, _ any) {
		for n := range payload {
			require.Error(t, b.Decode(payload[:n]), "%s, %d bytes", name, n)
		}
	})
}

func TestBombsAreRefusedBeforeAnythingIsAllocated(t *testing.T) {
	// prefix leads to the place of an event's value.
	prefix := func(values ...any) []byte {
		b := []byte{0x92, 0x01, 0x91, 0x9c}
		for _, v := range append(array{"BlockStored"}, values...) {
			b = append(b, pack(t, v)...)
		}
		return b
	}
	hashes, tokens := prefix(), prefix(array{1}, nil)
	extra := prefix(array{1}, nil, array{1}, 1, nil, nil, nil)
	for name, payload := range map[string][]byte{
		"a batch of 2^32 elements":  {0xdd, 0xff, 0xff, 0xff, 0xff},
		"a map of 2^32 pairs":       {0xdf, 0xff, 0xff, 0xff, 0xff},
		"2^32 events":               {0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff},
		"2^32 hashes":               append(hashes, 0xdd, 0xff, 0xff, 0xff, 0xff),
		"a hash of 4 GiB":           append(hashes, 0x91, 0xc6, 0xff, 0xff, 0xff, 0xff),
		"2^32 tokens":               append(tokens, 0xdd, 0xff, 0xff, 0xff, 0xff),
		"2^32 extra keys":           append(extra, 0xdd, 0xff, 0xff, 0xff, 0xff),
		"2^32 keys of one block":    append(extra, 0x91, 0xdd, 0xff, 0xff, 0xff, 0xff),
		"an extension of 4 GiB":     append(extra, 0xc9, 0xff, 0xff, 0xff, 0xff, 0x01),
		"a map key of 4 GiB":        {0x81, 0xdb, 0xff, 0xff, 0xff, 0xff},
		"a million levels":          append(extra, bytes.Repeat([]byte{0x91}, 1<<20)...),
		"a million levels of maps":  append(prefix(array{1}, nil, nil, nil, nil), bytes.Repeat([]byte{0x81, 0xc0}, 1<<20)...),
		"a million empty events":    append([]byte{0x92, 0x01, 0xdd, 0x00, 0x10, 0x00, 0x00}, bytes.Repeat([]byte{0x90}, 1<<20)...),
		"a million nested in a key": append([]byte{0x82, 0xa6}, append([]byte("events"), bytes.Repeat([]byte{0x91}, 1<<20)...)...),
	} {
		t.Run(name, func(t *testing.T) {
			var b Batch
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := b.Decode(payload)
			runtime.ReadMemStats(&after)
			require.Error(t, err)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
		})
	}
}

func TestLimitsOfABatch(t *testing.T) {
	// repeat is a list of n times the same value.
	repeat := func(n int, v any) msgpack.RawMessage {
		b := binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(n))
		return append(b, bytes.Repeat(pack(t, v), n)...)
	}
	cleared := array{"AllBlocksCleared"}
	events := func(n int) array { return array{1, repeat(n, cleared)} }
	hashes := func(n int) array { return array{1, array{array{"BlockRemoved", repeat(n, 1)}}} }
	tokens := func(n int) array { return array{1, array{array{"BlockStored", array{1}, nil, repeat(n, 1), 16}}} }
	keys := func(n int) array { return array{1, array{append(stored(nil, nil, nil), array{repeat(n, "k")})}} }
	for _, test := range []struct {
		name   string
		let    any
		beyond any
	}{
		{"events", events(maxEvents), events(maxEvents + 1)},
		{"hashes", hashes(maxHashes), hashes(maxHashes + 1)},
		{"tokens", tokens(maxTokens), tokens(maxTokens + 1)},
		{"extra keys", keys(maxExtraKeys), keys(maxExtraKeys + 1)},
	} {
		t.Run(test.name, func(t *testing.T) {
			var b Batch
			require.NoError(t, b.Decode(pack(t, test.let)))
			require.ErrorIs(t, b.Decode(pack(t, test.beyond)), errLimit)
			small := pack(t, array{1, array{cleared}})
			require.NoError(t, b.Decode(small))
			require.NoError(t, b.Decode(small))
			require.LessOrEqual(t, cap(b.tokens)*4+cap(b.hashes)*8, 2*keepBytes, "memory must be let go")
			require.LessOrEqual(t, cap(b.Events)*256+cap(b.extra)*128, 2*keepBytes, "memory must be let go")
		})
	}
}

// usual is a batch of a vLLM release with stores of one block of 16 tokens.
func usual(t testing.TB, events int, asMap bool) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	list := make(array, events)
	for i := range list {
		tokens := make([]uint32, 16)
		for j := range tokens {
			tokens[j] = r.Uint32N(150_000)
		}
		if asMap {
			list[i] = object{
				"type": "BlockStored", "block_hashes": array{r.Uint64()}, "parent_block_hash": r.Uint64(), "token_ids": tokens,
				"block_size": 16, "lora_id": nil, "medium": "GPU", "lora_name": nil, "extra_keys": array{nil}, "group_idx": 0,
				"kv_cache_spec_kind": "full_attention",
			}
			continue
		}
		list[i] = array{"BlockStored", array{r.Uint64()}, r.Uint64(), tokens, 16, nil, "GPU", nil, array{nil}, 0, "full_attention", nil}
	}
	return pack(t, array{1796000000.25, list, 0})
}

func TestDecodingCostsNoAllocation(t *testing.T) {
	for _, asMap := range []bool{false, true} {
		var b Batch
		payload := usual(t, 20, asMap)
		require.NoError(t, b.Decode(payload))
		require.Len(t, b.Events, 20)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if b.Decode(payload) != nil {
				panic("undecodable")
			}
		}))
	}
}

func FuzzDecode(f *testing.F) {
	encodings(f, func(_ string, payload []byte, _ any) { f.Add(payload) })
	f.Add(usual(f, 3, true))
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, payload []byte) {
		var b Batch
		err := b.Decode(payload)
		if err != nil && len(b.Events) > 0 {
			t.Fatal("events of a batch that failed")
		}
		for _, e := range b.Events {
			if e.Kind == Stored && len(e.Tokens) > 0 && (e.BlockSize == 0 || len(e.Tokens)%e.TokenWidth != 0) {
				t.Fatalf("%+v", e)
			}
		}
		first := shown(&b)
		if b.Decode(payload) == nil && fmt.Sprint(first) != fmt.Sprint(shown(&b)) {
			t.Fatal("a batch decoded again reads otherwise")
		}
	})
}

// BenchmarkParse is the cost of one event: batches have 100, or 1 where the name says so.
func BenchmarkParse(b *testing.B) {
	for _, bench := range []struct {
		name   string
		events int
		asMap  bool
	}{
		{"event=stored16", 100, true},
		{"event=stored16/shape=array", 100, false},
		{"event=stored16/batch=1", 1, true},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var batch Batch
			payload := usual(b, bench.events, bench.asMap)
			b.ReportAllocs()
			for n := 0; n < b.N; n += bench.events {
				if err := batch.Decode(payload); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
