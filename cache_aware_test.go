package inference

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// letters returns n random letters.
func letters(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + r.IntN(26))
	}
	return string(b)
}

func chatOf(messages string) string {
	return fmt.Sprintf(`{"model":"m1","messages":[%s]}`, messages)
}

func message(role, content string) string {
	return fmt.Sprintf(`{"role":"%s","content":"%s"}`, role, content)
}

// asked returns how many requests each engine got.
func asked(engines []*mockEngine) []int {
	n := make([]int, len(engines))
	for i, e := range engines {
		n[i] = len(e.received())
	}
	return n
}

// served returns the engine that got one more request than before.
func served(t *testing.T, engines []*mockEngine, send func()) int {
	t.Helper()
	before := asked(engines)
	send()
	which := -1
	for i, n := range asked(engines) {
		if n == before[i] {
			continue
		}
		require.Equal(t, -1, which, "more than one engine was asked")
		require.Equal(t, before[i]+1, n, "asked more than once")
		which = i
	}
	require.NotEqual(t, -1, which, "no engine was asked")
	return which
}

func TestUnlikePromptsSpreadWithoutLoad(t *testing.T) {
	engines := newEngines(t, 4)
	s := startSite(t, "lb_policy cache_aware", addresses(engines)...)
	random := rand.New(rand.NewPCG(1, 1))
	for range 40 {
		s.chat(chatOf(message("user", letters(random, 2000))))
	}
	for _, n := range asked(engines) {
		require.LessOrEqual(t, n, 16)
	}
	requireIdle(t)
}

// TestUnlikePromptsSpreadWhenSpeedsAreLearned streams unlike prompts one after
// another from engines that are equally fast but for noise, so that a prefill rate
// is learned of each.
func TestUnlikePromptsSpreadWhenSpeedsAreLearned(t *testing.T) {
	engines := newEngines(t, 4)
	for i, e := range engines {
		e.respondWith(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(20*time.Millisecond + time.Duration(i*400)*time.Microsecond) // beside which a busy machine's delays are small
			answer(w, r)
		})
	}
	s := startSite(t, "lb_policy cache_aware", addresses(engines)...)
	random := rand.New(rand.NewPCG(26, 26))
	for range 80 {
		s.chat(`{"stream":true,` + chatOf(message("user", letters(random, 2000)))[1:])
	}
	for i, n := range asked(engines) {
		require.GreaterOrEqual(t, n, 5, "engine %d of 4 got %d of 80", i, n) // without care it is 1
	}
	for _, w := range theState(t).members() {
		require.Positive(t, w.PrefillRate(time.Now()))
	}
}

// TestConversationsStayAndOpeningsSpread interleaves eight conversations of six
// turns, with and without a beginning they share, none of them ever waiting.
func TestConversationsStayAndOpeningsSpread(t *testing.T) {
	for name, system := range map[string]int{"nothing shared": 0, "6 kB shared": 6000} {
		t.Run(name, func(t *testing.T) {
			engines := newEngines(t, 4)
			s := startSite(t, "lb_policy cache_aware", addresses(engines)...)
			random := rand.New(rand.NewPCG(2, uint64(system)))
			history := make([]string, 8)
			home := make([]int, 8)
			for i := range history {
				history[i] = message("system", letters(random, system)+"!")
				if system > 0 && i > 0 {
					history[i] = history[0][:strings.Index(history[0], "}")+1]
				}
			}
			homes := map[int]bool{}
			for turn := range 6 {
				for i := range history {
					if turn > 0 {
						history[i] += "," + message("assistant", letters(random, 80))
					}
					history[i] += "," + message("user", letters(random, 600+1000*max(0, 1-turn)))
					engine := served(t, engines, func() { s.chat(chatOf(history[i])) })
					if turn == 0 {
						home[i] = engine
						homes[engine] = true
					}
					require.Equal(t, home[i], engine, "conversation %d left at turn %d", i, turn)
				}
			}
			require.GreaterOrEqual(t, len(homes), 3, "openings gathered")
			requireIdle(t)
		})
	}
}

