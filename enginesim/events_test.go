package enginesim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	"github.com/stretchr/testify/require"
)

// publishing are the options of an engine that publishes on free ports.
func publishing(shape Shape) Options {
	opts := instantOptions()
	events := DefaultEventOptions()
	events.Shape, events.Endpoint, events.Replay, events.Topic = shape, "tcp://*:0", "tcp://*:0", "kv-events"
	opts.Events = &events
	return opts
}

// freePorts returns the first of n ports in a row that nobody listens on.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	for range 1000 {
		first := freePort(t)
		free := 0
		for ; free < n; free++ {
			l, err := net.Listen("tcp", fmt.Sprintf(":%d", first+free))
			if err != nil {
				break
			}
			require.NoError(t, l.Close())
		}
		if free == n {
			return first
		}
	}
	require.Fail(t, "no free ports in a row")
	return 0
}

func publishingServer(t *testing.T, opts Options) *Server {
	t.Helper()
	s, err := NewServer(opts)
	require.NoError(t, err)
	require.NoError(t, s.OpenEvents(nil))
	t.Cleanup(s.CloseEvents)
	return s
}

// live is a message as a subscriber gets it.
type live struct {
	topic string
	seq   uint64
	batch batch
}

// subscriber is the other end of a PUB socket: go-zeromq's, as the engine's is ours.
type subscriber struct {
	t    *testing.T
	conn *zmq4.Conn
}

func dialSocket(t *testing.T, e endpoint, kind zmq4.SocketType) *zmq4.Conn {
	t.Helper()
	var dialer net.Dialer
	nc, err := dialer.DialContext(t.Context(), e.network, e.address())
	require.NoError(t, err)
	return openSocket(t, nc, kind)
}

func openSocket(t *testing.T, nc net.Conn, kind zmq4.SocketType) *zmq4.Conn {
	t.Helper()
	t.Cleanup(func() { _ = nc.Close() })
	require.NoError(t, nc.SetDeadline(time.Now().Add(time.Minute)))
	conn, err := zmq4.Open(nc, null.Security(), kind, nil, false, nil)
	require.NoError(t, err)
	return conn
}

// subscribe connects to a rank, and waits until the rank knows.
func subscribe(t *testing.T, s *Server, rank int) *subscriber {
	t.Helper()
	before := s.Events()[rank].Subscribers
	at, _ := s.publishers[rank].endpoints()
	sub := &subscriber{t, dialSocket(t, at, zmq4.Sub)}
	require.NoError(t, sub.conn.SendMsg(zmq4.NewMsgString("\x01kv")))
	require.Eventually(t, func() bool { return s.Events()[rank].Subscribers > before }, time.Minute, time.Millisecond)
	return sub
}

func (s *subscriber) next() live {
	s.t.Helper()
	msg, err := s.conn.RecvMsg()
	require.NoError(s.t, err)
	require.Len(s.t, msg.Frames, 3)
	require.Len(s.t, msg.Frames[1], 8)
	return live{string(msg.Frames[0]), bigEndian(msg.Frames[1]), decodeBatch(s.t, msg.Frames[2])}
}

// until reads up to the batch before seq.
func (s *subscriber) until(seq uint64) (all []live) {
	s.t.Helper()
	for len(all) == 0 || all[len(all)-1].seq+1 < seq {
		all = append(all, s.next())
	}
	return all
}

// believed is what events say that a cache holds.
type believed struct {
	t      *testing.T
	radix  bool
	vague  bool // what sets blocks apart is not told
	copies map[uint64]int
	named  map[string]uint64 // what a block is made of -> its name
}

func newBelieved(t *testing.T, shape Shape) *believed {
	return &believed{t: t, radix: shape.radix(), vague: shape == ShapeSGLangArray, copies: map[uint64]int{}, named: map[string]uint64{}}
}

// origin is what a block is made of: its parent, its tokens, and what sets it apart.
func origin(parent *uint64, tokens []uint32, keys any, adapter, salt string) string {
	var name any
	if parent != nil {
		name, salt = *parent, ""
	}
	return fmt.Sprint(name, tokens, keys, adapter, salt)
}

func (b *believed) apply(e told) {
	b.t.Helper()
	switch e.kind {
	case "AllBlocksCleared":
		clear(b.copies)
	case "BlockRemoved":
		for _, hash := range e.hashes {
			require.Positive(b.t, b.copies[hash], "removed, but not there")
			b.copies[hash]--
			if b.copies[hash] == 0 {
				delete(b.copies, hash)
			}
		}
	case "BlockStored":
		b.store(e)
	}
}

