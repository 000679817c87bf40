package inference

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-inference/caddy-inference/enginesim"
	"github.com/caddy-inference/caddy-inference/kvindex"
)

// telling is a simulated engine that takes no time and says what it holds.
type telling struct {
	*enginesim.Server
	address string
}

// newTelling starts one with some changes to its options.
func newTelling(t *testing.T, changes ...func(*enginesim.Options)) *telling {
	t.Helper()
	options := enginesim.DefaultOptions()
	options.PrefillRate = 0
	options.Events = &enginesim.EventOptions{
		Shape: enginesim.ShapeVLLM, Endpoint: "tcp://*:0", Replay: "tcp://*:0",
		Topic: "kv-events", BufferSteps: 10_000, Hashes: enginesim.HashInt,
	}
	for _, change := range changes {
		change(&options)
	}
	engine, err := enginesim.NewServer(options)
	require.NoError(t, err)
	require.NoError(t, engine.OpenEvents(nil))
	server := httptest.NewServer(engine)
	t.Cleanup(server.Close)
	t.Cleanup(engine.CloseEvents)
	return &telling{engine, server.Listener.Addr().String()}
}

func newTellings(t *testing.T, n int, changes ...func(*enginesim.Options)) (engines []*telling, addresses []string) {
	for range n {
		engines = append(engines, newTelling(t, changes...))
		addresses = append(addresses, engines[len(engines)-1].address)
	}
	return engines, addresses
}

// workersOf returns what requests to an upstream are placed on.
func workersOf(t *testing.T, address string) []*worker {
	t.Helper()
	for _, w := range theState(t).members() {
		if w.Address() == address {
			return w.parts()
		}
	}
	require.Fail(t, "no worker", address)
	return nil
}

// requireSynced waits until all that the engines hold is known.
func requireSynced(t *testing.T, addresses ...string) {
	t.Helper()
	now := theState(t).clock.now()
	require.EventuallyWithT(t, func(c *assertT) {
		for _, address := range addresses {
			for _, w := range workersOf(t, address) {
				require.Empty(c, w.inexact(now), w.Address())
			}
		}
	}, patience, tick)
}

// requireHolds waits until it is known that the worker holds so many tokens of a prompt.
func requireHolds(t *testing.T, w *worker, tokens int, ids []uint32) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assertT) {
		require.Equal(c, tokens, known(t, w, ids))
	}, patience, tick)
}

// requireUnexpected waits until nothing is expected of the worker any more.
func requireUnexpected(t *testing.T, w *worker, ids []uint32) {
	t.Helper()
	require.Eventually(t, func() bool {
		var m kvindex.Matches
		s := theState(t)
		s.index.Lookup(&kvindex.Prompt{Tokens: ids}, s.clock.now(), &m)
		return m.Expected(*w.feed.Load().handle.Load()) == 0
	}, patience, tick)
}

// known returns how many tokens of a prompt the worker is known to hold.
func known(t *testing.T, w *worker, ids []uint32) int {
	t.Helper()
	var m kvindex.Matches
	s := theState(t)
	s.index.Lookup(&kvindex.Prompt{Tokens: ids}, s.clock.now(), &m)
	return m.Held(*w.feed.Load().handle.Load())
}

// someIDs returns random token ids.
func someIDs(r *rand.Rand, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = 16 + r.Uint32N(100_000)
	}
	return ids
}

// completion is a request whose prompt is token ids.
func completion(ids []uint32) string {
	b, _ := json.Marshal(ids)
	return fmt.Sprintf(`{"model":"sim","max_tokens":1,"prompt":%s}`, b)
}

// complete sends such a request and returns the decision, the nth that is made.
func (s *site) complete(n int, ids []uint32) map[string]any {
	s.t.Helper()
	status, text := s.post("/v1/completions", completion(ids))
	require.Equal(s.t, http.StatusOK, status, text)
	return s.lastDecision(n)
}

