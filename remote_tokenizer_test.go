package inference

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-inference/caddy-inference/selection"
)

// tokenizers without a network: a pool of engines that answer as a test wants, and a
// policy in front of them.
type tokenizerRig struct {
	t       testing.TB
	state   *state
	app     *App
	policy  *Policy
	options *Tokenizing
	workers []*worker
	logs    *observer.ObservedLogs

	mu     sync.Mutex
	asked  []askedFor
	answer func(r *http.Request, engine, nth int) (*http.Response, error)
}

// askedFor is a question as an engine got it.
type askedFor struct {
	engine int
	path   string
	header http.Header
	body   string
}

func newTokenizerRig(t testing.TB, engines int) *tokenizerRig {
	t.Helper()
	core, logs := observer.New(zapcore.WarnLevel)
	rig := &tokenizerRig{t: t, state: newState(), app: newApp(), logs: logs}
	rig.answer = func(*http.Request, int, int) (*http.Response, error) {
		return said(200, `{"count":3,"max_model_len":99,"tokens":[1,2,3]}`), nil
	}
	rig.app.logger = zap.New(core)
	rig.state.start(rig.app)
	rt := &router{state: rig.state}
	rig.policy = &Policy{name: "kv_aware", router: rt}
	rig.options = new(Tokenizing)
	rig.options.provision(rig.policy)
	rig.policy.source = rig.options
	for i := range engines {
		transport := new(http.Transport)
		transport.RegisterProtocol("http", tokenizingEngine{rig, i})
		rig.workers = append(rig.workers, rig.state.join(fmt.Sprintf("10.0.0.%d:8000", i+1), &reverseproxy.HTTPTransport{Transport: transport}))
	}
	rt.current.Store(&membership{workers: rig.workers})
	return rig
}

// end ends the config. Nothing is left that it ran.
func (rig *tokenizerRig) end() {
	rig.state.stop(rig.app)
	require.Zero(rig.t, rig.state.buffered.used.Load(), "bytes of bodies held")
	require.Empty(rig.t, rig.options.remote.calls)
	for _, w := range rig.workers {
		require.Zero(rig.t, w.tokenizing.Load())
	}
}

type tokenizingEngine struct {
	rig    *tokenizerRig
	number int
}

func (e tokenizingEngine) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == "/metrics" {
		return said(404, ""), nil
	}
	body, _ := io.ReadAll(r.Body)
	e.rig.mu.Lock()
	e.rig.asked = append(e.rig.asked, askedFor{e.number, r.URL.Path, r.Header, string(body)})
	nth, answer := len(e.rig.asked), e.rig.answer
	e.rig.mu.Unlock()
	return answer(r, e.number, nth)
}

func said(status int, text string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text))}
}

// says has the engines answer so from now on.
func (rig *tokenizerRig) says(answer func(r *http.Request, engine, nth int) (*http.Response, error)) {
	rig.mu.Lock()
	defer rig.mu.Unlock()
	rig.answer = answer
}

func (rig *tokenizerRig) questions() []askedFor {
	rig.mu.Lock()
	defer rig.mu.Unlock()
	return append([]askedFor(nil), rig.asked...)
}

// ticket returns the ticket of a request, parsed.
func (rig *tokenizerRig) ticket(path, text string) *ticket {
	t := &ticket{state: rig.state, owner: rig.policy, body: &body{budget: &rig.state.buffered, data: []byte(text), whole: true}}
	t.cause = t.parse(path, int64(len(text)))
	require.Empty(rig.t, t.cause)
	return t
}

// ids returns what is found out about the ids of a request.
func (rig *tokenizerRig) ids(path, text string) (ids []uint32, cause string) {
	return rig.policy.source.promptIDs(rig.ticket(path, text), httptest.NewRequest(http.MethodPost, path, nil))
}

func (rig *tokenizerRig) chat(n int) (ids []uint32, cause string) {
	return rig.ids(chatPath, chatOf(message("user", fmt.Sprint("question ", n))))
}

const chatPath = "/v1/chat/completions"