func (b *believed) store(e told) {
	b.t.Helper()
	require.Len(b.t, e.tokens, len(e.hashes)*e.size)
	parent := e.parent
	if parent != nil {
		require.NotZero(b.t, b.copies[*parent], "a child without its parent")
	}
	if !b.radix {
		require.Len(b.t, e.keys, len(e.hashes))
	}
	for i, hash := range e.hashes {
		var keys any
		if !b.radix {
			keys = e.keys[i]
		}
		key := origin(parent, e.tokens[i*e.size:(i+1)*e.size], keys, e.adapter, e.salt)
		if known, ok := b.named[key]; ok && !b.vague {
			require.Equal(b.t, known, hash, "the same block with another name")
		}
		b.named[key] = hash
		b.copies[hash]++
		if b.radix {
			require.Equal(b.t, 1, b.copies[hash], "twice in a tree")
		}
		parent = &hash
	}
}

// cached is what a rank's cache holds: how many copies of which block.
func cached(s *Server, rank int) map[uint64]int {
	e := s.life.Load().ranks[rank]
	e.mu.Lock()
	defer e.mu.Unlock()
	held := map[uint64]int{}
	for i := range e.cache.blocks {
		if b := &e.cache.blocks[i]; b.cached {
			held[b.hash]++
			if s.opts.radix() {
				held[b.hash] = 1
			}
		}
	}
	return held
}

// randomTraffic sends requests that share beginnings, some of which are given up, and
// resets the cache now and then.
func randomTraffic(t *testing.T, s *Server, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 7))
	for range 40 {
		var group sync.WaitGroup
		for range 1 + rng.IntN(3) {
			path, body, rank := randomRequest(rng), "", rng.IntN(3)
			path, body, _ = strings.Cut(path, " ")
			gone := rng.IntN(8) == 0
			group.Go(func() { ask(t, s, path, body, rank, gone) })
		}
		group.Wait()
		if rng.IntN(12) == 0 {
			require.Equal(t, 200, post(s, "/reset_prefix_cache", "").Code)
		}
	}
	for rank := range s.opts.Ranks { // whatever is told with the next step
		ask(t, s, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":1}`, strings.Repeat("end ", 20)), rank, false)
	}
}

func ask(t *testing.T, s *Server, path, body string, rank int, gone bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(body))
	if rank < s.opts.Ranks {
		r.Header.Set("X-Data-Parallel-Rank", fmt.Sprint(rank))
	}
	if gone {
		cancel()
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if !gone && w.Code != 200 {
		t.Errorf("%s %s: %d %s", path, body, w.Code, w.Body)
	}
}

// randomRequest is a path and a body.
func randomRequest(rng *rand.Rand) string {
	text := strings.Repeat(fmt.Sprintf("word%d ", rng.IntN(3)), rng.IntN(20)) + strings.Repeat("tail ", rng.IntN(12))
	more := fmt.Sprintf(`"max_tokens":%d,"n":%d,"model":%q`, 1+rng.IntN(20), 1+rng.IntN(2), []string{"base", "base", "adapter"}[rng.IntN(3)])
	if rng.IntN(3) == 0 {
		more += `,"cache_salt":"s"`
	}
	if rng.IntN(3) > 0 {
		return fmt.Sprintf(`/v1/completions {"prompt":%q,%s}`, text+"end", more)
	}
	return fmt.Sprintf(`/v1/chat/completions {"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://example.com/%d"}},{"type":"text","text":%q}]}],%s}`, rng.IntN(2), text, more)
}