func freePort(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(freeAddress(t))
	require.NoError(t, err)
	return port
}

// TestFollowUpsGoWhereTheirPastIsAndFindAllOfIt plays conversations, in turn, in all shapes
// of events: what was predicted is what the engine finds, to the token.
func TestFollowUpsGoWhereTheirPastIsAndFindAllOfIt(t *testing.T) {
	for _, shape := range []enginesim.Shape{enginesim.ShapeVLLM, enginesim.ShapeVLLMArray, enginesim.ShapeSGLang} {
		t.Run(string(shape), func(t *testing.T) {
			var addresses []string
			var options strings.Builder
			for range 3 {
				live, replay := freePort(t), freePort(t)
				engine := newTelling(t, func(o *enginesim.Options) {
					o.Events.Shape, o.Events.Endpoint, o.Events.Replay = shape, "tcp://*:"+live, "tcp://*:"+replay
				})
				addresses = append(addresses, engine.address)
				if shape == enginesim.ShapeVLLMArray { // it cannot be asked
					fmt.Fprintf(&options, "events %s tcp://*:%s\nreplay %s tcp://127.0.0.1:%s\n", engine.address, live, engine.address, replay)
				}
			}
			s := startSite(t, "lb_policy kv_aware {\n"+options.String()+"}", addresses...)
			requireSynced(t, addresses...)
			r := rand.New(rand.NewPCG(1, 1))
			conversations := make([][]uint32, 5)
			placed, n := make([]any, len(conversations)), 0
			for turn := range 4 {
				for i := range conversations {
					before := len(conversations[i])
					conversations[i] = append(conversations[i], someIDs(r, 500+r.IntN(500))...)
					n++
					d := s.complete(n, conversations[i])
					require.Equal(t, true, d["exact"], "%v", d)
					require.EqualValues(t, len(conversations[i]), d["prompt_tokens"])
					require.Equal(t, d["cached_tokens"], d["held_tokens"], "%v", d)
					if turn > 0 {
						require.Equal(t, placed[i], d["upstream"], "%v", d)
						require.Equal(t, "hit", d["reason"])
						require.EqualValues(t, before/16*16, d["held_tokens"])
					}
					placed[i] = d["upstream"]
					w := workersOf(t, d["upstream"].(string))[0]
					requireHolds(t, w, len(conversations[i])/16*16, append(slices.Clone(conversations[i]), 1))
				}
			}
			require.EqualValues(t, n, value(t, "predictions_total", "outcome", "exact"))
			require.EqualValues(t, 3, value(t, "event_stream", "state", "synced"))
			require.Positive(t, value(t, "exact", "model", "sim", "cause", ""))
			require.Positive(t, value(t, "indexed_blocks"))
		})
	}
}

// TestWhatAnEngineHasEvictedIsNotCredited fills a cache beyond its size.
func TestWhatAnEngineHasEvictedIsNotCredited(t *testing.T) {
	engine := newTelling(t, func(o *enginesim.Options) { o.Capacity, o.MaxModelLen = 4096, 4096 })
	s := newSite(t)
	s.load(s.caddyfileWith("inference {\ntime_scale 100\n}", "lb_policy kv_aware", engine.address))
	requireSynced(t, engine.address)
	r := rand.New(rand.NewPCG(2, 2))
	first := someIDs(r, 2000)
	require.EqualValues(t, 0, s.complete(1, first)["held_tokens"])
	w := workersOf(t, engine.address)[0]
	requireHolds(t, w, 1984, first)
	s.complete(2, someIDs(r, 3000))
	require.Eventually(t, func() bool { return known(t, w, first) < 1984 }, patience, tick)
	require.Eventually(t, func() bool {
		return theState(t).index.Holding(*w.feed.Load().handle.Load()).Blocks == engine.Stats().BlocksStored-engine.Stats().BlocksRemoved
	}, patience, tick)
	requireUnexpected(t, w, first)
	d := s.complete(3, first)
	require.Equal(t, d["cached_tokens"], d["held_tokens"])
	require.Less(t, d["held_tokens"], 1984.0)
}

