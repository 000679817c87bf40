package enginesim

import (
	"encoding/json/v2"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// counted is what tests read of what an answer of any API counts.
type counted struct {
	Usage struct {
		Prompt  int `json:"prompt_tokens"`
		Input   int `json:"input_tokens"`
		Details *struct {
			Cached int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
	} `json:"usage"`
	Meta nativeMeta `json:"meta_info"`
}

func countedIn(t *testing.T, s *Server, path, body string) (c counted) {
	t.Helper()
	w := post(s, path, body)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &c))
	return c
}

func TestResponsesHaveThePromptOfTheirChat(t *testing.T) {
	s := instantServer(t)
	long := strings.Repeat("tell me something about the weather ", 40)
	tool := `{"type":"function","name":"f"}`
	chat := asWhole(t, post(s, "/v1/chat/completions", fmt.Sprintf(`{"tools":[%s],"messages":[
		{"role":"system","content":%q},
		{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"u"}}]},
		{"role":"assistant","reasoning_content":"r","content":"c","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"2","type":"function","function":{"name":"f","arguments":"[]"}}]},
		{"role":"tool","tool_call_id":"1","content":"one"},
		{"role":"user","content":"thanks"}]}`, tool, long)))
	response := countedIn(t, s, "/v1/responses", fmt.Sprintf(`{"tools":[%s],"instructions":%q,"input":[
		{"role":"user","content":[{"type":"input_text","text":"look"},{"type":"input_image","image_url":"u"}]},
		{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"r"}]},
		{"type":"message","role":"assistant","content":"c"},
		{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},
		{"type":"function_call","call_id":"2","name":"f","arguments":"[]"},
		{"type":"function_call_output","call_id":"1","output":"one"},
		{"role":"user","content":"thanks"}]}`, tool, long))
	n := chat.Usage.PromptTokens
	require.Equal(t, n, response.Usage.Input)
	require.Equal(t, (n-1)/16*16, response.Usage.Details.Cached, "all of the chat's blocks")
}

// TestStreamedResponsesBeginBeforeThePromptIsComputed reads the events with their times.
func TestStreamedResponsesBeginBeforeThePromptIsComputed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := NewServer(DefaultOptions())
		require.NoError(t, err)
		start := time.Now()
		w := &timedEvents{start: start, header: http.Header{}}
		s.ServeHTTP(w, newPost(t, "/v1/responses", fmt.Sprintf(`{"input":%q,"stream":true,"max_output_tokens":2}`, strings.Repeat("weather ", 4000))))
		names := make([]string, 0, len(w.events))
		for _, e := range w.events {
			names = append(names, e.name)
			early := e.name == "response.created" || e.name == "response.in_progress"
			require.Equal(t, early, e.after == 0, e.name)
		}
		require.Equal(t, []string{
			"response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
			"response.output_text.delta", "response.output_text.delta",
			"response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
		}, names)
		var last struct {
			Sequence int `json:"sequence_number"`
			Response response
		}
		require.NoError(t, json.Unmarshal([]byte(w.events[len(names)-1].data), &last, loose))
		require.Equal(t, len(names)-1, last.Sequence)
		require.Positive(t, last.Response.Usage.InputTokens)
		require.Equal(t, 2, last.Response.Usage.OutputTokens)
	})
}

// timedEvents is a client that notes when which event came.
type timedEvents struct {
	start  time.Time
	header http.Header
	events []timedEvent
}

type timedEvent struct {
	name, data string
	after      time.Duration
}

func (w *timedEvents) Header() http.Header { return w.header }
func (w *timedEvents) WriteHeader(int)     {}
func (w *timedEvents) Flush()              {}

func (w *timedEvents) Write(p []byte) (int, error) {
	event, data, _ := strings.Cut(strings.TrimSpace(string(p)), "\n")
	w.events = append(w.events, timedEvent{strings.TrimPrefix(event, "event: "), strings.TrimPrefix(data, "data: "), time.Since(w.start)})
	return len(p), nil
}

func newPost(t *testing.T, path, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
	require.NoError(t, err)
	return r
}