func TestEventsTellWhatTheCacheHolds(t *testing.T) {
	for _, shape := range shapes {
		removed := 0
		for seed := range uint64(tries(3, 300)) {
			t.Run(fmt.Sprint(shape, " ", seed), func(t *testing.T) {
				opts := publishing(shape)
				opts.Models, opts.Ranks = []string{"base", "adapter"}, 2
				opts.BlockSize, opts.Capacity, opts.MaxModelLen = 16, 16*60, 16*40
				if shape.radix() { // whose ports are in a row
					first := freePorts(t, 4)
					opts.Events.Endpoint = fmt.Sprintf("tcp://*:%d", first)
					opts.Events.Replay = fmt.Sprintf("tcp://*:%d", first+2)
				}
				s := publishingServer(t, opts)
				subscribers := []*subscriber{subscribe(t, s, 0), subscribe(t, s, 1)}
				randomTraffic(t, s, seed)
				for rank, sub := range subscribers {
					b := newBelieved(t, shape)
					for _, message := range sub.until(s.Events()[rank].Next) {
						require.Equal(t, "kv-events", message.topic)
						require.Equal(t, rank, message.batch.rank)
						for _, e := range message.batch.events {
							b.apply(e)
							if e.kind == "BlockRemoved" {
								removed += len(e.hashes)
							}
						}
					}
					require.Equal(t, cached(s, rank), b.copies, "rank %d", rank)
					require.NotEmpty(t, b.copies)
				}
			})
		}
		require.NotZero(t, removed, "nothing was evicted")
	}
}