// TestAnEngineThatWasRestartedHoldsNothing restarts one under a router that is not told.
func TestAnEngineThatWasRestartedHoldsNothing(t *testing.T) {
	engines, addresses := newTellings(t, 2)
	s := startSite(t, "lb_policy kv_aware", addresses...)
	requireSynced(t, addresses...)
	ids := someIDs(rand.New(rand.NewPCG(3, 3)), 1000)
	d := s.complete(1, ids)
	i := slices.Index(addresses, d["upstream"].(string))
	requireHolds(t, workersOf(t, addresses[i])[0], 992, ids)
	engines[i].Restart()
	requireHolds(t, workersOf(t, addresses[i])[0], 0, ids)
	requireSynced(t, addresses...)
	d = s.complete(2, ids)
	require.Equal(t, []any{true, "cold", 0.0, 0.0}, []any{d["exact"], d["reason"], d["held_tokens"], d["cached_tokens"]})
}

// TestWhatOtherRoutersHaveSentIsKnown sends the beginning of a conversation to an engine
// directly, as another router would.
func TestWhatOtherRoutersHaveSentIsKnown(t *testing.T) {
	_, addresses := newTellings(t, 4)
	s := startSite(t, "lb_policy kv_aware", addresses...)
	requireSynced(t, addresses...)
	r := rand.New(rand.NewPCG(4, 4))
	for n := range 8 {
		address, ids := addresses[n%4], someIDs(r, 800)
		response, err := s.client.Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(completion(ids)))
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		requireHolds(t, workersOf(t, address)[0], 784, ids)
		d := s.complete(n+1, append(ids, someIDs(r, 100)...))
		require.Equal(t, []any{address, "hit", 800.0, 800.0}, []any{d["upstream"], d["reason"], d["held_tokens"], d["cached_tokens"]}, "%v", d)
	}
}

// TestAReloadKeepsTheFeeds loads another config with the same engines.
func TestAReloadKeepsTheFeeds(t *testing.T) {
	_, addresses := newTellings(t, 2)
	s := startSite(t, "lb_policy kv_aware", addresses...)
	requireSynced(t, addresses...)
	ids := someIDs(rand.New(rand.NewPCG(5, 5)), 1000)
	w := workersOf(t, s.complete(1, ids)["upstream"].(string))[0]
	requireHolds(t, w, 992, ids)
	feed := w.feed.Load()
	s.load(s.caddyfile("lb_policy kv_aware {\nmax_index_size 64MiB\n}\n"+tellReason, addresses...))
	require.Same(t, feed, w.feed.Load())
	require.EqualValues(t, 1, feed.subscriber.Stats().Replays)
	require.Equal(t, 992, known(t, w, ids))
	require.EqualValues(t, 64<<20, value(t, "index_limit_bytes"))

	s.load(s.caddyfile("lb_policy cache_aware", addresses...))
	require.Nil(t, w.feed.Load(), "the last policy that follows events has left")
	require.Zero(t, theState(t).index.Stats().Workers)
}