func TestBodiesArriveByteForByte(t *testing.T) {
	overPolicies(t, bodiesArriveByteForByte)
}

func bodiesArriveByteForByte(t *testing.T, policy string) {
	engine := newEngine(t)
	s := startSite(t, "lb_policy "+policy, engine.address())
	bodies := map[string]string{
		"unknown field inside a message":   `{"model":"m1","messages":[{"role":"user","content":"x","unknown":{"b":1,"a":2}}]}`,
		"big integers and number forms":    `{"model":"m1","messages":[],"seed":12345678901234567890,"x":123456789012345678901234567890,"n":1e0,"t":1.0}`,
		"whitespace and key order":         "{ \"messages\" :\n[ {\"content\":\"x\",\t\"role\":\"user\"} ] , \"model\":\"m1\" }",
		"duplicate keys":                   `{"model":"m1","model":"m2","messages":[],"messages":[{"role":"user","content":"x"}]}`,
		"escapes that need not be":         `{"model":"m1","messages":[{"role":"user","content":"\u003c \/ \u00e9 <&>"}]}`,
		"lone surrogate":                   `{"model":"m1","messages":[{"role":"user","content":"\ud83d"}]}`,
		"invalid UTF-8":                    "{\"model\":\"m1\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}",
		"byte order mark":                  "\xef\xbb\xbf{\"model\":\"m1\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
		"tool properties in their order":   `{"model":"m1","messages":[],"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"zeta":{},"alpha":{}}}}}]}`,
		"messages that are no list":        `{"messages":{}}`,
		"null message":                     `{"messages":[null]}`,
		"content null":                     `{"messages":[{"role":"user","content":null}]}`,
		"content a number":                 `{"messages":[{"role":"user","content":5}]}`,
		"truncated":                        `{"model":"m1","messages":[{"role":"user","content":"x`,
		"not JSON":                         `model=m1`,
		"trailing garbage":                 `{"model":"m1","messages":[{"role":"user","content":"x"}]} {"a":1}`,
		"nested beyond what anybody means": `{"messages":` + strings.Repeat("[", 100_000),
		"CESU-8":                           "{\"model\":\"m1\",\"messages\":[{\"role\":\"user\",\"content\":\"\xed\xa0\xbd\xed\xb8\x80\"}]}",
		"whitespace":                       " \r\n\t\n",
		"nothing":                          ``,
	}
	for name, body := range bodies {
		t.Run(name, func(t *testing.T) {
			before := len(engine.received())
			status, _ := s.post("/v1/chat/completions", body)
			require.Equal(t, http.StatusOK, status)
			got := engine.received()
			require.Len(t, got, before+1)
			require.Equal(t, hash([]byte(body)), hash(got[before].body))
			require.EqualValues(t, len(body), got[before].length)
		})
	}
	requireIdle(t)
}

func TestEscapedAndLiteralTextAreOnePrompt(t *testing.T) {
	overPolicies(t, escapedAndLiteralTextAreOnePrompt)
}

func escapedAndLiteralTextAreOnePrompt(t *testing.T, policy string) {
	engines := newEngines(t, 4)
	s := startSite(t, "lb_policy "+policy, addresses(engines)...)
	random := rand.New(rand.NewPCG(3, 3))
	for range 8 {
		head := letters(random, 40)
		literal := served(t, engines, func() { s.chat(chatOf(message("user", head+strings.Repeat("é😀你/", 100)))) })
		escaped := served(t, engines, func() {
			s.chat(chatOf(message("user", head+strings.Repeat(`\u00e9\ud83d\ude00\u4f60\/`, 100))))
		})
		require.Equal(t, literal, escaped)
	}
}

// TestTextOfEveryKindArrives sends runes cut at every offset, half of it as no
// text at all, and requires that bytes arrive and nobody minds.
func TestTextOfEveryKindArrives(t *testing.T) {
	overPolicies(t, textOfEveryKindArrives)
}

