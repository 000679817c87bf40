package inference

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/coding"
	"github.com/caddy-inference/caddy-inference/kvevents"
	"github.com/caddy-inference/caddy-inference/prompt"
	"github.com/caddy-inference/caddy-inference/selection"
)

// texts make prompt text of a kind: what a JSON string holds, n bytes of it.
var texts = map[string]func(r *rand.Rand, n int) string{
	"english": func(r *rand.Rand, n int) string {
		return words(r, n, "the", "router", "sends", "a", "prompt", "to", "its", "cache,")
	},
	"chinese": func(r *rand.Rand, n int) string {
		return words(r, n, "请求", "前缀", "缓存", "引擎", "路由", "的")
	},
	"agent": func(r *rand.Rand, n int) string {
		return words(r, n, `func main() {\n`, `\tif err != nil {\n`, `\"path\":`, `\"value\",`, `C:\\tmp\\x`, `return nil\n}\n`)
	},
	"escaped": func(r *rand.Rand, n int) string {
		return words(r, n, `\u8bf7\u6c42`, `\u7f13\u5b58`, `\u00e9`, `\u8def\u7531`)
	},
}

// words joins random words and numbers to n bytes, cut where a word ends.
func words(r *rand.Rand, n int, list ...string) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(list[r.IntN(len(list))])
		b.WriteByte(' ')
		if r.IntN(4) == 0 {
			b.WriteString(strconv.Itoa(r.IntN(1000)))
		}
	}
	return b.String()
}

var sizes = []struct {
	name  string
	bytes int
}{{"200B", 200}, {"2KiB", 2 << 10}, {"16KiB", 16 << 10}, {"128KiB", 128 << 10}, {"1MiB", 1 << 20}}

// BenchmarkDecision is a decision: a body's bytes are parsed and fingerprinted,
// matched with what was sent where, all workers are scored, the cheapest is
// charged, and what it was sent is inserted.
func BenchmarkDecision(b *testing.B) {
	eachCase(b, func(b *testing.B, sent []byte, next func(), workers int) {
		policy, pool := benchmarkPolicy(b, workers)
		rt, now := policy.router, policy.router.state.clock.now()
		m := rt.members(pool)
		t := &ticket{state: rt.state, owner: &policy.Policy, body: &body{whole: true}}
		benchmark(b, sent, next, func() {
			t.body.data = sent
			t.cause = t.parse("/v1/chat/completions", int64(len(sent)))
			candidates := t.candidates(rt, pool, m)
			choice, reservation := selection.Place(selection.Cost{}, t.tokens, candidates, now)
			t.placed(rt, m, reservation, choice)
			reservation.Release(rt.state.clock.now())
			rt.state.putScratch(t.scratch)
		})
	})
}

// BenchmarkDecisionOfEncoded is a decision on a body of 16 KiB that may be encoded, which
// is decoded first.
func BenchmarkDecisionOfEncoded(b *testing.B) {
	text := []byte(chatOf(message("user", texts["english"](rand.New(rand.NewPCG(1, 1)), 16<<10))))
	for label, names := range map[string][]string{"": nil, "gzip": {"gzip"}, "deflate": {"zlib"}, "br": {"br"}, "zstd": {"zstd"}} {
		b.Run("coding="+cmp.Or(label, "none"), func(b *testing.B) {
			codings, _ := coding.Parse([]string{label})
			policy, pool := benchmarkPolicy(b, 4)
			rt, now := policy.router, policy.router.state.clock.now()
			m := rt.members(pool)
			t := &ticket{state: rt.state, owner: &policy.Policy}
			t.body = &body{budget: &rt.state.buffered, whole: true}
			sent := encode(b, text, names...)
			benchmark(b, text, func() {}, func() {
				t.body.data = sent
				if !codings.None() {
					t.decoded = decode(t.body, codings, policy.MaxBody)
				}
				t.cause = t.parse("/v1/chat/completions", int64(len(sent)))
				t.forgetText()
				candidates := t.candidates(rt, pool, m)
				choice, reservation := selection.Place(selection.Cost{}, t.tokens, candidates, now)
				t.placed(rt, m, reservation, choice)
				reservation.Release(rt.state.clock.now())
				rt.state.putScratch(t.scratch)
			})
		})
	}
}

// BenchmarkDecisionByTokens is a decision of kv_aware on a body with token ids, in front of
// engines that all hold its beginning and say so: what BenchmarkDecision is, and ids are
// parsed, looked up and expected.
func BenchmarkDecisionByTokens(b *testing.B) {
	for _, tokens := range []int{1024, 16384, 131072} {
		for _, workers := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("tokens=%d/workers=%d", tokens, workers), func(b *testing.B) {
				ids := someIDs(rand.New(rand.NewPCG(1, 1)), tokens)
				sent := []byte(completion(ids))
				policy, pool := benchmarkKVAware(b, workers)
				rt := policy.router
				m := rt.members(pool)
				for _, w := range m.workers {
					tell(rt.state, w, ids)
				}
				t := &ticket{state: rt.state, owner: &policy.Policy, body: &body{whole: true}, api: prompt.Completions, rank: -1}
				r := httptest.NewRequest(http.MethodPost, "/v1/completions", nil)
				benchmark(b, sent, func() {}, func() {
					t.body.data = sent
					t.cause = t.parse("/v1/completions", int64(len(sent)))
					t.identify(r)
					candidates := t.candidates(rt, pool, m)
					choice, reservation := policy.choose(t, candidates)
					if !t.exact.informed || choice.Reason != selection.Hit {
						b.Fatal(t.exact.unknown, choice)
					}
					t.placed(rt, m, reservation, choice)
					reservation.Release(rt.state.clock.now())
					rt.state.putScratch(t.scratch)
				})
			})
		}
	}
}