// TestEnginesThatSayNothingAreRoutedByWhatTheyWereSent has engines without events: requests
// stay with their past, and the log says why that is not known for certain, and what to do.
func TestEnginesThatSayNothingAreRoutedByWhatTheyWereSent(t *testing.T) {
	_, addresses := newTellings(t, 3, func(o *enginesim.Options) { o.Events = nil })
	s := newSite(t)
	s.load(s.caddyfileWith("inference {\ntime_scale 100\n}", "lb_policy kv_aware", addresses...))
	core, logs := observer.New(zapcore.InfoLevel)
	theState(t).logger.Store(zap.New(core))
	require.Eventually(t, func() bool { return value(t, "event_stream", "state", noEvents) == 3 }, patience, tick)
	r := rand.New(rand.NewPCG(6, 6))
	ids, placed := someIDs(r, 2000), any(nil)
	for n := range 5 {
		d := s.complete(n+1, ids)
		require.Equal(t, []any{false, noEvents}, []any{d["exact"], d["inexact"]}, "%v", d)
		if n > 0 {
			require.Equal(t, []any{placed, "hit"}, []any{d["upstream"], d["reason"]})
		}
		placed, ids = d["upstream"], append(ids, someIDs(r, 100)...)
	}
	require.Eventually(t, func() bool { return logs.FilterField(zap.String("cause", noEvents)).Len() == 3 }, patience, tick)
	told := logs.FilterField(zap.String("upstream", addresses[0])).All()[0]
	require.Equal(t, zapcore.WarnLevel, told.Level)
	require.Contains(t, told.ContextMap()["hint"], "--kv-events-config")
	require.Zero(t, value(t, "exact", "model", "sim"))
}

// TestRanksAreChosenAmong has engines of two data parallel ranks, which do not share a cache.
func TestRanksAreChosenAmong(t *testing.T) {
	_, addresses := newTellings(t, 2, func(o *enginesim.Options) { o.Ranks = 2 })
	s := startSite(t, "lb_policy kv_aware", addresses...)
	require.Eventually(t, func() bool {
		return len(workersOf(t, addresses[0])) == 2 && len(workersOf(t, addresses[1])) == 2
	}, patience, tick)
	requireSynced(t, addresses...)
	r := rand.New(rand.NewPCG(7, 7))
	seen := map[any]bool{}
	for n := range 8 {
		ids := someIDs(r, 1000)
		first := s.complete(2*n+1, ids)
		require.Regexp(t, "^"+addresses[0]+"@[01]$|^"+addresses[1]+"@[01]$", first["upstream"])
		seen[first["upstream"]] = true
		second := s.complete(2*n+2, append(ids, someIDs(r, 100)...))
		require.Equal(t, []any{first["upstream"], "hit", 992.0}, []any{second["upstream"], second["reason"], second["cached_tokens"]}, "%v", second)
	}
	require.Len(t, seen, 4, "all ranks get work")
}

// TestTheClientsRankIsItsOwnChoice sends requests that say which rank they want.
func TestTheClientsRankIsItsOwnChoice(t *testing.T) {
	engine := newTelling(t, func(o *enginesim.Options) { o.Ranks = 2 })
	s := startSite(t, "lb_policy kv_aware", engine.address)
	require.Eventually(t, func() bool { return len(workersOf(t, engine.address)) == 2 }, patience, tick)
	requireSynced(t, engine.address)
	ids := someIDs(rand.New(rand.NewPCG(8, 8)), 1000)
	for n, rank := range []string{"1", "0", "1"} {
		request := newRequest(t, s.url+"/v1/completions", strings.NewReader(completion(ids)))
		request.Header.Set("X-Data-Parallel-Rank", rank)
		response, err := s.client.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		d := s.lastDecision(n + 1)
		require.Equal(t, engine.address+"@"+rank, d["upstream"])
		if n < 2 {
			require.EqualValues(t, 0, d["cached_tokens"])
		} else {
			require.EqualValues(t, 992, d["cached_tokens"])
		}
	}
	request := newRequest(t, s.url+"/v1/completions", strings.NewReader(completion(ids)))
	request.Header.Set("X-Data-Parallel-Rank", "2")
	response, err := s.client.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusBadRequest, response.StatusCode, "there is none; the engine says so")
}