// TestATokenizerIsSentTheClientsOwnBytes compares what engines get with what came.
func TestATokenizerIsSentTheClientsOwnBytes(t *testing.T) {
	odd := `{"model": "m\u0031" ,"seed":18446744073709551615,"messages":[{"role":"user","content":"<\ud83d\/\u4f60>"}]}`
	for name, c := range map[string]struct{ path, body, at, sent string }{
		"a chat as it is":                {chatPath, odd, "/tokenize", odd},
		"of engines mounted elsewhere":   {"/llm" + chatPath, odd, "/llm/tokenize", odd},
		"a text as it is spelled":        {"/v1/completions", `{"model":"m\"1","prompt":"a\u0062<\ud83d","n":2}`, "/tokenize", `{"model":"m\"1","prompt":"a\u0062<\ud83d"}`},
		"the first of a list":            {"/v1/completions", `{"prompt":["one","two"]}`, "/tokenize", `{"prompt":"one"}`},
		"with what is said of its form":  {"/v1/completions", `{"add_special_tokens": false,"prompt":"x"}`, "/tokenize", `{"prompt":"x","add_special_tokens":false}`},
		"a text that has another name":   {"/generate", `{"text":"x","sampling_params":{}}`, "/tokenize", `{"prompt":"x"}`},
		"a chat with a field for itself": {chatPath, `{"prompt":"y","messages":[{"role":"user","content":"x"}]}`, "/tokenize", `{"prompt":"y","messages":[{"role":"user","content":"x"}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			rig := newTokenizerRig(t, 1)
			defer rig.end()
			rig.options.remote.timeout = patience
			r := httptest.NewRequest(http.MethodPost, c.path, nil)
			r.Header.Set("Authorization", "Bearer of news")
			r.Header.Set("X-Other", "1")
			ids, cause := rig.policy.source.promptIDs(rig.ticket(c.path, c.body), r)
			require.Empty(t, cause)
			require.Equal(t, []uint32{1, 2, 3}, ids)
			require.Len(t, rig.questions(), 1)
			q := rig.questions()[0]
			require.Equal(t, c.at, q.path)
			require.Equal(t, c.sent, q.body)
			require.True(t, json.Valid([]byte(q.body)))
			require.Equal(t, "Bearer of news", q.header.Get("Authorization"))
			require.Equal(t, "application/json", q.header.Get("Content-Type"))
			require.Empty(t, q.header.Get("X-Other"))
		})
	}
}

// TestPromptsThatAreEqualAreTokenizedOnce has requests that differ where it does not
// matter to their ids, and where it does.
func TestPromptsThatAreEqualAreTokenizedOnce(t *testing.T) {
	rig := newTokenizerRig(t, 2)
	defer rig.end()
	rig.options.remote.timeout = patience
	chat := func(fields string) string {
		return `{` + fields + `"messages":[{"role":"user","content":"hi"}]}`
	}
	for _, same := range []string{"", `"temperature":1,`, `"stream":true, "seed": 7,`, `"user":"u",`} {
		ids, cause := rig.ids(chatPath, chat(same))
		require.Empty(t, cause)
		require.Equal(t, []uint32{1, 2, 3}, ids)
	}
	require.Len(t, rig.questions(), 1)
	for i, other := range []string{
		`"model":"b",`, `"cache_salt":"s",`, `"tools":[{"type":"function","function":{"name":"f"}}],`,
		`"continue_final_message":true,`, `"add_generation_prompt":false,`, `"prompt":"x",`, `"chat_template_kwargs":{"enable_thinking":false},`,
	} {
		_, cause := rig.ids(chatPath, chat(other))
		require.Empty(t, cause)
		require.Len(t, rig.questions(), 2+i, other)
	}
}

// TestRequestsWithOnePromptWaitForOneCall has many at once.
func TestRequestsWithOnePromptWaitForOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := newTokenizerRig(t, 3)
		rig.says(func(*http.Request, int, int) (*http.Response, error) {
			time.Sleep(10 * time.Millisecond)
			return said(200, `{"count":1,"tokens":[7]}`), nil
		})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				ids, cause := rig.chat(1)
				require.Empty(t, cause)
				require.Equal(t, []uint32{7}, ids)
			})
		}
		wg.Wait()
		require.Len(t, rig.questions(), 1)
		rig.end()
	})
}

// TestASlowTokenizerIsNotWaitedFor has one that takes longer than a request waits. Its
// answer is there for the next attempt, and for the next request.
func TestASlowTokenizerIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := newTokenizerRig(t, 1)
		rig.says(func(*http.Request, int, int) (*http.Response, error) {
			time.Sleep(time.Second)
			return said(200, `{"tokens":[7]}`), nil
		})
		ticket := rig.ticket(chatPath, chatOf(message("user", "question 1")))
		r := httptest.NewRequest(http.MethodPost, chatPath, nil)
		began := time.Now()
		ids, cause := rig.options.promptIDs(ticket, r)
		require.Equal(t, 20*time.Millisecond, time.Since(began))
		require.Empty(t, ids)
		require.Equal(t, tokenizerSlow, cause)
		ids, cause = rig.options.promptIDs(ticket, r)
		require.Empty(t, ids)
		require.Equal(t, tokenizerSlow, cause)
		require.Equal(t, 20*time.Millisecond, time.Since(began), "an attempt waited again")

		time.Sleep(time.Second)
		ids, cause = rig.options.promptIDs(ticket, r)
		require.Empty(t, cause)
		require.Equal(t, []uint32{7}, ids)
		ids, cause = rig.chat(1)
		require.Empty(t, cause)
		require.Equal(t, []uint32{7}, ids)
		require.Len(t, rig.questions(), 1)
		rig.end()
	})
}

// TestAClientThatLeavesIsNotWaitedFor has one leave while its call is under way, and its
// body let go. The call goes on.
func TestAClientThatLeavesIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := newTokenizerRig(t, 1)
		rig.says(func(*http.Request, int, int) (*http.Response, error) {
			time.Sleep(time.Second)
			return said(200, `{"tokens":[7]}`), nil
		})
		ctx, leave := context.WithCancel(t.Context())
		ticket := rig.ticket(chatPath, chatOf(message("user", "question 1")))
		began := time.Now()
		time.AfterFunc(5*time.Millisecond, leave)
		_, cause := rig.options.promptIDs(ticket, httptest.NewRequestWithContext(ctx, http.MethodPost, chatPath, nil))
		require.Equal(t, tokenizerSlow, cause)
		require.Equal(t, 5*time.Millisecond, time.Since(began))
		ticket.begun()
		ticket.end()
		require.Positive(t, rig.state.buffered.used.Load(), "the call's bytes are not counted")
		time.Sleep(time.Second)
		ids, _ := rig.chat(1)
		require.Equal(t, []uint32{7}, ids)
		rig.end()
	})
}

// TestATokenizerThatHangs has one that never answers: calls are bounded in number and in
// time, and the engine is left alone.
func TestATokenizerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := newTokenizerRig(t, 1)
		rig.says(func(r *http.Request, _, _ int) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		var wg sync.WaitGroup
		for n := range maxTokenizeCalls {
			wg.Go(func() {
				_, cause := rig.chat(n)
				require.Equal(t, tokenizerSlow, cause)
			})
		}
		wg.Wait()
		_, cause := rig.chat(maxTokenizeCalls)
		require.Equal(t, tokenizerBusy, cause)
		require.Len(t, rig.questions(), maxTokenizeCalls)
		time.Sleep(tokenizeCallTimeout)
		_, cause = rig.chat(maxTokenizeCalls)
		require.Equal(t, tokenizerFailed, cause)
		require.Len(t, rig.questions(), maxTokenizeCalls)
		rig.end()
	})
}

// TestCallsEndWithTheLastConfig stops while an engine hangs.
func TestCallsEndWithTheLastConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rig := newTokenizerRig(t, 2)
		rig.says(func(r *http.Request, _, _ int) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		_, cause := rig.chat(1)
		require.Equal(t, tokenizerSlow, cause)
		began := time.Now()
		rig.end()
		require.Equal(t, began, time.Now())
		require.Len(t, rig.questions(), 1)
		_, cause = rig.chat(2)
		require.Equal(t, tokenizerMissing, cause)
	})
}

// TestAnswersThatMakeNoSense has engines say what is not what they were asked.
func TestAnswersThatMakeNoSense(t *testing.T) {
	for name, answer := range map[string]string{
		"empty":           "",
		"no JSON":         "<html>",
		"a list":          "[1,2]",
		"cut":             `{"count":3,"tokens":[1,2`,
		"no ids":          `{"count":3,"max_model_len":5}`,
		"an empty list":   `{"count":0,"tokens":[]}`,
		"null":            `{"tokens":null}`,
		"other ids":       `{"count":2,"tokens":["a","b"]}`,
		"fractions":       `{"tokens":[1.5]}`,
		"negative ids":    `{"tokens":[1,-2]}`,
		"ids too large":   `{"tokens":[4294967296]}`,
		"lists of ids":    `{"tokens":[[1,2]]}`,
		"too few ids":     `{"count":3,"tokens":[1,2]}`,
		"too many ids":    `{"count":1,"tokens":[1,2]}`,
		"a very deep one": `{"x":` + strings.Repeat("[", 1_000_000),
	} {
		t.Run(name, func(t *testing.T) {
			rig := newTokenizerRig(t, 1)
			defer rig.end()
			rig.options.remote.timeout = patience
			rig.says(func(*http.Request, int, int) (*http.Response, error) { return said(200, answer), nil })
			ids, cause := rig.chat(1)
			require.Empty(t, ids)
			require.Equal(t, tokenizerFailed, cause)
			require.Zero(t, rig.state.tokenMemo.bytes())
		})
	}
}

// endless is an answer that does not end.
type endless struct {
	begin, rest string
	read        int
}

func (e *endless) Read(p []byte) (n int, err error) {
	for n < len(p) {
		part := e.rest
		if e.read == 0 {
			part = e.begin
		}
		i := copy(p[n:], part)
		n += i
		e.read += i
	}
	return n, nil
}

// TestAnswersAreBounded has some that never end.
func TestAnswersAreBounded(t *testing.T) {
	for name, e := range map[string]*endless{
		"ids":         {begin: `{"tokens":[1`, rest: ",1"},
		"white space": {begin: `{`, rest: " "},
		"a string":    {begin: `{"x":"`, rest: "aaaa"},
	} {
		t.Run(name, func(t *testing.T) {
			rig := newTokenizerRig(t, 1)
			defer rig.end()
			rig.options.remote.timeout = patience
			rig.says(func(*http.Request, int, int) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(e)}, nil
			})
			_, cause := rig.chat(1)
			require.Equal(t, tokenizerFailed, cause)
			require.LessOrEqual(t, e.read, maxTokenizeAnswer)
		})
	}
}

// TestOneOtherEngineIsAskedIfTheFirstFails has pools of which some engines fail.
func TestOneOtherEngineIsAskedIfTheFirstFails(t *testing.T) {
	for name, failure := range map[string]func() (*http.Response, error){
		"unreachable": func() (*http.Response, error) { return nil, errors.New("connection refused") },
		"500":         func() (*http.Response, error) { return said(500, `{"error":"x"}`), nil },
		"503":         func() (*http.Response, error) { return said(503, ""), nil },
		"429":         func() (*http.Response, error) { return said(429, ""), nil },
		"no sense":    func() (*http.Response, error) { return said(200, "{}"), nil },
		"404":         func() (*http.Response, error) { return said(404, `{"detail":"Not Found"}`), nil },
	} {
		t.Run(name, func(t *testing.T) {
			rig := newTokenizerRig(t, 4)
			defer rig.end()
			rig.options.remote.timeout = patience
			rig.says(func(_ *http.Request, _, nth int) (*http.Response, error) {
				if nth == 1 {
					return failure()
				}
				return said(200, `{"tokens":[7]}`), nil
			})
			ids, cause := rig.chat(1)
			require.Empty(t, cause)
			require.Equal(t, []uint32{7}, ids)
			require.Len(t, rig.questions(), 2)
			require.NotEqual(t, rig.questions()[0].engine, rig.questions()[1].engine)

			rig.says(func(*http.Request, int, int) (*http.Response, error) { return failure() })
			_, cause = rig.chat(2)
			require.NotEmpty(t, cause)
			require.Len(t, rig.questions(), 4)
		})
	}
}

// charge charges a worker with a request and returns what ends that.
func charge(w *worker) (release func()) {
	r := selection.Force(1, selection.Candidate{Worker: w.Worker}, time.Now())
	return func() { r.Release(time.Now()) }
}

// TestTheLeastBusyEngineIsAsked counts requests, calls, and who cannot be asked.
func TestTheLeastBusyEngineIsAsked(t *testing.T) {
	rig := newTokenizerRig(t, 6)
	defer rig.end()
	w := rig.workers
	for range 9 {
		defer charge(w[0])()
	}
	w[1].tokenizing.Store(1)
	defer w[1].tokenizing.Store(0)
	w[2].sick.Store(true)
	defer charge(w[3])()
	w[4].transport.Store(nil)
	w[5].suspicion.Store(&suspicion{})
	require.Equal(t, []*worker{w[3], w[1]}, tokenizers(w))
	require.Equal(t, []*worker{w[1], w[0]}, tokenizers([]*worker{w[0], w[1], w[0]}))
	require.Equal(t, []*worker{w[0]}, tokenizers(w[:1]))
	require.Empty(t, tokenizers(w[4:]))
	w[5].suspicion.Store(nil)
}

// TestAMissingEndpointIsRemembered has engines that have none, and do later.
func TestAMissingEndpointIsRemembered(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotImplemented} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rig := newTokenizerRig(t, 4)
				rig.says(func(*http.Request, int, int) (*http.Response, error) { return said(status, `question 1`), nil })
				for n := range 100 {
					_, cause := rig.chat(n)
					require.Equal(t, tokenizerMissing, cause)
				}
				require.Len(t, rig.questions(), 2)
				require.Equal(t, 1, rig.logs.Len())
				require.NotContains(t, fmt.Sprint(rig.logs.All()), "question")
				_, cause := rig.ids("/v1/completions", `{"prompt":"x"}`)
				require.Equal(t, tokenizerMissing, cause)
				require.Len(t, rig.questions(), 4, "texts are another matter than chats")

				time.Sleep(outageFor)
				rig.says(func(*http.Request, int, int) (*http.Response, error) { return said(200, `{"tokens":[7]}`), nil })
				ids, cause := rig.chat(1)
				require.Empty(t, cause)
				require.Equal(t, []uint32{7}, ids)
				rig.end()
			})
		})
	}
}