func TestEventsPredictWhatIsFoundInTheCache(t *testing.T) {
	for _, shape := range []Shape{ShapeVLLM, ShapeSGLang} {
		t.Run(string(shape), func(t *testing.T) {
			opts := publishing(shape)
			opts.Capacity, opts.MaxModelLen = 16*60, 16*40
			s := publishingServer(t, opts)
			sub := subscribe(t, s, 0)
			b := newBelieved(t, shape)
			rng := rand.New(rand.NewPCG(3, 3))
			hits, seen := 0, s.Events()[0].Next
			for range 200 {
				text := strings.Repeat(fmt.Sprintf("word%d ", rng.IntN(4)), 1+rng.IntN(60)) + "end"
				var ids tokenized
				decodeAnswer(t, post(s, "/tokenize", fmt.Sprintf(`{"prompt":%q}`, text)), &ids)
				predicted := b.predict(ids.Tokens, opts.BlockSize)
				answer := asWhole(t, post(s, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":%d}`, text, 1+rng.IntN(30))))
				require.Equal(t, predicted, answer.Usage.PromptDetails.CachedTokens)
				hits += min(predicted, 1)
				if next := s.Events()[0].Next; next > seen {
					for _, message := range sub.until(next) {
						for _, e := range message.batch.events {
							b.apply(e)
						}
					}
					seen = next
				}
			}
			require.Greater(t, hits, 50)
		})
	}
}

// predict is how many of a prompt's tokens a cache as believed holds.
func (b *believed) predict(ids []uint32, size int) (tokens int) {
	var parent *uint64
	var none any
	for end := size; end < len(ids); end += size { // the last token is always computed
		hash, ok := b.named[origin(parent, ids[end-size:end], none, "", "")]
		if !ok || b.copies[hash] == 0 {
			break
		}
		parent, tokens = &hash, end
	}
	return tokens
}

func decodeAnswer(t *testing.T, w *httptest.ResponseRecorder, into any) {
	t.Helper()
	require.Equal(t, 200, w.Code, w.Body)
	apiErr := decode(w.Body.Bytes(), into)
	require.Nil(t, apiErr)
}

// kinds are the kinds of a batch's events, in order.
func (m live) kinds() (kinds []string) {
	for _, e := range m.batch.events {
		kinds = append(kinds, e.kind)
	}
	return kinds
}

func TestBlocksOfAnAnswerAreToldWhenTheyAreFull(t *testing.T) {
	opts := publishing(ShapeVLLM)
	s := publishingServer(t, opts)
	sub := subscribe(t, s, 0)
	ids := strings.Trim(strings.Repeat("7,", 20), ",")
	var answer struct {
		Choices []struct {
			IDs []uint32 `json:"token_ids"`
		} `json:"choices"`
	}
	decodeAnswer(t, post(s, "/v1/completions", `{"prompt":[`+ids+`],"max_tokens":30,"return_token_ids":true}`), &answer)
	got := sub.until(s.Events()[0].Next)
	require.Len(t, got, 3, "with the first token, at 32 and at 48 tokens")
	require.Len(t, got[0].batch.events[0].tokens, 16)
	require.Equal(t, got[0].batch.events[0].hashes[0], *got[1].batch.events[0].parent)
	all := append(slices.Repeat([]uint32{7}, 20), answer.Choices[0].IDs...)
	require.Equal(t, all[16:32], got[1].batch.events[0].tokens)
	require.Equal(t, all[32:48], got[2].batch.events[0].tokens)

	tree := publishingServer(t, publishing(ShapeSGLang))
	sub = subscribe(t, tree, 0)
	require.Equal(t, 200, post(tree, "/v1/completions", `{"prompt":[`+ids+`],"max_tokens":30}`).Code)
	got = sub.until(tree.Events()[0].Next)
	require.Len(t, got, 2, "with the first token, and at the end")
	require.Equal(t, all[16:48], got[1].batch.events[0].tokens)
}

func TestEventsOfAPromptLeaveBeforeItsFirstToken(t *testing.T) {
	s := publishingServer(t, publishing(ShapeVLLM))
	var next uint64
	s.Watch(func(Prefill) { next = s.Events()[0].Next })
	post(s, "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":1}`, english))
	require.EqualValues(t, 1, next)
}

func TestLastBlockOfAWhollyCachedPromptIsToldAgain(t *testing.T) {
	s := publishingServer(t, publishing(ShapeVLLM))
	sub := subscribe(t, s, 0)
	body := `{"prompt":[` + strings.Trim(strings.Repeat("7,", 32), ",") + `],"max_tokens":1}`
	post(s, "/v1/completions", body)
	post(s, "/v1/completions", body)
	got := sub.until(2)
	first, again := got[0].batch.events[0], got[1].batch.events[0]
	require.Equal(t, first.hashes[1:], again.hashes)
	require.Equal(t, first.hashes[0], *again.parent)
}

func TestResetIsToldWhenTheEngineTellsIt(t *testing.T) {
	s := publishingServer(t, publishing(ShapeVLLM))
	sub := subscribe(t, s, 0)
	body := fmt.Sprintf(`{"prompt":%q,"max_tokens":1}`, english)
	post(s, "/v1/completions", body)
	require.Equal(t, 200, post(s, "/reset_prefix_cache", "").Code)
	require.EqualValues(t, 1, s.Events()[0].Next, "vLLM waits for the next step")
	post(s, "/v1/completions", body)
	require.Equal(t, []string{"AllBlocksCleared", "BlockStored"}, sub.until(2)[1].kinds())

	tree := publishingServer(t, publishing(ShapeSGLang))
	require.EqualValues(t, 1, tree.Events()[0].Next, "SGLang's first event comes by itself")
	require.Equal(t, []string{"AllBlocksCleared"}, replayed(t, tree, 0, number(0)).batches[0].kinds())
	sub = subscribe(t, tree, 0)
	require.Equal(t, 200, post(tree, "/flush_cache", "").Code)
	require.Equal(t, []string{"AllBlocksCleared"}, sub.next().kinds())

	running, err := tree.life.Load().ranks[0].submit(prompt{ids: []uint32{1}}, namespace{}, 1, 0)
	require.NoError(t, err)
	require.Equal(t, 400, post(tree, "/flush_cache", "").Code)
	running.abandon()
}

func TestWhatSetsPromptsApartIsTold(t *testing.T) {
	opts := publishing(ShapeVLLM)
	opts.Models = []string{"base", "adapter"}
	body := func(more string) string {
		return `{"messages":[{"role":"user","content":[{"type":"image_url","uuid":"cat","image_url":{"url":"x"}}]}],"max_tokens":1` + more + `}`
	}
	s := publishingServer(t, opts)
	sub := subscribe(t, s, 0)
	post(s, "/v1/chat/completions", body(`,"model":"adapter","cache_salt":"s"`))
	e := sub.next().batch.events[0]
	require.Equal(t, "adapter", e.adapter)
	require.Equal(t, 1, e.id)
	start := slices.Index(e.tokens, imagePad)
	require.Equal(t, []any{"adapter", []any{"cat", start}, "s"}, e.keys[0])
	require.Equal(t, []any{"adapter", []any{"cat", start - 16}}, e.keys[1])

	opts.Events = publishing(ShapeSGLang).Events
	tree := publishingServer(t, opts)
	sub = subscribe(t, tree, 0)
	post(tree, "/v1/chat/completions", body(`,"model":"adapter","cache_salt":"s"`))
	e = sub.next().batch.events[0]
	require.Equal(t, "adapter", e.adapter)
	require.Equal(t, "s", e.salt)
	require.NotContains(t, e.tokens, imagePad, "pictures have ids of their own")
	post(tree, "/generate", `{"text":"one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen","extra_key":"k","sampling_params":{"max_new_tokens":1}}`)
	require.Empty(t, sub.next().batch.events[0].salt, "SGLang does not tell of extra keys")
}