// TestAResetThatPassesThroughIsKnownAtOnce resets a cache through the router: the engine's
// own event comes no sooner than its next step.
func TestAResetThatPassesThroughIsKnownAtOnce(t *testing.T) {
	engine := newTelling(t)
	s := startSite(t, "lb_policy kv_aware", engine.address)
	requireSynced(t, engine.address)
	ids := someIDs(rand.New(rand.NewPCG(9, 9)), 1000)
	s.complete(1, ids)
	w := workersOf(t, engine.address)[0]
	requireHolds(t, w, 992, ids)
	status, _ := s.post("/reset_prefix_cache", "")
	require.Equal(t, http.StatusOK, status)
	require.Zero(t, known(t, w, ids))
	require.EqualValues(t, 0, s.complete(3, ids)["held_tokens"])
	requireHolds(t, w, 992, ids)
}

// TestAFeedThatAnswersContradictIsReadAnew has an engine find nothing of what it says to
// hold: after some answers its events are read anew, and if that does not help, it is not
// believed for a while.
func TestAFeedThatAnswersContradictIsReadAnew(t *testing.T) {
	engine := newTelling(t)
	s := startSite(t, "lb_policy kv_aware", engine.address)
	requireSynced(t, engine.address)
	ids := someIDs(rand.New(rand.NewPCG(10, 10)), 1000)
	s.complete(1, ids)
	w := workersOf(t, engine.address)[0]
	requireHolds(t, w, 992, ids)
	now, before := theState(t).clock.now(), w.feed.Load()
	prompt := kvindex.Prompt{Tokens: ids}
	for range enoughMisses {
		before.saw(992, 0, &prompt, now)
	}
	after := w.feed.Load()
	require.NotSame(t, before, after)
	requireSynced(t, engine.address)
	requireHolds(t, w, 992, ids)
	require.EqualValues(t, 1, value(t, "event_resyncs_total"))

	for range enoughMisses - 1 {
		after.saw(992, 0, &prompt, now)
	}
	after.saw(992, 992, &prompt, now)
	require.Empty(t, after.inexact(now), "answers between agree")
	for range enoughMisses {
		after.saw(992, 0, &prompt, now)
	}
	require.Same(t, after, w.feed.Load())
	require.Equal(t, disagrees, after.inexact(now))
	require.Equal(t, 992, known(t, w, ids), "others may still look")
	require.Empty(t, after.inexact(now.Add(resyncFirst)), "it is given another chance")
	for range enoughMisses {
		after.saw(992, 0, &prompt, now.Add(resyncFirst))
	}
	require.NotSame(t, after, w.feed.Load())
	require.Equal(t, 2*resyncFirst, w.feed.Load().backoff.wait)
}

// TestPromptsAreKeptForCorrectionsWithinTheBudget has a worker whose answers had less than
// was predicted: from then on prompts are kept until the answer tells what was found, or
// the client leaves.
func TestPromptsAreKeptForCorrectionsWithinTheBudget(t *testing.T) {
	engine := newTelling(t, func(o *enginesim.Options) { o.PrefillRate, o.DecodeBase = 1e6, 200*time.Millisecond })
	s := startSite(t, "lb_policy kv_aware", engine.address)
	requireSynced(t, engine.address)
	ids := someIDs(rand.New(rand.NewPCG(13, 13)), 1000)
	s.complete(1, ids)
	w := workersOf(t, engine.address)[0]
	requireHolds(t, w, 992, ids)
	w.feed.Load().wary.Store(true)
	s.complete(2, ids)
	requireIdle(t)

	buffered := &theState(t).buffered
	stream := func(meanwhile int64) {
		body := strings.Replace(completion(ids), `"max_tokens":1`, `"max_tokens":100,"stream":true`, 1)
		response, err := s.client.Do(newRequest(t, s.url+"/v1/completions", strings.NewReader(body)))
		require.NoError(t, err)
		defer response.Body.Close()
		_, err = response.Body.Read(make([]byte, 1))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return buffered.used.Load() == meanwhile }, patience, tick)
	}
	stream(4 * 992)
	requireIdle(t)
	buffered.limit.Store(4*992 - 1)
	stream(0)
	requireIdle(t)
}

