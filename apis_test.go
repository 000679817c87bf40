package inference

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/enginesim"
)

// newSimulated returns the addresses of engines that take no time.
func newSimulated(t *testing.T, n int) []string {
	t.Helper()
	options := enginesim.DefaultOptions()
	options.Models, options.PrefillRate = []string{"m1"}, 0
	list := make([]string, n)
	for i := range list {
		engine, err := enginesim.NewServer(options)
		require.NoError(t, err)
		server := httptest.NewServer(engine)
		t.Cleanup(server.Close)
		list[i] = server.Listener.Addr().String()
	}
	return list
}

// TestTheNextTurnOfEveryAPIGoesWhereTheOneBeforeWent sends two requests of each API, of
// which the second begins with the first, among others that have nothing to do with them.
func TestTheNextTurnOfEveryAPIGoesWhereTheOneBeforeWent(t *testing.T) {
	tests := map[string]struct {
		path, first, second string // %s is a long text, %d token ids
		counts              bool   // the engine tells how much it found in its cache
	}{
		"chat":        {"/v1/chat/completions", `{"messages":[{"role":"user","content":"%s"}]}`, `{"messages":[{"role":"user","content":"%s"},{"role":"assistant","content":"a"},{"role":"user","content":"b"}]}`, true},
		"completions": {"/v1/completions", `{"prompt":"%s"}`, `{"prompt":["%s and so on"]}`, true},
		"messages":    {"/v1/messages", `{"max_tokens":9,"system":"%s","messages":[{"role":"user","content":"a"}]}`, `{"max_tokens":9,"system":"%s","messages":[{"role":"user","content":"b"}],"stream":true}`, true},
		"responses": {"/v1/responses", `{"instructions":"%s","input":"a"}`, `{"instructions":"%s","stream":true,"input":[{"role":"user","content":"a"},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]},
			{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"c"}]}`, true},
		"generate":   {"/generate", `{"text":"%s"}`, `{"text":"%s and so on","stream":true}`, true},
		"ids":        {"/generate", `{"input_ids":[%d]}`, `{"input_ids":[[%d,7,8,9]]}`, true},
		"embeddings": {"/v1/embeddings", `{"input":"%s"}`, `{"input":["%s and so on"]}`, false},
		"score":      {"/v1/score", `{"text_1":"%s","text_2":"a"}`, `{"text_1":"%s","text_2":["b"]}`, false},
		"rerank":     {"/v1/rerank", `{"query":"%s","documents":["a"]}`, `{"documents":["b"],"query":"%s"}`, false},
	}
	random := rand.New(rand.NewPCG(31, 31))
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := startSite(t, "lb_policy cache_aware", newSimulated(t, 4)...)
			ids := make([]string, 1000)
			for i := range ids {
				ids[i] = fmt.Sprint(random.IntN(100_000))
			}
			fill := strings.NewReplacer("%s", words(random, 4000, "请求", "the", "router", "sends"), "%d", strings.Join(ids, ","))
			send := func(body string) {
				status, answer := s.post(test.path, body)
				require.Equal(t, http.StatusOK, status, answer)
			}
			send(fill.Replace(test.first))
			for range 6 {
				s.chat(chatOf(message("user", letters(random, 2000))))
			}
			send(fill.Replace(test.second))

			first, second := s.lastDecision(1), s.lastDecision(8)
			api := strings.Replace(name, "ids", "generate", 1)
			require.Equal(t, []any{api, "cold"}, []any{first["api"], first["reason"]})
			require.Equal(t, []any{api, "hit"}, []any{second["api"], second["reason"]})
			require.Equal(t, first["upstream"], second["upstream"])
			held, prompt := second["held_tokens"].(float64), second["prompt_tokens"].(float64)
			require.Greater(t, held, 0.8*prompt)
			if test.counts {
				require.InDelta(t, held, second["cached_tokens"], 0.2*prompt)
			} else {
				require.NotContains(t, second, "cached_tokens")
			}
			requireIdle(t)
		})
	}
}

// TestSeveralPromptsAreHeldAsFarAsTheFirstOne sends a list of prompts after its first.
func TestSeveralPromptsAreHeldAsFarAsTheFirstOne(t *testing.T) {
	random := rand.New(rand.NewPCG(32, 32))
	for path, form := range map[string]string{
		"/v1/completions": `{"prompt":[%s]}`, "/v1/embeddings": `{"input":[%s]}`, "/generate": `{"text":[%s]}`,
	} {
		t.Run(path, func(t *testing.T) {
			s := startSite(t, "lb_policy cache_aware", newSimulated(t, 2)...)
			texts := make([]string, 4)
			for i := range texts {
				texts[i] = fmt.Sprintf("%q", words(random, 4000, "the", "router", "sends"))
			}
			s.post(path, fmt.Sprintf(form, texts[0]))
			s.post(path, fmt.Sprintf(form, strings.Join(texts, ",")))
			one, all := s.lastDecision(1), s.lastDecision(2)
			require.Equal(t, "hit", all["reason"])
			require.InDelta(t, 4*one["prompt_tokens"].(float64), all["prompt_tokens"], 0.5*one["prompt_tokens"].(float64))
			require.InDelta(t, one["prompt_tokens"], all["held_tokens"], 0.3*one["prompt_tokens"].(float64))
			requireIdle(t)
		})
	}
}

// TestAResponsesPrefillIsQueuedUntilItsFirstToken holds a stream back where an engine
// computes the prompt: behind the events by which it begins.
func TestAResponsesPrefillIsQueuedUntilItsFirstToken(t *testing.T) {
	engine := newEngine(t)
	computed, answered := make(chan struct{}), make(chan struct{})
	engine.respondWith(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		send := func(names ...string) {
			for _, name := range names {
				fmt.Fprintf(w, "event: %s\ndata: {\"type\":%[1]q}\n\n", name)
			}
			w.(http.Flusher).Flush()
		}
		send("response.created", "response.in_progress")
		<-computed
		send("response.output_item.added", "response.content_part.added", "response.output_text.delta")
		<-answered
		fmt.Fprint(w, "event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens\":500,\"input_tokens_details\":{\"cached_tokens\":100},\"output_tokens\":1}}}\n\n")
	})
	s := startSite(t, "lb_policy cache_aware", engine.address())
	request := newRequest(t, s.url+"/v1/responses", strings.NewReader(`{"stream":true,"input":"`+strings.Repeat("x", 2000)+`"}`))
	response, err := s.client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	readUntil := func(name string) {
		for lines.Scan() && lines.Text() != "event: "+name {
		}
		require.Equal(t, "event: "+name, lines.Text())
	}
	worker := theState(t).members()[0]
	readUntil("response.in_progress")
	require.Positive(t, worker.Load().Queued())
	require.Zero(t, worker.Decoding())
	close(computed)
	readUntil("response.output_text.delta")
	require.Eventually(t, func() bool { return worker.Load().Queued() == 0 && worker.Decoding() == 1 }, patience, tick)
	close(answered)
	_, err = io.Copy(io.Discard, response.Body)
	require.NoError(t, err)
	last := s.lastDecision(1)
	require.Equal(t, []any{500.0, 100.0}, []any{last["prompt_tokens"], last["cached_tokens"]})
	require.Positive(t, last["first_token"])
	requireIdle(t)
}