// tell has the state know that a worker holds a prompt, as if its engine had said so.
func tell(s *state, w *worker, ids []uint32) {
	f, handle := &feed{state: s, worker: w}, s.index.Add()
	f.handle.Store(&handle)
	f.status.Store(&kvevents.Status{State: kvevents.Synced})
	w.feed.Store(f)
	names := make([]kvevents.Hash, len(ids)/16)
	for i := range names {
		names[i] = kvevents.Hash(i + 1)
	}
	f.Apply(&kvevents.Batch{Events: []kvevents.Event{{
		Kind: kvevents.Stored, Hashes: names, Tokens: ids, TokenWidth: 1, BlockSize: 16, Tier: kvevents.TierDevice,
	}}})
}

// benchmarkKVAware provisions a policy in front of upstreams that nobody dials.
func benchmarkKVAware(tb testing.TB, workers int) (*KVAware, reverseproxy.UpstreamPool) {
	tb.Helper()
	ctx, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}})
	require.NoError(tb, err)
	module, err := ctx.LoadModuleByID("http.reverse_proxy.selection_policies.kv_aware", json.RawMessage(`{"tokenizer":"none"}`))
	require.NoError(tb, err)
	return module.(*KVAware), benchmarkPool(workers)
}

// BenchmarkSelect is all that the policy adds to a request on its way to the
// engine: reading the body, a ticket with its log field and placeholders, the
// decision, and what is done when the answer begins and ends.
func BenchmarkSelect(b *testing.B) {
	eachCase(b, func(b *testing.B, body []byte, next func(), workers int) {
		policy, pool := benchmarkPolicy(b, workers)
		request := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", nil)
		reader := bytes.NewReader(body)
		benchmark(b, body, next, func() {
			reader.Reset(body)
			ctx, cancel := context.WithCancel(context.Background())
			r := request.WithContext(context.WithValue(ctx, caddyhttp.VarsCtxKey, map[string]any{}))
			r.Body, r.ContentLength = io.NopCloser(reader), int64(len(body))
			if policy.Select(pool, r, nil) == nil {
				b.Fatal("no upstream")
			}
			t := ticketOf(r.Context())
			t.sending.sent()
			t.begun()
			t.release()
			cancel()
		})
	})
}

// eachCase runs a benchmark for each size, kind of text, hit or not, and number
// of workers. next changes the body so that nobody holds it.
func eachCase(b *testing.B, run func(b *testing.B, body []byte, next func(), workers int)) {
	for _, size := range sizes {
		for _, kind := range []string{"english", "chinese", "agent", "escaped"} {
			for _, what := range []string{"hit", "cold"} {
				for _, workers := range []int{1, 4, 16, 64} {
					b.Run(fmt.Sprintf("size=%s/text=%s/case=%s/workers=%d", size.name, kind, what, workers), func(b *testing.B) {
						random := rand.New(rand.NewPCG(1, uint64(size.bytes)))
						body := []byte(chatOf(message("system", "You are a helpful assistant.") + "," +
							message("user", "#00000000000000000# "+texts[kind](random, size.bytes))))
						number, i := body[bytes.IndexByte(body, '#')+1:], int64(1e16)
						next := func() {
							if what == "cold" {
								i++
								copy(number, strconv.AppendInt(nil, i, 10))
							}
						}
						run(b, body, next, workers)
					})
				}
			}
		}
	}
}

func benchmark(b *testing.B, body []byte, next, decide func()) {
	decide()
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		next()
		decide()
	}
}

// benchmarkPolicy provisions a policy in front of upstreams that nobody dials.
func benchmarkPolicy(tb testing.TB, workers int) (*CacheAware, reverseproxy.UpstreamPool) {
	tb.Helper()
	ctx, err := caddy.ProvisionContext(&caddy.Config{Admin: &caddy.AdminConfig{Disabled: true}})
	require.NoError(tb, err)
	module, err := ctx.LoadModuleByID("http.reverse_proxy.selection_policies.cache_aware", json.RawMessage(`{}`))
	require.NoError(tb, err)
	return module.(*CacheAware), benchmarkPool(workers)
}

func benchmarkPool(workers int) reverseproxy.UpstreamPool {
	pool := make(reverseproxy.UpstreamPool, workers)
	for i := range pool {
		pool[i] = &reverseproxy.Upstream{Host: new(reverseproxy.Host), Dial: fmt.Sprintf("192.0.2.%d:8000", i+1)}
	}
	return pool
}