// TestEnginesAreFollowedAsTheyCome starts the router before its engine, which then comes
// with two ranks, and again with one.
func TestEnginesAreFollowedAsTheyCome(t *testing.T) {
	var engine atomic.Pointer[enginesim.Server]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e := engine.Load(); e != nil {
			e.ServeHTTP(w, r)
			return
		}
		w.WriteHeader(http.StatusBadGateway)
	}))
	t.Cleanup(server.Close)
	address := server.Listener.Addr().String()
	s := newSite(t)
	s.load(s.caddyfileWith("inference {\ntime_scale 100\n}", "lb_policy kv_aware", address))
	require.EqualValues(t, 1, value(t, "event_stream", "state", notAsked))

	n := 0
	for _, ranks := range []int{2, 1, 3} {
		before := engine.Swap(newTelling(t, func(o *enginesim.Options) { o.Ranks = ranks }).Server)
		if before != nil {
			before.CloseEvents()
			theState(t).checkFailed(workersOf(t, address)[0])
		}
		require.Eventually(t, func() bool {
			parts := workersOf(t, address)
			return len(parts) == ranks && (parts[0].rank >= 0) == (ranks > 1)
		}, patience, tick)
		requireSynced(t, address)
		n++
		d := s.complete(n, someIDs(rand.New(rand.NewPCG(14, 14)), 100))
		require.Equal(t, ranks > 1, d["upstream"] != address, d["upstream"])
		require.EqualValues(t, ranks, value(t, "event_stream", "state", "synced"))
		require.Equal(t, ranks, theState(t).index.Stats().Workers)
	}
	s.load(s.caddyfile("lb_policy kv_aware", "127.0.0.1:9"))
	require.Equal(t, 1, theState(t).fleet.Len(), "the ranks have left with their upstream")
	require.Zero(t, value(t, "decisions_total", "upstream", address+"@0"))
}

// TestAPolicyThatIsOnlyValidatedOpensNoSocket validates a config and looks whether anybody
// connects to where it says that events are.
func TestAPolicyThatIsOnlyValidatedOpensNoSocket(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	connected := make(chan struct{})
	go func() {
		defer close(connected)
		if conn, err := listener.Accept(); err == nil {
			conn.Close()
			connected <- struct{}{}
		}
	}()
	s := newSite(t)
	text := s.caddyfile("lb_policy kv_aware {\nevents tcp://"+listener.Addr().String()+"\n}", listener.Addr().String())
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), nil)
	require.NoError(t, err)
	requireProvisions(t, config)
	require.NoError(t, listener.Close())
	_, someone := <-connected
	require.False(t, someone)
}

func TestAFallbackOfOursChoosesWhereNothingIsKnownExactly(t *testing.T) {
	_, addresses := newTellings(t, 3, func(o *enginesim.Options) { o.Events = nil })
	s := startSite(t, "lb_policy kv_aware {\nfallback prefix_hash {\nprefix_length 64B\nfallback first\n}\n}", addresses...)
	require.Equal(t, "owner", s.complete(1, someIDs(rand.New(rand.NewPCG(11, 11)), 300))["reason"])
	response, err := s.client.Get(s.url + "/v1/models")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	d := s.lastDecision(2)
	require.Equal(t, []any{"fallback", addresses[0]}, []any{d["reason"], d["upstream"]})

	s = startSite(t, "lb_policy kv_aware {\nfallback first\n}", addresses...)
	d = s.complete(1, someIDs(rand.New(rand.NewPCG(12, 12)), 300))
	require.Equal(t, []any{"fallback", addresses[0]}, []any{d["reason"], d["upstream"]})

	err = loadCaddyfile(s.caddyfile("lb_policy kv_aware {\nfallback cache_aware {\nmax_body 1MiB\n}\n}", addresses...))
	require.ErrorContains(t, err, "write them in the policy that it is the fallback of")
	err = loadCaddyfile(s.caddyfile("lb_policy kv_aware {\nfallback kv_aware\n}", addresses...))
	require.ErrorContains(t, err, "fallback of another kv_aware")
}

