package inference

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/stretchr/testify/require"
)

// tellReason has the answer's header tell why the upstream was chosen. The access
// log of a config that is reloaded may lose its last lines.
const tellReason = "header_down X-Reason {http.inference.reason}"

// reason sends a chat and returns why its upstream was chosen.
func (s *site) reason(body string) string {
	s.t.Helper()
	response, err := s.client.Do(newRequest(s.t, s.url+"/v1/chat/completions", strings.NewReader(body)))
	require.NoError(s.t, err)
	defer response.Body.Close()
	require.Equal(s.t, http.StatusOK, response.StatusCode)
	return response.Header.Get("X-Reason")
}

// TestReloadKeepsStreamsAndWhatWasLearned reloads while streams are open: they go
// on and leave the books as they end, and what the engines hold is still known.
func TestReloadKeepsStreamsAndWhatWasLearned(t *testing.T) {
	engines := newEngines(t, 4)
	s := startSite(t, "lb_policy cache_aware", addresses(engines)...)
	random := rand.New(rand.NewPCG(11, 11))
	var prompts []string
	for range 20 {
		prompts = append(prompts, chatOf(message("user", letters(random, 3000))))
		s.chat(prompts[len(prompts)-1])
	}

	more := make(chan struct{})
	for _, e := range engines {
		e.respondWith(func(w http.ResponseWriter, r *http.Request) {
			event(w, `{"choices":[{"delta":{"content":"a"}}]}`)
			<-more
			event(w, `[DONE]`)
		})
	}
	var streams sync.WaitGroup
	whole := make(chan bool, 50)
	for i := range 50 {
		streams.Go(func() {
			_, text := s.post("/v1/chat/completions", chatOf(message("user", fmt.Sprint("stream ", i))))
			whole <- strings.HasSuffix(text, "data: [DONE]\n\n")
		})
	}
	open := func() (n int) {
		for _, w := range theState(t).members() {
			n += w.Decoding()
		}
		return n
	}
	require.Eventually(t, func() bool { return open() == 50 }, patience, tick)

	s.load(s.caddyfile("lb_policy cache_aware\nfail_duration 3s\n"+tellReason, addresses(engines)...))
	require.Equal(t, 50, open(), "the new config sees what the old one placed")
	close(more)
	streams.Wait()
	close(whole)
	for ok := range whole {
		require.True(t, ok, "a stream was cut")
	}
	requireIdle(t)

	for _, e := range engines {
		e.respondWith(nil)
	}
	for i, prompt := range prompts {
		require.Equal(t, "hit", s.reason(prompt), "prompt %d", i)
	}
}

// TestAddingAnUpstreamForgetsNothing changes the pool by one and asks again.
func TestAddingAnUpstreamForgetsNothing(t *testing.T) {
	engines := newEngines(t, 4)
	s := startSite(t, "lb_policy cache_aware", addresses(engines[:3])...)
	random := rand.New(rand.NewPCG(12, 12))
	prompts := make([]string, 9)
	for i := range prompts {
		prompts[i] = chatOf(message("user", letters(random, 3000)))
		s.chat(prompts[i])
	}
	s.load(s.caddyfile("lb_policy cache_aware\n"+tellReason, addresses(engines)...))
	for i := range prompts {
		require.Equal(t, "hit", s.reason(prompts[i]), "prompt %d", i)
	}
	require.Empty(t, engines[3].received())
}

// TestNothingIsLeftOfManyReloads reloads two hundred times, each time with other
// upstreams and requests under way, and requires that in the end only the last
// config's upstreams are known to anybody. That no goroutine is left is checked
// for the whole package.
func TestNothingIsLeftOfManyReloads(t *testing.T) {
	engines := newEngines(t, 6)
	s := startSite(t, "lb_policy cache_aware", engines[0].address())
	random := rand.New(rand.NewPCG(13, 13))
	var requests sync.WaitGroup
	var last []string
	for i := range 200 {
		last = nil
		for _, e := range engines {
			if random.IntN(2) == 0 {
				last = append(last, e.address())
			}
		}
		last = append(last, fmt.Sprintf("127.0.0.1:%d", 1+i%5)) // nobody
		body := chatOf(message("user", letters(random, 1000)))
		requests.Go(func() {
			response, err := s.client.Post(s.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		})
		s.load(s.caddyfile(fmt.Sprintf("lb_policy cache_aware\nlb_retries 6\nfail_duration %ds", 1+i), last...))
	}
	requests.Wait()
	requireIdle(t)

	state := theState(t)
	require.Len(t, state.members(), len(last))
	require.Equal(t, len(last), state.fleet.Len())
	require.Equal(t, len(last), state.tree.Stats().Workers)
	for _, family := range gather(t, state.metrics) {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "upstream" {
					require.Contains(t, last, label.GetValue(), family.GetName())
				}
			}
		}
	}
}

