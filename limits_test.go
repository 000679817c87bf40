package inference

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// onlyReader hides a length, so that a body is sent in chunks.
type onlyReader struct{ io.Reader }

// TestABodyBeyondTheLimitIsRoutedOnItsFirstPart sends bodies around max_body, by
// length and in chunks: all arrive whole, and those that begin alike go together.
func TestABodyBeyondTheLimitIsRoutedOnItsFirstPart(t *testing.T) {
	const limit = 100_000
	engines := newEngines(t, 4)
	s := startSite(t, fmt.Sprintf("lb_policy cache_aware {\nmax_body %dB\n}", limit), addresses(engines)...)
	random := rand.New(rand.NewPCG(17, 17))
	for _, size := range []int{limit - 1, limit, limit + 1, 3 * limit, 40 * limit} {
		beginning := letters(random, limit)
		home := -1
		for _, chunked := range []bool{false, true} {
			frame := len(chatOf(message("user", "")))
			text := beginning
			if size > limit {
				text += letters(random, size)
			}
			body := chatOf(message("user", text[:size-frame]))
			require.Len(t, body, size)
			which := served(t, engines, func() {
				var reader io.Reader = strings.NewReader(body)
				if chunked {
					reader = onlyReader{reader}
				}
				response, err := s.client.Do(newRequest(t, s.url+"/v1/chat/completions", reader))
				require.NoError(t, err)
				require.NoError(t, response.Body.Close())
				require.Equal(t, http.StatusOK, response.StatusCode)
			})
			list := engines[which].received()
			require.Equal(t, hash([]byte(body)), hash(list[len(list)-1].body), "%d bytes", size)
			if home >= 0 {
				require.Equal(t, home, which, "%d bytes that begin alike", size)
			}
			home = which
		}
	}
	requireIdle(t)
}

// TestBodiesHeldAreBounded has more requests under way than max_buffered has room
// for: those beyond are routed on their first part, and all arrive whole.
func TestBodiesHeldAreBounded(t *testing.T) {
	const limit, size, requests = 1 << 20, 200_000, 20
	engine := newEngine(t)
	arrived, proceed := make(chan int64, requests), make(chan struct{})
	engine.respondWith(func(w http.ResponseWriter, r *http.Request) {
		arrived <- r.ContentLength
		<-proceed
		answer(w, r)
	})
	s := newSite(t)
	s.load(s.caddyfileWith("inference {\nmax_buffered 1MiB\n}", "lb_policy cache_aware", engine.address()))
	state := theState(t)
	require.EqualValues(t, limit, state.buffered.limit.Load())

	var clients sync.WaitGroup
	for i := range requests {
		clients.Go(func() {
			s.chat(chatOf(message("user", letters(rand.New(rand.NewPCG(18, uint64(i))), size))))
		})
	}
	for range requests {
		<-arrived
	}
	require.Positive(t, value(t, "cut_bodies_total", "limit", "max_buffered"))
	used := state.buffered.used.Load()
	require.Greater(t, used, int64(size))
	require.LessOrEqual(t, used, int64(limit+requests*firstPart))
	close(proceed)
	clients.Wait()
	for _, got := range engine.received() {
		require.Greater(t, len(got.body), size)
	}
	requireIdle(t)
}

// TestThatABodyWasCutIsTold looks at what is told of a body of which only the
// beginning was routed on, and was like another's.
func TestThatABodyWasCutIsTold(t *testing.T) {
	engine := newEngine(t)
	s := startSite(t, "lb_policy cache_aware {\nmax_body 1KiB\n}", engine.address())
	random := rand.New(rand.NewPCG(23, 23))
	beginning := letters(random, 1000)
	for n := 1; n <= 2; n++ {
		s.chat(chatOf(message("user", beginning+letters(random, 19_000))))
		last := s.lastDecision(n)
		require.Equal(t, "max_body", last["cut"])
		require.InDelta(t, 5000, last["prompt_tokens"], 50)
		require.InDelta(t, 240*(n-1), last["held_tokens"], 30, "no more than what was read")
	}
	require.Equal(t, 2.0, value(t, "cut_bodies_total", "limit", "max_body"))
	s.chat(chatOf(message("user", "short")))
	require.NotContains(t, s.lastDecision(3), "cut")
}

// TestBodiesAreLetGoWhenTheAnswerBegins opens streams with large prompts and
// looks at what they weigh while they last.
func TestBodiesAreLetGoWhenTheAnswerBegins(t *testing.T) {
	const size, streams = 1 << 20, 100
	engine := newEngine(t)
	proceed := make(chan struct{})
	engine.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		event(w, `{"choices":[{"delta":{"content":"a"}}]}`)
		<-proceed
	})
	s := startSite(t, "lb_policy cache_aware", engine.address())
	text := letters(rand.New(rand.NewPCG(19, 19)), size)
	before := heapInUse()

	var open []io.ReadCloser
	for range streams {
		body := io.MultiReader(strings.NewReader(`{"model":"m1","messages":[{"role":"user","content":"`), strings.NewReader(text), strings.NewReader(`"}]}`))
		response, err := s.client.Do(newRequest(t, s.url+"/v1/chat/completions", body)) //nolint:bodyclose // below, all of them
		require.NoError(t, err)
		_, err = response.Body.Read(make([]byte, 1))
		require.NoError(t, err)
		open = append(open, response.Body)
	}
	grown := heapInUse() - before
	t.Logf("%d open streams of %d bytes of prompt: %d bytes of heap", streams, size, grown)
	require.Less(t, grown, int64(streams*size/4))
	require.Zero(t, theState(t).buffered.used.Load())
	close(proceed)
	for _, stream := range open {
		_, _ = io.Copy(io.Discard, stream)
		stream.Close()
	}
	requireIdle(t)
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestTheTreeStaysWithinItsLimit sends many times more distinct text than the
// tree has room for.
func TestTheTreeStaysWithinItsLimit(t *testing.T) {
	engine := newEngine(t)
	engine.metrics.Store("") // it does not tell how little it holds
	s := startSite(t, "lb_policy cache_aware {\nmax_tree_size 256KiB\n}", engine.address())
	random := rand.New(rand.NewPCG(20, 20))
	body := chatOf(message("user", letters(random, 100_000)))
	for range 100 {
		s.chat(body[:60] + letters(random, 90_000) + body[90_060:])
		require.LessOrEqual(t, theState(t).tree.Stats().Bytes, int64(256<<10)*105/100)
	}
	require.Positive(t, theState(t).tree.Stats().Evicted)
}

// TestTheLargestTreeAskedForHolds has two sites that differ.
func TestTheLargestTreeAskedForHolds(t *testing.T) {
	engine := newEngine(t)
	s := newSite(t)
	one := s.caddyfile("lb_policy cache_aware {\nmax_tree_size 1MiB\neviction_interval 5m\n}", engine.address())
	two := strings.ReplaceAll(s.caddyfile("lb_policy cache_aware {\nmax_tree_size 2MiB\neviction_interval 3m\n}", engine.address()), s.url+" {", "http://"+freeAddress(t)+" {")
	s.load(one + "\n" + two[strings.Index(two, "http://"):])
	require.EqualValues(t, 2<<20, theState(t).tree.Stats().MaxBytes)
	require.EqualValues(t, 3*60*1e9, theState(t).interval.Load())
}