func parseKVAware(block string) (*KVAware, error) {
	k := new(KVAware)
	return k, k.UnmarshalCaddyfile(caddyfile.NewTestDispenser("kv_aware " + block))
}

func TestEveryOptionOfKVAwareIsParsed(t *testing.T) {
	for text, expected := range map[string]*KVAware{
		"":                            {},
		"{\nengine sglang\n}":         {Engine: "sglang"},
		"{\nmax_index_size 512MiB\n}": {MaxIndexSize: 512 << 20},
		"{\ntokenizer none\ntokenize_timeout 50ms\n}": {Tokenizing: Tokenizing{Tokenizer: "none", TokenizeTimeout: caddy.Duration(50 * time.Millisecond)}},
		"{\nevents tcp://*:5557\nreplay tcp://*:5558\nevents gpu1:8000 tcp://gpu1:7\nreplay gpu2:8000 tcp://gpu2:8\nevents gpu2:8000 tcp://*:9\n}": {Events: []EventSource{
			{Endpoint: "tcp://*:5557", Replay: "tcp://*:5558"},
			{Upstream: "gpu1:8000", Endpoint: "tcp://gpu1:7"},
			{Upstream: "gpu2:8000", Endpoint: "tcp://*:9", Replay: "tcp://gpu2:8"},
		}},
		"{\nmax_body 1MiB\nfallback cache_aware {\nmax_tree_size 1MiB\n}\n}": {Policy: Policy{
			MaxBody: 1 << 20, FallbackRaw: json.RawMessage(`{"max_tree_size":1048576,"policy":"cache_aware"}`),
		}},
	} {
		k, err := parseKVAware(text)
		require.NoError(t, err, text)
		require.Equal(t, expected, k, text)
		inJSON, err := json.Marshal(k)
		require.NoError(t, err)
		again := new(KVAware)
		require.NoError(t, caddy.StrictUnmarshalJSON(inJSON, again))
		require.Equal(t, k, again)
	}
	for text, said := range map[string]string{
		"vllm":               "'vllm'",
		"{\nengine tgi\n}":   "engine takes one of auto, vllm, sglang",
		"{\nevents\n}":       "events takes an endpoint",
		"{\nevents a b c\n}": "events takes an endpoint",
		"{\nevents tcp://*:1\nevents tcp://*:2\n}": "events is there twice",
		"{\ntokenizer ./tokenizer.json\n}":         "tokenizer takes one of remote, none",
		"{\nmax_index_size big\n}":                 "max_index_size 'big'",
		"{\nport 5557\n}":                          "engine, events, replay, tokenizer, tokenize_timeout, max_index_size, max_body, fallback, affinity and tune",
	} {
		_, err := parseKVAware(text)
		require.ErrorContains(t, err, said, text)
	}
}

func TestWhatKVAwareCannotDoIsRefusedWithTheReason(t *testing.T) {
	for text, said := range map[string]string{
		"{\nmax_index_size 1KiB\n}":        "max_index_size of 1024 bytes: must be at least",
		"{\nevents 5557\n}":                "events 1: endpoint \"5557\"",
		"{\nreplay tcp://*:5558\n}":        "events 1: has no endpoint",
		"{\nevents tcp://*:1\nreplay x\n}": "replay endpoint \"x\"",
		"{\nmax_body 10\n}":                "max_body",
		"{\ntokenize_timeout 1h\n}":        "tokenize_timeout",
		"{\nevents a:1 tcp://gpu:99999\n}": "99999",
	} {
		s := newSite(t)
		err := loadCaddyfile(s.caddyfile("lb_policy kv_aware "+text, "127.0.0.1:9"))
		require.ErrorContains(t, err, said, text)
	}
}