// TestARefusedPromptIsNoOutage has clients send what engines refuse, among others.
func TestARefusedPromptIsNoOutage(t *testing.T) {
	for status, text := range map[int]string{
		400: `{"error":{"message":"bad"}}`,
		401: `{"error":"Unauthorized"}`,
		404: "{\"error\":{\"message\":\"The model `x` does not exist.\",\"type\":\"NotFoundError\"}}",
		422: `{"detail":[]}`,
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			rig := newTokenizerRig(t, 2)
			defer rig.end()
			rig.options.remote.timeout = patience
			_, cause := rig.chat(0)
			require.Empty(t, cause)
			rig.says(func(*http.Request, int, int) (*http.Response, error) { return said(status, text), nil })
			for n := range 5 * enoughFailures {
				_, cause := rig.chat(1 + n)
				require.Equal(t, tokenizerRefused, cause)
				require.Len(t, rig.questions(), 2+n, "another engine was asked")
			}
			require.Zero(t, rig.logs.Len())
		})
	}
}

// TestEnginesThatRefuseEveryChatAreLeftAlone has some that tokenize texts alone.
func TestEnginesThatRefuseEveryChatAreLeftAlone(t *testing.T) {
	rig := newTokenizerRig(t, 2)
	defer rig.end()
	rig.options.remote.timeout = patience
	rig.says(func(r *http.Request, _, nth int) (*http.Response, error) {
		if strings.Contains(rig.questions()[nth-1].body, "messages") {
			return said(400, `{"error":{"message":"prompt: Field required"}}`), nil
		}
		return said(200, `{"tokens":[7]}`), nil
	})
	for n := range 100 {
		_, cause := rig.chat(n)
		require.NotEmpty(t, cause)
	}
	require.Len(t, rig.questions(), enoughFailures)
	_, cause := rig.chat(100)
	require.Equal(t, tokenizerMissing, cause)
	_, cause = rig.ids("/v1/completions", `{"prompt":"x"}`)
	require.Empty(t, cause)
}