// TestStoppingLeavesNoState ends the last config and looks whether the state went
// with it.
func TestStoppingLeavesNoState(t *testing.T) {
	s := startSite(t, "lb_policy cache_aware", newEngine(t).address())
	s.chat(chatOf(message("user", "hello")))
	require.NoError(t, caddy.Stop())
	references, known := states.References(stateKey)
	require.False(t, known, "%d references left", references)
}

// TestAConfigThatFailsChangesNothing loads a config that cannot start.
func TestAConfigThatFailsChangesNothing(t *testing.T) {
	engines := newEngines(t, 2)
	s := startSite(t, "lb_policy cache_aware", addresses(engines)...)
	body := chatOf(message("user", strings.Repeat("a", 1000)))
	s.chat(body)
	state := theState(t)
	bad := strings.Replace(s.caddyfile("lb_policy cache_aware {\nmax_tree_size 1MiB\n}", freeAddress(t)), "auto_https off", "storage file_system /dev/null/nowhere\nauto_https off", 1)
	bad = strings.Replace(bad, "log {", "tls /nonexistent.pem /nonexistent.key\nlog {", 1)
	require.Error(t, loadCaddyfile(bad))
	require.Same(t, state, theState(t))
	require.Len(t, state.members(), 2)
	require.EqualValues(t, defaultMaxTreeSize, state.tree.Stats().MaxBytes)

	taken, err := net.Listen("tcp", "127.0.0.1:0") // without SO_REUSEPORT
	require.NoError(t, err)
	defer taken.Close()
	late := strings.Replace(s.caddyfileWith("inference {\nmax_buffered 1MiB\ntime_scale 20\n}", "lb_policy cache_aware {\nmax_tree_size 1MiB\n}", freeAddress(t)),
		s.url, "http://"+taken.Addr().String(), 1)
	require.Error(t, loadCaddyfile(late), "it fails when it is started")
	require.EqualValues(t, defaultMaxTreeSize, state.tree.Stats().MaxBytes)
	require.EqualValues(t, defaultMaxBuffered, state.buffered.limit.Load())
	require.Equal(t, defaultTimeScale, state.clock.pace.Load().scale)
	require.Len(t, state.members(), 2)

	reached := func() (list []*reverseproxy.HTTPTransport) {
		for _, w := range state.members() {
			list = append(list, w.transport.Load())
		}
		return list
	}
	before := reached()
	other := strings.Replace(s.caddyfile("lb_policy cache_aware\ntransport http {\ntls\n}", addresses(engines)...), s.url, "http://"+taken.Addr().String(), 1)
	require.Error(t, loadCaddyfile(other), "it reaches the engines in another way")
	require.ElementsMatch(t, before, reached())
	s.chat(body)
	require.Equal(t, 1.0, value(t, "decisions_total", "reason", "hit"))
}

// TestValidatingOpensNoSocket provisions a config as `caddy validate` does and
// requires that no engine was asked anything.
func TestValidatingOpensNoSocket(t *testing.T) {
	engine := newEngine(t)
	var asked sync.Once
	called := make(chan struct{})
	engine.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Do(func() { close(called) }) })
	s := newSite(t)
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(s.caddyfile("lb_policy cache_aware", engine.address())), nil)
	require.NoError(t, err)
	var c caddy.Config
	require.NoError(t, json.Unmarshal(config, &c))
	require.NoError(t, caddy.Validate(&c))
	select {
	case <-called:
		t.Fatal("an engine was asked")
	default:
	}
	_, known := states.References(stateKey)
	require.False(t, known)
}