func textOfEveryKindArrives(t *testing.T, policy string) {
	engines := newEngines(t, 2)
	s := startSite(t, "lb_policy "+policy, addresses(engines)...)
	random := rand.New(rand.NewPCG(4, 4))
	texts := []string{
		"é", "你", "佡", "😀", "👩‍👩‍👧", "e\u0301", "\ufeff", `\u0000`, `\ud83d`, `\ude00\ud83d`, `\ud83d\ude00`,
		"\xff\xfe", "\xed\xa0\xbd\xed\xb8\x80", `\/ \u003c <`, `\`, "\x00", "\n",
	}
	for _, text := range texts {
		for offset := 1; offset <= 64; offset += 3 {
			body := chatOf(message("user", letters(random, offset)+strings.Repeat(text, 64)))
			var got []byte
			which := served(t, engines, func() { s.chat(body) })
			list := engines[which].received()
			got = list[len(list)-1].body
			require.Equal(t, body, string(got), "%q at %d", text, offset)
		}
	}
	requireIdle(t)
}

func TestRequestsWithNothingToRouteOnGoToTheLeastLoaded(t *testing.T) {
	overPolicies(t, requestsWithNothingToRouteOnGoToTheLeastLoaded)
}

func requestsWithNothingToRouteOnGoToTheLeastLoaded(t *testing.T, policy string) {
	engines := newEngines(t, 4)
	s := startSite(t, "lb_policy "+policy, addresses(engines)...)
	tests := []struct{ name, method, path, body, cause string }{
		{"no body", "GET", "/v1/models", "", "unknown_endpoint"},
		{"unknown endpoint", "POST", "/v1/foo", `{"x":1}`, "unknown_endpoint"},
		{"chat without a body", "POST", "/v1/chat/completions", "", "no_body"},
		{"chat without a prompt", "POST", "/v1/chat/completions", `{"model":"m1"}`, "empty_prompt"},
		{"chat that is no JSON", "POST", "/v1/chat/completions", `model=m1`, "unreadable_body"},
		{"encoded body", "POST", "/v1/chat/completions", "\x1f\x8b", "encoded_body"},
		{"nothing to prefill", "POST", "/tokenize", `{"prompt":"` + strings.Repeat("x", 4000) + `"}`, "no_prefill"},
	}
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for range 4 {
				request, err := http.NewRequest(test.method, s.url+test.path, strings.NewReader(test.body))
				require.NoError(t, err)
				if test.cause == "encoded_body" {
					request.Header.Set("Content-Encoding", "gzip")
				}
				response, err := s.client.Do(request)
				require.NoError(t, err)
				require.NoError(t, response.Body.Close())
				require.Equal(t, http.StatusOK, response.StatusCode)
			}
			last := s.lastDecision(4 * (i + 1))
			require.Equal(t, "fallback", last["reason"])
			require.Equal(t, test.cause, last["cause"])
		})
	}
	require.Equal(t, []int{7, 7, 7, 7}, asked(engines))
	requireIdle(t)
}

func TestFallbackChoosesAmongTheAvailableAndIsCharged(t *testing.T) {
	engines := newEngines(t, 3)
	s := startSite(t, "lb_policy cache_aware {\nfallback first\n}\nlb_retries 3", append([]string{freeAddress(t)}, addresses(engines)...)...)
	hold := make(chan struct{})
	for _, e := range engines {
		e.respondWith(func(http.ResponseWriter, *http.Request) { <-hold })
	}
	done := make(chan int)
	go func() {
		status, _ := s.post("/v1/foo", `{"x":1}`)
		done <- status
	}()
	require.Eventually(t, func() bool { return engines[0].openRequests() == 1 }, patience, tick, "the dead one was tried first, then the next")
	busy := 0
	for _, w := range theState(t).members() {
		busy += w.Load().InFlight()
	}
	require.Equal(t, 1, busy)
	close(hold)
	require.Equal(t, http.StatusOK, <-done)
	require.Equal(t, []int{1, 0, 0}, asked(engines))
	decision := s.lastDecision(1)
	require.Equal(t, "fallback", decision["reason"])
	require.Equal(t, 2.0, decision["attempts"])
	requireIdle(t)
}

func TestModelsAndSaltsAreKeptApart(t *testing.T) {
	engines := newEngines(t, 2)
	s := startSite(t, "lb_policy cache_aware", addresses(engines)...)
	text := letters(rand.New(rand.NewPCG(5, 5)), 4000)
	body := func(model, salt string) string {
		return fmt.Sprintf(`{"model":"%s","cache_salt":"%s","messages":[%s]}`, model, salt, message("user", text))
	}
	n := 0
	for _, c := range []struct{ model, salt, reason string }{
		{"m1", "a", "cold"}, {"m1", "a", "hit"}, {"m2", "a", "cold"}, {"m1", "b", "cold"}, {"m2", "a", "hit"}, {"m1", "b", "hit"}, {"m1", "a", "hit"},
	} {
		s.chat(body(c.model, c.salt))
		n++
		require.Equal(t, c.reason, s.lastDecision(n)["reason"], "%d", n)
	}
}

func TestThatNoUpstreamCanBeChosenIsTold(t *testing.T) {
	overPolicies(t, thatNoUpstreamCanBeChosenIsTold)
}

func thatNoUpstreamCanBeChosenIsTold(t *testing.T, policy string) {
	s := startSite(t, "lb_policy "+policy+"\nlb_retries 3", freeAddress(t), freeAddress(t))
	status, _ := s.post("/v1/chat/completions", chatOf(message("user", strings.Repeat("a", 4000))))
	require.Equal(t, http.StatusBadGateway, status, "the error of the last attempt")
	last := s.lastDecision(1)
	require.Equal(t, "none", last["reason"])
	require.NotContains(t, last, "upstream")
	require.Equal(t, 2.0, last["attempts"])
	require.InDelta(t, 1000, last["prompt_tokens"], 20)
	requireIdle(t)
}

func TestScoringByThresholdsAsksForAShareOfThePrompt(t *testing.T) {
	for threshold, want := range map[string]string{"0.05": "hit", "0.3": "too_little"} {
		t.Run(threshold, func(t *testing.T) {
			engines := newEngines(t, 3)
			s := startSite(t, "lb_policy cache_aware {\nscoring threshold\ncache_threshold "+threshold+"\n}", addresses(engines)...)
			random := rand.New(rand.NewPCG(3, 4))
			system := message("system", letters(random, 2000)) + ","
			s.chat(chatOf(system + message("user", letters(random, 200))))
			s.chat(chatOf(system + message("user", letters(random, 10_000))))
			last := s.lastDecision(2)
			require.Equal(t, want, last["reason"])
			require.InDelta(t, 500, last["best_held_tokens"], 50)
			if want == "hit" {
				require.Equal(t, last["best_held_tokens"], last["held_tokens"])
			} else {
				require.Zero(t, last["held_tokens"])
			}
		})
	}
}

// TestShortTurnsStay interleaves conversations whose turns are shorter than what the
// tree resolves, with beginnings of all lengths that they share.
func TestShortTurnsStay(t *testing.T) {
	for _, system := range []int{0, 60, 20_000} {
		for _, turn := range []int{10, 40, 200} {
			engines := newEngines(t, 4)
			s := startSite(t, "lb_policy cache_aware", addresses(engines)...)
			random := rand.New(rand.NewPCG(27, uint64(system+turn)))
			beginning := ""
			if system > 0 {
				beginning = message("system", letters(random, system)) + ","
			}
			home, history := make([]int, 8), make([]string, 8)
			for n := range 5 {
				for i := range history {
					if n > 0 {
						history[i] += "," + message("assistant", letters(random, 20)) + ","
					}
					history[i] += message("user", letters(random, turn))
					engine := served(t, engines, func() { s.chat(chatOf(beginning + history[i])) })
					if n == 0 {
						home[i] = engine
					}
					require.Equal(t, home[i], engine, "system %d, turns of %d: conversation %d left at turn %d", system, turn, i, n)
				}
			}
		}
	}
}

// TestAPromptThatIsSentAgainStays repeats two turns of a conversation, short and
// long, to an idle fleet.
func TestAPromptThatIsSentAgainStays(t *testing.T) {
	for _, size := range []int{300, 4000} {
		engines := newEngines(t, 4)
		s := startSite(t, "lb_policy cache_aware", addresses(engines)...)
		random := rand.New(rand.NewPCG(21, uint64(size)))
		first := message("system", letters(random, size)) + "," + message("user", letters(random, 40))
		second := first + "," + message("assistant", letters(random, 40)) + "," + message("user", letters(random, 40))
		home := served(t, engines, func() { s.chat(chatOf(first)) })
		for _, turn := range []string{first, first, first, second, second, second} {
			require.Equal(t, home, served(t, engines, func() { s.chat(chatOf(turn)) }))
		}
	}
}

// TestAPromptThatIsRefusedKeepsNobodyAway sends one engine a prompt that is too
// long for it, then conversations as usual.
func TestAPromptThatIsRefusedKeepsNobodyAway(t *testing.T) {
	engines := newEngines(t, 4)
	s := startSite(t, "lb_policy cache_aware", addresses(engines)...)
	for _, e := range engines {
		e.respondWith(func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength > 1<<20 {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			answer(w, r)
		})
	}
	random := rand.New(rand.NewPCG(22, 22))
	status, _ := s.post("/v1/chat/completions", chatOf(message("user", letters(random, 2<<20))))
	require.Equal(t, http.StatusBadRequest, status)
	system := message("system", letters(random, 2000))
	for range 40 {
		s.chat(chatOf(system + "," + message("user", letters(random, 1000))))
	}
	for _, n := range asked(engines) {
		require.GreaterOrEqual(t, n, 6)
	}
	for _, w := range theState(t).members() {
		require.Less(t, w.Recent(time.Now()), 20_000.0)
	}
}

// TestAModelNameThatCannotBeShownIsServed asks for models by names that are no text
// or too long for a label.
func TestAModelNameThatCannotBeShownIsServed(t *testing.T) {
	engine := newEngine(t)
	s := startSite(t, "lb_policy cache_aware", engine.address())
	for n, name := range []string{"\xff\xfe", "\xed\xa0\x80", strings.Repeat("m", 1<<20)} {
		for range 2 {
			s.chat(`{"model":"` + name + `",` + chatOf(message("user", "hello"))[len(`{"model":"m1",`):])
		}
		require.Equal(t, "other", s.lastDecision(2*n + 2)["model"])
	}
	require.Equal(t, 6.0, value(t, "decisions_total", "upstream", engine.address()))
	require.Less(t, len(s.logs.String()), 10_000)
}

// TestAnEqualPromptThatIsCancelledTakesNothingFromTheOther sends a prompt twice at
// once; one client leaves, the other is served.
func TestAnEqualPromptThatIsCancelledTakesNothingFromTheOther(t *testing.T) {
	engine := newEngine(t)
	s := startSite(t, "lb_policy cache_aware", engine.address())
	body := chatOf(message("user", strings.Repeat("hello ", 300)))
	proceed := make(chan struct{})
	engine.respondWith(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-proceed:
			answer(w, r)
		case <-r.Context().Done():
		}
	})
	first, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	clients.Go(func() {
		request := newRequest(t, s.url+"/v1/chat/completions", strings.NewReader(body)).WithContext(first)
		if response, err := s.client.Do(request); err == nil {
			response.Body.Close()
		}
	})
	require.Eventually(t, func() bool { return engine.openRequests() == 1 }, patience, tick)
	clients.Go(func() { s.chat(body) })
	require.Eventually(t, func() bool { return engine.openRequests() == 2 }, patience, tick)
	cancel()
	require.Eventually(t, func() bool { return engine.openRequests() == 1 }, patience, tick)
	s.lastDecision(1) // it has left
	close(proceed)
	clients.Wait()
	engine.respondWith(nil)
	s.chat(body)
	require.Equal(t, "hit", s.lastDecision(3)["reason"])
	requireIdle(t)
}
