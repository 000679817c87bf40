package enginesim

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func instantOptions() Options {
	opts := DefaultOptions()
	opts.PrefillRate = 0
	return opts
}

func instantServer(t testing.TB) *Server {
	t.Helper()
	server, err := NewServer(instantOptions())
	require.NoError(t, err)
	return server
}

func do(s *Server, method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return w
}

func post(s *Server, path, body string) *httptest.ResponseRecorder {
	return do(s, http.MethodPost, path, body)
}

// whole is what tests read of an answer in one piece.
type whole struct {
	ID      string
	Model   string
	Choices []struct {
		Index        int
		Text         string
		Message      struct{ Content string }
		FinishReason string   `json:"finish_reason"`
		TokenIDs     []uint32 `json:"token_ids"`
	}
	Usage struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		TotalTokens      int `json:"total_tokens"`
		PromptDetails    *struct {
			CachedTokens     int            `json:"cached_tokens"`
			MultimodalTokens map[string]int `json:"multimodal_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

var loose = json.JoinOptions(json.MatchCaseInsensitiveNames(true))

func asWhole(t *testing.T, w *httptest.ResponseRecorder) (answer whole) {
	t.Helper()
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer, loose))
	return answer
}

func TestUsageShowsWhatTheCacheHeld(t *testing.T) {
	s := instantServer(t)
	text := strings.Repeat("tell me something about the weather ", 40)
	body := fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":8}`, text)
	first := asWhole(t, post(s, "/v1/chat/completions", body))
	require.Zero(t, first.Usage.PromptDetails.CachedTokens)
	n := first.Usage.PromptTokens
	again := asWhole(t, post(s, "/v1/chat/completions", body))
	require.Equal(t, (n-1)/16*16, again.Usage.PromptDetails.CachedTokens)
	require.Equal(t, first.Choices[0].Message, again.Choices[0].Message)
	require.Equal(t, n+8, again.Usage.TotalTokens)

	continued := fmt.Sprintf(`{"messages":[{"role":"user","content":%q},{"role":"assistant","content":%q},{"role":"user","content":"go on"}]}`, text, first.Choices[0].Message.Content)
	next := asWhole(t, post(s, "/v1/chat/completions", continued))
	require.Equal(t, (n+7)/16*16, next.Usage.PromptDetails.CachedTokens, "the answer's tokens too, but for the last")
	require.Equal(t, defaultChatTokens, next.Usage.CompletionTokens)

	salted := asWhole(t, post(s, "/v1/chat/completions", strings.Replace(body, "{", `{"cache_salt":"a",`, 1)))
	require.Zero(t, salted.Usage.PromptDetails.CachedTokens)
}

