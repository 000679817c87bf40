package kvindex

import (
	"bufio"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

// entry is a line of a recording, see testdata/README.md.
type entry struct {
	Kind     string
	ID       string
	Worker   string
	Rank     *int
	Seq      uint64
	Payload  string
	What     string
	Model    string
	LoRAs    []string `json:"loras"`
	Settled  bool
	IDs      json.RawMessage `json:"prompt_token_ids"`
	Features []Media         `json:"mm_features"`
	Salt     string          `json:"cache_salt"`
	Extra    string          `json:"extra_key"`
	Cached   int             `json:"cached_tokens"`
	Exact    bool
	Why      string
}

type stream struct {
	worker string
	rank   int
}

// recording plays a file to an index.
type recording struct {
	t       *testing.T
	index   *Index
	workers map[stream]Worker
	last    map[stream]uint64
	held    map[string]int // by request, as of when it was sent
	prompts map[string]*Prompt
	loras   []string

	exact, hits int
}

func TestTheIndexKnowsWhatRealEnginesFoundCached(t *testing.T) {
	paths, err := filepath.Glob("testdata/recordings/*.jsonl.gz")
	require.NoError(t, err)
	require.Len(t, paths, 28)
	exact, hits := 0, 0
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			r := play(t, path)
			exact, hits = exact+r.exact, hits+r.hits
		})
	}
	require.Equal(t, 359, exact, "answers that the recordings call exact")
	require.Equal(t, 182, hits, "of them hits")
}

func play(t *testing.T, path string) *recording {
	r := &recording{
		t: t, index: New(Options{}), workers: map[stream]Worker{}, last: map[stream]uint64{},
		held: map[string]int{}, prompts: map[string]*Prompt{},
	}
	for _, e := range entries(t, path) {
		r.take(&e)
		check(t, r.index)
	}
	return r
}

func entries(t *testing.T, path string) (entries []entry) {
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	require.NoError(t, err)
	lines := bufio.NewScanner(unzipped)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var e entry
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		entries = append(entries, e)
	}
	require.NoError(t, lines.Err())
	return entries
}

func (r *recording) take(e *entry) {
	switch e.Kind {
	case "meta":
		r.loras = e.LoRAs
	case "event", "replayed":
		r.event(e)
	case "mark":
		if e.What == "engine-kill" {
			for s, w := range r.workers {
				if s.worker == e.Worker {
					r.index.Clear(w)
					delete(r.last, s)
				}
			}
		}
	case "request":
		r.request(e)
	case "response":
		if !e.Exact {
			return
		}
		r.exact++
		if e.Cached > 0 {
			r.hits++
		}
		require.Equal(r.t, e.Cached, r.held[e.ID], "request %s", e.ID)
	}
}

func (r *recording) event(e *entry) {
	s := stream{e.Worker, *e.Rank}
	w, known := r.workers[s]
	if !known {
		w = r.index.Add()
		r.workers[s] = w
	}
	last, begun := r.last[s]
	if e.Kind == "replayed" && begun && e.Seq != last+1 {
		return
	}
	if begun && e.Seq <= last {
		r.index.Clear(w)
	}
	r.last[s] = e.Seq
	payload, err := hex.DecodeString(e.Payload)
	require.NoError(r.t, err)
	apply(r.t, r.index, w, payload)
}

// apply applies a batch as it is on the wire.
func apply(t *testing.T, x *Index, w Worker, payload []byte) {
	var b []any
	require.NoError(t, msgpack.Unmarshal(payload, &b))
	for _, e := range b[1].([]any) {
		event := e.(map[string]any)
		switch event["type"] {
		case "BlockStored":
			s := storedOf(t, event)
			a := x.Store(w, s)
			require.Zero(t, a.Orphans)
		case "BlockRemoved":
			x.Drop(w, &Dropped{Names: names(event["block_hashes"]), Tier: tier(t, event), Group: number(event["group_idx"])})
		case "AllBlocksCleared":
			x.Clear(w)
		default:
			require.Fail(t, "unknown event", event["type"])
		}
	}
}