func TestSGLangsOwnAPICountsInEveryEvent(t *testing.T) {
	s := instantServer(t)
	text := strings.Repeat("weather ", 100)
	first := countedIn(t, s, "/generate", fmt.Sprintf(`{"text":%q,"sampling_params":{"max_new_tokens":3}}`, text))
	require.Zero(t, first.Meta.CachedTokens)
	require.Equal(t, 3, first.Meta.CompletionTokens)
	stream := post(s, "/generate", fmt.Sprintf(`{"text":%q,"sampling_params":{"max_new_tokens":3},"stream":true}`, text)).Body.String()
	events := strings.Split(strings.TrimSuffix(stream, "data: [DONE]\n\n"), "\n\n")
	require.Len(t, events, 4)
	before := ""
	for i, event := range events[:3] {
		var answer nativeAnswer
		require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(event, "data: ")), &answer))
		require.Equal(t, first.Meta.PromptTokens, answer.Meta.PromptTokens)
		require.Equal(t, (first.Meta.PromptTokens-1)/16*16, answer.Meta.CachedTokens)
		require.Equal(t, i == 2, answer.Meta.FinishReason != nil)
		require.Len(t, answer.IDs, i+1)
		require.True(t, strings.HasPrefix(answer.Text, before))
		before = answer.Text
	}
	var batch []nativeAnswer
	require.NoError(t, json.Unmarshal(post(s, "/generate", `{"input_ids":[[1,2],[3]],"extra_key":"k"}`).Body.Bytes(), &batch))
	require.Equal(t, []int{2, 1}, []int{batch[0].Meta.PromptTokens, batch[1].Meta.PromptTokens})
}

func TestPromptsToPoolAreComputedAndCounted(t *testing.T) {
	s := instantServer(t)
	text := strings.Repeat("weather ", 100)
	one := countedIn(t, s, "/v1/embeddings", fmt.Sprintf(`{"input":%q}`, text)).Usage.Prompt
	require.Positive(t, one)
	require.Equal(t, 3*one, countedIn(t, s, "/v1/embeddings", fmt.Sprintf(`{"input":[%q,%[1]q,%[1]q]}`, text)).Usage.Prompt)
	require.Positive(t, s.Stats().CachedTokens)
	require.Positive(t, countedIn(t, s, "/v1/embeddings", `{"messages":[{"role":"user","content":"x"}]}`).Usage.Prompt)
	for path, body := range map[string]string{
		"/score":     `{"text_1":"x","text_2":["a","b"]}`,
		"/v1/score":  `{"queries":["x","y"],"documents":["a","b"]}`,
		"/rerank":    `{"query":"x","documents":["a","b"]}`,
		"/v2/rerank": `{"query":"x","documents":["a","b"],"top_n":1}`,
	} {
		require.Equal(t, 2*3, countedIn(t, s, path, body).Usage.Prompt, path)
	}
	var ranking struct {
		Results []struct {
			Index    int
			Document struct{ Text string }
			Score    float64 `json:"relevance_score"`
		}
	}
	require.NoError(t, json.Unmarshal(post(s, "/rerank", `{"query":"x","documents":["a","b","c"]}`).Body.Bytes(), &ranking, loose))
	require.Len(t, ranking.Results, 3)
	for i, r := range ranking.Results {
		require.Equal(t, "abc"[r.Index:r.Index+1], r.Document.Text)
		require.True(t, i == 0 || ranking.Results[i-1].Score >= r.Score)
	}
}

func TestRequestsThatMakeNoPromptAreRefused(t *testing.T) {
	s := instantServer(t)
	for _, c := range []struct {
		path, body string
		status     int
	}{
		{"/v1/responses", `{}`, 400},
		{"/v1/responses", `{"input":[]}`, 400},
		{"/v1/responses", `{"input":[{"type":"web_search_call"}]}`, 400},
		{"/v1/responses", `{"input":"x","previous_response_id":"resp_1"}`, 404},
		{"/generate", `{}`, 400},
		{"/generate", `{"input_ids":[]}`, 400},
		{"/v1/embeddings", `{"input":""}`, 400},
		{"/v1/embeddings", `{"input":"x","model":"other"}`, 404},
		{"/rerank", `{"query":"x","documents":[]}`, 400},
		{"/score", `{"text_1":["a","b"],"text_2":["a","b","c"]}`, 400},
	} {
		require.Equal(t, c.status, post(s, c.path, c.body).Code, c.body)
	}
}