func TestModelsDoNotShareTheirPrefixes(t *testing.T) {
	opts := instantOptions()
	opts.Models = []string{"one", "two"}
	s, err := NewServer(opts)
	require.NoError(t, err)
	ask := func(model string) whole {
		return asWhole(t, post(s, "/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":%q}`, model, english)))
	}
	require.Zero(t, ask("one").Usage.PromptDetails.CachedTokens)
	require.Zero(t, ask("two").Usage.PromptDetails.CachedTokens)
	require.NotZero(t, ask("two").Usage.PromptDetails.CachedTokens)
	unnamed := ask("")
	require.Equal(t, "one", unnamed.Model)
	require.NotZero(t, unnamed.Usage.PromptDetails.CachedTokens)
}

func TestDetailsAreNullWhenTheyAreOff(t *testing.T) {
	opts := instantOptions()
	opts.PromptTokensDetails = false
	s, err := NewServer(opts)
	require.NoError(t, err)
	require.Nil(t, asWhole(t, post(s, "/v1/completions", `{"prompt":"x"}`)).Usage.PromptDetails)
	streamed := post(s, "/v1/completions", `{"prompt":"x","stream":true,"stream_options":{"include_usage":true}}`).Body.String()
	require.Contains(t, streamed, `"usage":{"prompt_tokens":1,`)
	require.NotContains(t, streamed, "cached_tokens")
	require.NotContains(t, post(s, "/v1/messages", `{"messages":[{"role":"user","content":"x"}],"max_tokens":1}`).Body.String(), `"cache_read_input_tokens":0`)
}

func TestBatchesAndChoicesAreAnsweredInOrder(t *testing.T) {
	s := instantServer(t)
	got := asWhole(t, post(s, "/v1/completions", `{"prompt":["one two","three"],"n":2,"max_tokens":3,"echo":true}`))
	require.Len(t, got.Choices, 4)
	for i, prefix := range []string{"one two", "one two", "three", "three"} {
		require.Equal(t, i, got.Choices[i].Index)
		require.True(t, strings.HasPrefix(got.Choices[i].Text, prefix))
		require.Equal(t, "length", got.Choices[i].FinishReason)
	}
	require.NotEqual(t, got.Choices[0].Text, got.Choices[1].Text)
	require.Equal(t, 3, got.Usage.PromptTokens, "each prompt once")
	require.Equal(t, 12, got.Usage.CompletionTokens)

	ids := asWhole(t, post(s, "/v1/completions", `{"prompt":[[1,2,3],[4]],"max_tokens":1,"return_token_ids":true}`))
	require.Len(t, ids.Choices, 2)
	require.Len(t, ids.Choices[1].TokenIDs, 1)
	require.Equal(t, 4, ids.Usage.PromptTokens)
}

func TestImagesCountAsMultimodalTokens(t *testing.T) {
	got := asWhole(t, post(instantServer(t), "/v1/chat/completions",
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,a"}}]}]}`))
	require.Equal(t, map[string]int{"image": imageTokens}, got.Usage.PromptDetails.MultimodalTokens)
}

func TestStreamOfChoicesHasARoleAndAnEndForEach(t *testing.T) {
	body := post(instantServer(t), "/v1/chat/completions",
		`{"messages":[{"role":"user","content":"x"}],"n":3,"max_tokens":5,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`).Body.String()
	require.Equal(t, 3, strings.Count(body, `"role":"assistant"`))
	require.Equal(t, 3, strings.Count(body, `"finish_reason":"length"`))
	require.Equal(t, 3+3*5+1, strings.Count(body, `"usage":`))
	require.Equal(t, 3, strings.Count(body, `"completion_tokens":5}`))
	require.Equal(t, 1, strings.Count(body, `"completion_tokens":15,`))
	require.True(t, strings.HasSuffix(body, "data: [DONE]\n\n"))
}

func TestMessagesShareTheirPrefixWithChat(t *testing.T) {
	s := instantServer(t)
	post(s, "/v1/chat/completions", fmt.Sprintf(`{"messages":[{"role":"system","content":%q},{"role":"user","content":"x"}]}`, english))
	body := fmt.Sprintf(`{"system":[{"type":"text","text":%q}],"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"max_tokens":4`, english)
	var usage struct {
		Usage anthropicUsage `json:"usage"`
	}
	require.NoError(t, json.Unmarshal(post(s, "/v1/messages", body+"}").Body.Bytes(), &usage))
	var count struct {
		InputTokens int `json:"input_tokens"`
	}
	require.NoError(t, json.Unmarshal(post(s, "/v1/messages/count_tokens", body+"}").Body.Bytes(), &count))
	read := (count.InputTokens - 1) / 16 * 16
	require.Equal(t, read, *usage.Usage.CacheRead)
	require.Equal(t, count.InputTokens-read, usage.Usage.InputTokens, "what was read from the cache is not counted twice")

	var names []string
	for line := range strings.Lines(post(s, "/v1/messages", body+`,"stream":true}`).Body.String()) {
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	require.Equal(t, []string{
		"message_start", "content_block_start",
		"content_block_delta", "content_block_delta", "content_block_delta", "content_block_delta",
		"content_block_stop", "message_delta", "message_stop",
	}, names)
}

func TestWrongRequestsAreErrorsInTheAPIsShape(t *testing.T) {
	opts := instantOptions()
	opts.MaxModelLen = 20
	s, err := NewServer(opts)
	require.NoError(t, err)
	for _, test := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/v1/completions", `{"prompt":"x","model":"other"}`, 404, "{\"error\":{\"message\":\"The model `other` does not exist.\",\"type\":\"NotFoundError\",\"param\":\"model\",\"code\":404}}"},
		{"POST", "/v1/completions", `{"prompt":"x"`, 400, `{"error":{"message":"JSON decode error at byte 13.","type":"Bad Request","param":null,"code":400}}`},
		{"POST", "/v1/completions", ``, 400, `JSON decode error at byte 0.`},
		{"POST", "/v1/completions", `{"prompt":"x","max_tokens":"secret"}`, 400, `Input should be a valid number at /max_tokens`},
		{"POST", "/v1/completions", `{"prompt":"lone \ud83d end"}`, 400, `JSON decode error`},
		{"POST", "/v1/completions", `{}`, 400, `Either prompt or prompt_embeds must be provided and non-empty.`},
		{"POST", "/v1/completions", `{"prompt":null}`, 400, `Either prompt`},
		{"POST", "/v1/completions", `{"prompt":[ ]}`, 400, `You must pass at least one prompt`},
		{"POST", "/v1/completions", `{"prompt":[[]]}`, 400, `Either prompt`},
		{"POST", "/v1/completions", `{"prompt":["x",""]}`, 400, `Either prompt`},
		{"POST", "/v1/completions", `{"prompt":{}}`, 400, `prompt must be a text`},
		{"POST", "/v1/completions", `{"prompt":[true]}`, 400, `prompt must be a text`},
		{"POST", "/v1/completions", `{"prompt":[1,"x"]}`, 400, `token ids must be whole numbers`},
		{"POST", "/v1/completions", `{"prompt":[1.5]}`, 400, `token ids must be whole numbers`},
		{"POST", "/v1/completions", `{"prompt":[1,300000]}`, 400, `Token id 300000 is out of vocabulary`},
		{"POST", "/v1/completions", `{"prompt":[-1]}`, 400, `Token id -1 is out of vocabulary`},
		{"POST", "/v1/completions", `{"prompt":"x","max_tokens":0}`, 400, `max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)`},
		{"POST", "/v1/completions", `{"prompt":"x","n":0}`, 400, `n must be at least 1`},
		{"POST", "/v1/completions", `{"prompt":"x","n":257}`, 400, `at most 256`},
		{"POST", "/v1/completions", `{"prompt":["x","y"],"n":129}`, 400, `at most 256`},
		{"POST", "/v1/completions", `{"prompt":"x","cache_salt":""}`, 400, `must be a non-empty string`},
		{"POST", "/v1/completions", `{"prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]}`, 400, `max_tokens must be at least 1, got 0.`},
		{"POST", "/v1/completions", `{"prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21]}`, 400, `This model's maximum context length is 20 tokens. However, your prompt contains 21 input tokens`},
		{"POST", "/v1/chat/completions", `{"messages":[]}`, 400, `at least one message`},
		{"POST", "/v1/messages", `{"messages":[{"role":"user","content":"x"}]}`, 400, `{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: Field required"}}`},
		{"POST", "/v1/messages", `{"messages":[],"max_tokens":1}`, 400, `at least one message`},
		{"POST", "/v1/messages", `{"model":"other","messages":[{"role":"user","content":"x"}],"max_tokens":1}`, 404, `"not_found_error"`},
		{"POST", "/v1/messages/count_tokens", `{`, 400, `"invalid_request_error"`},
		{"POST", "/tokenize", `{"model":"other","prompt":"x"}`, 404, `NotFoundError`},
		{"POST", "/tokenize", `{}`, 400, `at least one message`},
		{"GET", "/v1/completions", ``, 405, `{"error":{"message":"Method Not Allowed","type":"Method Not Allowed","param":null,"code":405}}`},
		{"DELETE", "/health", ``, 405, `Method Not Allowed`},
		{"GET", "/v1/foo", ``, 404, `{"error":{"message":"Not Found","type":"Not Found","param":null,"code":404}}`},
	} {
		w := do(s, test.method, test.path, test.body)
		require.Equal(t, test.status, w.Code, test.body)
		require.Equal(t, "application/json", w.Header().Get("Content-Type"))
		require.NotContains(t, w.Body.String(), "secret")
		if strings.HasPrefix(test.want, "{") {
			require.JSONEq(t, test.want, w.Body.String())
		} else {
			require.Contains(t, w.Body.String(), test.want, test.body)
		}
	}
	require.Zero(t, s.Stats().PromptTokens)
}

func TestAnswerIsNoLongerThanTheContextHasRoomFor(t *testing.T) {
	opts := instantOptions()
	opts.MaxModelLen = 20
	s, err := NewServer(opts)
	require.NoError(t, err)
	require.Equal(t, 17, asWhole(t, post(s, "/v1/completions", `{"prompt":[1,2,3],"max_tokens":1000}`)).Usage.CompletionTokens)
	require.Equal(t, 16, asWhole(t, post(s, "/v1/completions", `{"prompt":[1,2,3]}`)).Usage.CompletionTokens)
	require.Equal(t, 10, asWhole(t, post(s, "/v1/completions", `{"prompt":[1,2,3,4,5,6,7,8,9,10]}`)).Usage.CompletionTokens)
}

func TestBodyOverTheLimitIs413(t *testing.T) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"prompt":"`+strings.Repeat("x", maxBody)+`"}`))
	instantServer(t).ServeHTTP(w, r)
	require.Equal(t, http.StatusRequestEntityTooLarge, w.Code)
	require.Contains(t, w.Body.String(), "larger than 33554432 bytes")
}

func TestFullQueueIs503(t *testing.T) {
	s, err := NewServer(DefaultOptions())
	require.NoError(t, err)
	e := s.life.Load().ranks[0]
	var all []*sequence
	for range maxQueued + 1 {
		queued, err := e.submit(prompt{ids: []uint32{1}}, namespace{}, 1, 0)
		require.NoError(t, err)
		all = append(all, queued)
	}
	w := post(s, "/v1/completions", `{"prompt":"x","stream":true}`)
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Contains(t, w.Body.String(), `"type":"Service Unavailable"`)
	require.Contains(t, post(s, "/v1/messages", `{"messages":[{"role":"user","content":"x"}],"max_tokens":1}`).Body.String(), "overloaded_error")
	for _, queued := range all {
		queued.abandon()
	}
}

func TestPagesAnswerAsTheEnginesDo(t *testing.T) {
	s := instantServer(t)
	require.Equal(t, 200, do(s, "GET", "/health", "").Code)
	require.Equal(t, 200, do(s, "HEAD", "/health", "").Code)
	require.Equal(t, 200, do(s, "GET", "/ping", "").Code)
	require.Equal(t, 200, post(s, "/ping", "").Code)
	require.JSONEq(t, `{"version":"0.32.0"}`, do(s, "GET", "/version", "").Body.String())
	require.JSONEq(t, `{"server_load":0}`, do(s, "GET", "/load", "").Body.String())
	require.Contains(t, do(s, "GET", "/v1/models", "").Body.String(), `"id":"sim"`)
	require.JSONEq(t, fmt.Sprintf(`{"count":2,"max_model_len":131072,"tokens":[%d,%d],"token_strs":null}`, pieceID("one", 0, 3), pieceID(" two", 0, 4)),
		post(s, "/tokenize", `{"prompt":"one two"}`).Body.String())
	require.Contains(t, post(s, "/tokenize", `{"prompt":""}`).Body.String(), `"count":0,"max_model_len":131072,"tokens":[]`)
	require.Contains(t, post(s, "/tokenize", `{"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false}`).Body.String(), `"count":5`)
}