func storedOf(t *testing.T, event map[string]any) *Stored {
	s := &Stored{
		Root:      event["parent_block_hash"] == nil,
		Names:     names(event["block_hashes"]),
		BlockSize: number(event["block_size"]),
		Tier:      tier(t, event),
		Group:     number(event["group_idx"]),
		Window:    number(event["kv_cache_spec_sliding_window"]),
	}
	if !s.Root {
		s.Parent = name(event["parent_block_hash"])
	}
	s.Kind, _ = event["kv_cache_spec_kind"].(string)
	s.Adapter, _ = event["lora_name"].(string)
	s.Salt, _ = event["cache_salt"].(string)
	for _, id := range event["token_ids"].([]any) {
		s.Tokens = append(s.Tokens, uint32(number(id)))
	}
	blocks, _ := event["extra_keys"].([]any)
	for i, block := range blocks {
		s.Media = append(s.Media, nil)
		keys, _ := block.([]any)
		for j, key := range keys {
			switch k := key.(type) {
			case []any:
				s.Media[i] = append(s.Media[i], MediaKey{k[0].(string), number(k[1])})
			case string:
				if j > 0 || s.Adapter == "" {
					s.Salt = k
				}
			}
		}
	}
	return s
}

func tier(t *testing.T, event map[string]any) Tier {
	require.Contains(t, []any{nil, "GPU"}, event["medium"])
	return Device
}

func names(v any) (all []uint64) {
	for _, h := range v.([]any) {
		all = append(all, name(h))
	}
	return all
}

func name(v any) uint64 {
	if digest, ok := v.([]byte); ok {
		return NameOf(digest)
	}
	if n, ok := v.(uint64); ok {
		return n
	}
	return uint64(number(v))
}

func number(v any) int {
	switch n := v.(type) {
	case int8:
		return int(n)
	case int16:
		return int(n)
	case int32:
		return int(n)
	case int64:
		return int(n)
	case uint8:
		return int(n)
	case uint16:
		return int(n)
	case uint32:
		return int(n)
	case uint64:
		return int(n)
	}
	return 0
}

func (r *recording) request(e *entry) {
	p := &Prompt{Salt: e.Salt, Media: e.Features}
	if json.Unmarshal(e.IDs, &p.Tokens) != nil {
		return // a batch
	}
	if slices.Contains(r.loras, e.Model) {
		p.Adapter = e.Model
	}
	r.prompts[e.ID] = p
	r.held[e.ID] = r.lookup(e, p)
}

func (r *recording) lookup(e *entry, p *Prompt) (held int) {
	var m Matches
	r.index.Lookup(p, time.Time{}, &m)
	for s, w := range r.workers {
		if s.worker == e.Worker && (e.Rank == nil || *e.Rank == s.rank) {
			held = max(held, m.Held(w))
		}
	}
	return held
}

func TestAnAnswerCorrectsCountsThatAClientInflated(t *testing.T) {
	r := &recording{
		t: t, index: New(Options{}), workers: map[stream]Worker{}, last: map[stream]uint64{},
		held: map[string]int{}, prompts: map[string]*Prompt{},
	}
	for _, e := range entries(t, "testdata/recordings/vllm-0.32.0-report-mode-full.jsonl.gz") {
		r.take(&e)
	}
	w, p := r.workers[stream{"w0", 0}], r.prompts["r13"]
	require.Equal(t, 128, r.held["r13"], "the engine had removed what the client had reported twice")
	require.Equal(t, 128, r.index.Correct(w, p, 128, 0))
	require.EqualValues(t, 4, r.index.Stats().Corrected)

	// It has computed the prompt now; one removal of each block is enough.
	require.Equal(t, 128, r.lookup(&entry{Worker: "w0"}, p))
	s := r.worker(t, w, p)
	require.Zero(t, r.index.Drop(w, &Dropped{Names: s}).Unknown)
	require.Zero(t, r.lookup(&entry{Worker: "w0"}, p))
	require.Zero(t, r.index.Correct(w, p, 0, 0))
}

// worker returns what a worker calls the blocks of a prompt.
func (r *recording) worker(t *testing.T, w Worker, p *Prompt) (names []uint64) {
	wk := r.index.worker(w)
	for _, key := range r.index.hash.appendKeys(nil, p, wk.size) {
		id := r.index.find(key)
		require.NotZero(t, id)
		names = append(names, r.index.nameOf(wk, id))
	}
	return names
}