// TestOneFailureIsNoOutage has an engine fail now and then.
func TestOneFailureIsNoOutage(t *testing.T) {
	rig := newTokenizerRig(t, 1)
	defer rig.end()
	rig.options.remote.timeout = patience
	rig.says(func(_ *http.Request, _, nth int) (*http.Response, error) {
		if nth%2 == 1 {
			return said(500, ""), nil
		}
		return said(200, `{"tokens":[7]}`), nil
	})
	for n := range 4 * enoughFailures {
		rig.chat(n)
	}
	require.Len(t, rig.questions(), 4*enoughFailures)
	require.Zero(t, rig.logs.Len())
	rig.says(func(*http.Request, int, int) (*http.Response, error) { return said(500, "a secret question"), nil })
	for n := range 4 * enoughFailures {
		_, cause := rig.chat(1000 + n)
		require.Equal(t, tokenizerFailed, cause)
	}
	require.Len(t, rig.questions(), 5*enoughFailures)
	require.Equal(t, 1, rig.logs.Len())
	require.NotContains(t, fmt.Sprint(rig.logs.All()[0].ContextMap()), "question")
}

// TestThereIsNoCallWithoutRoomForIt has the budget for bodies used up.
func TestThereIsNoCallWithoutRoomForIt(t *testing.T) {
	rig := newTokenizerRig(t, 1)
	rig.state.buffered.limit.Store(10)
	_, cause := rig.chat(1)
	require.Equal(t, tokenizerBusy, cause)
	require.Empty(t, rig.questions())
	rig.end()
}