func TestTokenizeGivesTheIDsOfTheRealPrompt(t *testing.T) {
	s := instantServer(t)
	body := fmt.Sprintf(`{"tools":[{"a":1}],"messages":[{"role":"user","content":%q}],"return_token_ids":true,"max_tokens":1}`, english)
	var chat struct {
		IDs []uint32 `json:"prompt_token_ids"`
	}
	require.NoError(t, json.Unmarshal(post(s, "/v1/chat/completions", body).Body.Bytes(), &chat))
	var tokenized struct {
		Tokens []uint32 `json:"tokens"`
	}
	require.NoError(t, json.Unmarshal(post(s, "/tokenize", body).Body.Bytes(), &tokenized))
	require.NotEmpty(t, chat.IDs)
	require.Equal(t, chat.IDs, tokenized.Tokens)
	byIDs := fmt.Sprintf(`{"prompt":%s,"max_tokens":1}`, strings.ReplaceAll(fmt.Sprint(chat.IDs), " ", ","))
	require.Equal(t, (len(chat.IDs)-1)/16*16, asWhole(t, post(s, "/v1/completions", byIDs)).Usage.PromptDetails.CachedTokens)
}

func TestClientsRequestIDIsInTheAnswersID(t *testing.T) {
	s := instantServer(t)
	ask := func(id string) string {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"prompt":"x"}`))
		if id != "" {
			r.Header.Set("X-Request-Id", id)
		}
		s.ServeHTTP(w, r)
		return asWhole(t, w).ID
	}
	require.Equal(t, "cmpl-abc", ask("abc"))
	require.Equal(t, `cmpl-"`, ask(`"`))
	require.Len(t, ask(strings.Repeat("a", 1000)), len("cmpl-")+maxGivenID)
	first, second := ask(""), ask("")
	require.NotEqual(t, first, second)
}

func TestResetForgetsPrefixesUnlessInUse(t *testing.T) {
	s := instantServer(t)
	body := fmt.Sprintf(`{"prompt":%q}`, english)
	cached := func() int { return asWhole(t, post(s, "/v1/completions", body)).Usage.PromptDetails.CachedTokens }
	require.Zero(t, cached())
	require.NotZero(t, cached())
	require.Equal(t, 200, post(s, "/reset_prefix_cache", "").Code)
	require.Zero(t, cached())

	running, err := s.life.Load().ranks[0].submit(prompt{ids: []uint32{1}}, namespace{}, 1, 0)
	require.NoError(t, err)
	require.Equal(t, 200, post(s, "/reset_prefix_cache", "").Code)
	running.abandon()
	require.NotZero(t, cached())
}

// watched notes when each part of an answer is flushed.
type watched struct {
	*httptest.ResponseRecorder
	start   time.Time
	flushed []time.Duration
}

func (w *watched) Flush() {
	w.flushed = append(w.flushed, time.Since(w.start))
	w.ResponseRecorder.Flush()
}

func TestEachEventOfAStreamIsFlushedAtItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := NewServer(DefaultOptions())
		require.NoError(t, err)
		w := &watched{ResponseRecorder: httptest.NewRecorder(), start: time.Now()}
		s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions",
			strings.NewReader(`{"messages":[{"role":"user","content":"x"}],"max_tokens":3,"stream":true}`)))
		first := 9 * time.Second / 8000 // prompt of 9 tokens
		token := 6350 * time.Microsecond
		require.Equal(t, []time.Duration{0, first, first, first + token, first + 2*token, first + 2*token}, w.flushed,
			"headers at once, role with the first token, the end with the last")
		require.Equal(t, "text/event-stream; charset=utf-8", w.Header().Get("Content-Type"))
	})
}

func TestClientsThatLeaveAreCountedOnceAndLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := NewServer(DefaultOptions())
		require.NoError(t, err)
		bodies := []string{
			`{"prompt":"x","max_tokens":1000,"stream":true}`,
			`{"prompt":"x","max_tokens":1000,"n":4}`,
			`{"prompt":["x","y"],"max_tokens":1000,"stream":true}`,
		}
		ctx, cancel := context.WithCancel(t.Context())
		for _, body := range bodies {
			go s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", strings.NewReader(body)))
		}
		time.Sleep(100 * ms)
		stats := s.Stats()
		require.EqualValues(t, 3, stats.Received)
		require.EqualValues(t, 3, stats.Open)
		require.Equal(t, 7, stats.Running)
		require.JSONEq(t, `{"server_load":3}`, do(s, "GET", "/load", "").Body.String())
		cancel()
		time.Sleep(100 * ms)
		stats = s.Stats()
		require.EqualValues(t, 3, stats.Cancelled)
		require.Zero(t, stats.Open)
		require.Zero(t, stats.Running)
		require.Zero(t, stats.UsedBlocks)
		require.Zero(t, stats.Finished)
	})
}

func TestRestartIsANewEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := NewServer(DefaultOptions())
		require.NoError(t, err)
		body := fmt.Sprintf(`{"prompt":%q,"max_tokens":100}`, english)
		post(s, "/v1/completions", body)
		require.NoError(t, s.faults.add(Fault{Path: "/v1/models", Status: 500}))

		aborted := make(chan any, 1)
		go func() {
			defer func() { aborted <- recover() }()
			post(s, "/v1/completions", body)
		}()
		time.Sleep(200 * ms)
		started := s.life.Load().ranks[0].started
		require.Equal(t, http.StatusNoContent, post(s, "/sim/restart", "").Code)
		require.Equal(t, http.ErrAbortHandler, <-aborted, "requests in flight lose their connection")
		require.Equal(t, time.Now(), s.life.Load().ranks[0].started)
		require.NotEqual(t, started, s.life.Load().ranks[0].started)
		require.Zero(t, s.Stats().Received)
		require.Empty(t, s.Stats().LastBodySHA256)
		require.Zero(t, asWhole(t, post(s, "/v1/completions", body)).Usage.PromptDetails.CachedTokens)
		require.Equal(t, 500, do(s, "GET", "/v1/models", "").Code, "faults stay")
	})
}

func FuzzBodies(f *testing.F) {
	f.Add("/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"u"}}]}],"tools":[{}],"n":2,"stream":true}`)
	f.Add("/v1/completions", `{"prompt":[[1,2],[3]],"echo":true,"max_tokens":3,"stream_options":{"include_usage":true}}`)
	f.Add("/v1/completions", `{"prompt":["a","b"],"cache_salt":"s","return_token_ids":true}`)
	f.Add("/v1/messages", `{"system":[{"type":"text","text":"x"}],"messages":[{"role":"user","content":[{"type":"tool_result","content":"y"}]}],"max_tokens":2}`)
	f.Add("/v1/messages/count_tokens", `{"messages":[{"role":"user","content":null}]}`)
	f.Add("/v1/responses", `{"instructions":"i","input":[{"role":"user","content":"x"},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":[]}],"stream":true,"max_output_tokens":2}`)
	f.Add("/generate", `{"input_ids":[[1,2],[3]],"stream":true,"sampling_params":{"max_new_tokens":2,"n":2}}`)
	f.Add("/v1/embeddings", `{"input":[[1,2],[3]]}`)
	f.Add("/rerank", `{"query":"x","documents":["a","b"]}`)
	f.Add("/score", `{"text_1":["x"],"text_2":["a","b"]}`)
	f.Add("/tokenize", `{"prompt":"x"}`)
	f.Add("/sim/faults", `{"count":1,"status":500}`)
	opts := instantOptions()
	opts.MaxModelLen = 512
	f.Fuzz(func(t *testing.T, path, body string) {
		s, err := NewServer(opts)
		require.NoError(t, err)
		if _, ok := routes[path]; !ok {
			path = "/v1/completions"
		}
		w := post(s, path, body)
		require.Contains(t, []int{200, 204, 400, 404, 405}, w.Code)
		stats := s.Stats()
		require.Zero(t, stats.Running)
		require.Zero(t, stats.Waiting)
		require.Zero(t, stats.UsedBlocks)
		if w.Code == 200 && strings.HasPrefix(w.Body.String(), "{") {
			var value any
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &value))
		}
	})
}