// TestATokenizerBehindCaddyIsSentWhatTheEngineIsSent has chats of many clients at once, of
// lengths whose buffers are used again. Each is tokenized by one engine, once, from its own
// bytes.
func TestATokenizerBehindCaddyIsSentWhatTheEngineIsSent(t *testing.T) {
	engines := newEngines(t, 3)
	var mu sync.Mutex
	tokenized, served := map[string]int{}, map[string]int{}
	for _, e := range engines {
		e.tellWith(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/tokenize" {
				http.NotFound(w, r)
				return
			}
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			defer mu.Unlock()
			tokenized[hash(body)]++
			assert.Equal(t, "application/json", r.Header.Get("Content-Type"))
			assert.NotContains(t, r.Header, "Idempotency-Key")
			fmt.Fprint(w, `{"count":3,"max_model_len":4096,"tokens":[1,2,3]}`)
		})
	}
	s := startSite(t, "lb_policy kv_aware {\ntokenize_timeout 5s\n}", addresses(engines)...)
	random := rand.New(rand.NewPCG(6, 6))
	var bodies []string
	for n := range 40 {
		bodies = append(bodies, chatOf(message("user", letters(random, 100<<(n%10)))))
	}
	for range 2 {
		var wg sync.WaitGroup
		for _, body := range bodies {
			wg.Go(func() { s.chat(body) })
		}
		wg.Wait()
	}
	for _, e := range engines {
		for _, r := range e.received() {
			served[hash(r.body)]++
		}
	}
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, tokenized, len(bodies))
	require.Len(t, served, len(bodies))
	for _, body := range bodies {
		require.Equal(t, 1, tokenized[hash([]byte(body))])
		require.Equal(t, 2, served[hash([]byte(body))])
	}
	require.EqualValues(t, len(bodies), value(t, "prompt_ids_total", "source", "memo"))
	requireIdle(t)
}