// discard is a client that takes everything and keeps nothing.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Flush()                      {}

func BenchmarkChat(b *testing.B) {
	text := strings.Repeat(english, 16<<10/len(english)+1)[:16<<10]
	for _, test := range []struct{ name, body string }{
		{"whole/1KiB", fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":16}`, text[:1<<10])},
		{"whole/16KiB", fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":16}`, text)},
		{"stream/16KiB", fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":64,"stream":true}`, text)},
	} {
		b.Run(test.name, func(b *testing.B) {
			s := instantServer(b)
			w := &discard{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(test.body)))
			}
		})
	}
}

func TestAnswerAboutAPictureIsFoundInTheNextTurn(t *testing.T) {
	for _, size := range []int{16, 64} { // the block that the answer begins in has some of the picture, or not
		opts := instantOptions()
		opts.BlockSize = size
		s, err := NewServer(opts)
		require.NoError(t, err)
		picture := `{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://example.com/a"}}]}`
		first := asWhole(t, post(s, "/v1/chat/completions", `{"messages":[`+picture+`],"max_tokens":80}`))
		next := asWhole(t, post(s, "/v1/chat/completions", fmt.Sprintf(
			`{"messages":[%s,{"role":"assistant","content":%q},{"role":"user","content":"x"}],"max_tokens":1}`, picture, first.Choices[0].Message.Content)))
		computed := first.Usage.PromptTokens + 80 - 1
		require.Equal(t, computed/size*size, next.Usage.PromptDetails.CachedTokens)
	}
}
