package inference

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/fleet"
)

func TestAffinityIsParsed(t *testing.T) {
	c, err := parsePolicy("{\naffinity header X-Session-ID\naffinity cookie sid\naffinity body metadata.user_id\n}")
	require.NoError(t, err)
	require.Equal(t, []Affinity{{Header: "X-Session-ID"}, {Cookie: "sid"}, {Body: "metadata.user_id"}}, c.Affinity)
	const places = "one of header, cookie and body"
	for text, said := range map[string][]string{
		"affinity":                        {places},
		"affinity header":                 {places},
		"affinity header X-Session more":  {places},
		"affinity header {\nx\n}":         {places},
		"affinity query session":          {"affinity 'query'", "header, cookie or body"},
		"affinity header \"X Session\"":   {"'X Session'", "X-Session-ID"},
		"affinity header \"\"":            {"is empty"},
		"affinity cookie a;b":             {"'a;b'", "such as session"},
		"affinity body session":           {"'session'", "prompt_cache_key, user, metadata.user_id and session_params.session_id"},
		"affinity body messages[0].users": {"'messages[0].users'"},
	} {
		err := new(PrefixHash).UnmarshalCaddyfile(caddyfile.NewTestDispenser("prefix_hash {\n" + text + "\n}"))
		requireSays(t, err, text, append(said, "prefix_hash: affinity"))
	}
	for name := range sessionFields {
		require.Contains(t, sessionFieldNames, name)
	}
}

func TestAnAffinityHasOnePlace(t *testing.T) {
	for said, list := range map[string][]Affinity{
		"affinity 1: it has more than one": {{Header: "A", Body: "user"}},
		"affinity 2: it has more than one": {{Header: "A"}, {Cookie: "a", Body: "user"}},
		"affinity 2: is there twice":       {{Header: "A"}, {Header: "A"}},
		"affinity 1: it is empty":          {{}},
		"affinity 1: 'é' is no name":       {{Cookie: "é"}},
	} {
		p := Policy{MaxBody: minBody, Tune: "on", Affinity: list}
		require.ErrorContains(t, p.validate("cache_aware"), "cache_aware: "+said)
	}
}

// TestASessionHasTheSameKeyEverywhere has a key as it was found on another machine, and
// no source of the value makes a difference.
func TestASessionHasTheSameKeyEverywhere(t *testing.T) {
	const value, want = "session-0815", uint64(0xed7db978f29b46a6)
	p := &Policy{Affinity: []Affinity{{Header: "X-Session-ID"}, {Cookie: "sid"}, {Body: "user"}}}
	s := newState()
	for name, set := range map[string]func(r *http.Request) (body string){
		"header": func(r *http.Request) string { r.Header.Set("x-session-id", " "+value+" "); return "" },
		"cookie": func(r *http.Request) string {
			r.AddCookie(&http.Cookie{Name: "sid"})
			r.AddCookie(&http.Cookie{Name: "sid", Value: value})
			return ""
		},
		"body": func(*http.Request) string { return `{"user":"` + value + `"}` },
		"several": func(r *http.Request) string {
			r.Header.Set("X-Session-ID", value)
			r.AddCookie(&http.Cookie{Name: "sid", Value: "other"})
			return `{"user":"another"}`
		},
		"empty ones": func(r *http.Request) string {
			r.Header.Set("X-Session-ID", "")
			r.AddCookie(&http.Cookie{Name: "sid"})
			return `{"user":"` + value + `"}`
		},
	} {
		r := newRequest(t, "http://llm/v1/chat/completions", nil)
		k := &ticket{state: s, owner: p, body: &body{budget: &s.buffered}}
		if text := set(r); text != "" {
			k.body.data = []byte(text)
			k.parse(r.URL.Path, int64(len(text)))
		}
		require.Equal(t, want, p.session(r, k.parsed()), name)
	}
	require.Zero(t, p.session(newRequest(t, "http://llm/v1/chat/completions", nil), nil), "nothing said")
}

// sessions send requests that say which session they belong to.
var sessions = map[string]struct {
	option string
	send   func(s *site, session, prompt string)
}{
	"header": {"affinity header X-Session-ID", func(s *site, session, prompt string) {
		s.with("X-Session-ID", session, chatOf(message("user", prompt)))
	}},
	"cookie": {"affinity cookie sid", func(s *site, session, prompt string) {
		s.with("Cookie", "a=b; sid="+session, chatOf(message("user", prompt)))
	}},
	"prompt_cache_key": {"affinity body prompt_cache_key", func(s *site, session, prompt string) {
		s.chat(`{"prompt_cache_key":"` + session + `",` + chatOf(message("user", prompt))[1:])
	}},
	"user": {"affinity body user", func(s *site, session, prompt string) {
		s.chat(`{"user":"` + session + `",` + chatOf(message("user", prompt))[1:])
	}},
	"metadata.user_id": {"affinity body metadata.user_id", func(s *site, session, prompt string) {
		s.chat(`{"metadata":{"user_id":"` + session + `"},` + chatOf(message("user", prompt))[1:])
	}},
	"session_params.session_id": {"affinity body session_params.session_id", func(s *site, session, prompt string) {
		s.chat(`{"session_params":{"session_id":"` + session + `"},` + chatOf(message("user", prompt))[1:])
	}},
}

// with sends a chat with a header field.
func (s *site) with(name, value, body string) {
	s.t.Helper()
	request := newRequest(s.t, s.url+"/v1/chat/completions", strings.NewReader(body))
	request.Header.Set(name, value)
	response, err := s.client.Do(request)
	require.NoError(s.t, err)
	require.NoError(s.t, response.Body.Close())
	require.Equal(s.t, http.StatusOK, response.StatusCode)
}

// TestRequestsOfASessionGoToOneEngine sends prompts that have nothing in common.
func TestRequestsOfASessionGoToOneEngine(t *testing.T) {
	overPolicies(t, requestsOfASessionGoToOneEngine)
}

func requestsOfASessionGoToOneEngine(t *testing.T, policy string) {
	for name, by := range sessions {
		t.Run(name, func(t *testing.T) {
			engines := newEngines(t, 4)
			s := startSite(t, "lb_policy "+policy+" {\n"+by.option+"\n}", addresses(engines)...)
			random := rand.New(rand.NewPCG(81, 82))
			homes := map[int]bool{}
			for session := range 24 {
				id, home := fmt.Sprint("session-", session), -1
				for n := range 3 {
					engine := served(t, engines, func() { by.send(s, id, letters(random, 300)) })
					if n > 0 {
						require.Equal(t, home, engine)
					}
					home = engine
				}
				homes[home] = true
			}
			require.GreaterOrEqual(t, len(homes), 3)
			require.Equal(t, "affinity", s.lastDecision(3 * 24)["reason"])
			requireIdle(t)
		})
	}
}

// TestRequestsWithoutASessionAreThePolicys and those whose header Caddy drops.
func TestRequestsWithoutASessionAreThePolicys(t *testing.T) {
	s := startSite(t, "lb_policy cache_aware {\naffinity header X_Session\naffinity body user\n}", addresses(newEngines(t, 2))...)
	s.chat(chatOf(message("user", "hello")))
	require.Equal(t, "cold", s.lastDecision(1)["reason"])
	s.with("X_Session", "a", chatOf(message("user", "hello")))
	require.Equal(t, "hit", s.lastDecision(2)["reason"], "of headers with an underscore the handler sees nothing")
	s.chat(`{"user":"a",` + chatOf(message("user", "hello"))[1:])
	require.Equal(t, "affinity", s.lastDecision(3)["reason"])
}

// TestAHeaderThatTheServerDropsIsWarnedOf names headers in every way that Caddy drops them
// for, and servers that expect them.
func TestAHeaderThatTheServerDropsIsWarnedOf(t *testing.T) {
	const underscores, dots = "expected_underscore_headers", "expected_dot_headers"
	for name, test := range map[string]struct{ header, servers, option string }{
		"hyphens":              {"X-Session-ID", "", ""},
		"underscore":           {"session_id", "", underscores},
		"dot":                  {"session.id", "", dots},
		"both":                 {"my.session_id", "", underscores},
		"expected":             {"session_id", underscores + " other_id Session_ID", ""},
		"another is expected":  {"session_id", underscores + " session_idx", underscores},
		"all that begin so":    {"session_id", underscores + " SESSION_*", ""},
		"others begin so":      {"session_id", underscores + " session_ids*", underscores},
		"an expected dot":      {"session.id", dots + " session.id", ""},
		"expected for the dot": {"my.session_id", dots + " my.session_id", ""},
		"both need the name":   {"my.session_id", underscores + " my.session_*", underscores},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			config := s.caddyfile("lb_policy cache_aware {\naffinity header "+test.header+"\n}", newEngine(t).address())
			config = strings.Replace(config, "protocols h1 h2c", "protocols h1 h2c\n"+test.servers, 1)
			warned := s.loadWarned(config, "affinity has no effect")
			if test.option == "" {
				require.Empty(t, warned)
			} else {
				require.Len(t, warned, 1)
				require.Equal(t, test.header, warned[0]["header"])
				require.Contains(t, warned[0]["hint"], test.option)
				require.Contains(t, warned[0]["hint"], "X-Session-ID")
			}
			s.with(test.header, "a", chatOf(message("user", "hello")))
			require.Equal(t, test.option == "", s.lastDecision(1)["reason"] == "affinity", "Caddy says otherwise")
		})
	}
}

// loadWarned loads a config and returns what it warns of with a message that begins so.
func (s *site) loadWarned(caddyfile, message string) (list []map[string]any) {
	s.t.Helper()
	for line := range strings.Lines(s.loadLog(caddyfile)) {
		var entry map[string]any
		require.NoError(s.t, json.Unmarshal([]byte(line), &entry))
		if said, _ := entry["msg"].(string); entry["level"] == "warn" && strings.HasPrefix(said, message) {
			list = append(list, entry)
		}
	}
	return list
}

// TestASessionNeedsNoPrompt sends requests with nothing to route on but their session.
func TestASessionNeedsNoPrompt(t *testing.T) {
	engines := newEngines(t, 4)
	s := startSite(t, "lb_policy cache_aware {\nfallback first\naffinity header X-Session-ID\n}", addresses(engines)...)
	homes, n := map[int]bool{}, 0
	for session := range 24 {
		home := -1
		for _, path := range []string{"/v1/foo", "/v1/models", "/v1/chat/completions"} {
			engine := served(t, engines, func() {
				request := newRequest(t, s.url+path, nil)
				request.Header.Set("X-Session-ID", fmt.Sprint(session))
				response, err := s.client.Do(request)
				require.NoError(t, err)
				require.NoError(t, response.Body.Close())
			})
			n++
			require.Equal(t, "affinity", s.lastDecision(n)["reason"])
			require.NotEmpty(t, s.lastDecision(n)["cause"])
			require.True(t, home < 0 || home == engine)
			home = engine
		}
		homes[home] = true
	}
	require.GreaterOrEqual(t, len(homes), 3)
	requireIdle(t)
}

// TestASessionLeavesAnOverloadedEngineAndComesBack has a long prompt queued where the
// session is at home.
func TestASessionLeavesAnOverloadedEngineAndComesBack(t *testing.T) {
	overPolicies(t, aSessionLeavesAnOverloadedEngineAndComesBack)
}

func aSessionLeavesAnOverloadedEngineAndComesBack(t *testing.T, policy string) {
	engines := newEngines(t, 4)
	s := startSite(t, "lb_policy "+policy+" {\naffinity header X-Session-ID\n}", addresses(engines)...)
	body := chatOf(message("user", "hello"))
	home := served(t, engines, func() { s.with("X-Session-ID", "a", body) })
	r := workerAt(t, engines[home].address()).Place(1_000_000, theState(t).clock.now())
	away := served(t, engines, func() { s.with("X-Session-ID", "a", body) })
	require.NotEqual(t, home, away)
	last := s.lastDecision(2)
	require.Equal(t, "bound", last["reason"])
	require.Equal(t, engines[home].address(), last["holder"])
	require.Equal(t, away, served(t, engines, func() { s.with("X-Session-ID", "a", chatOf(message("user", "something else"))) }), "the session's order decides")
	r.Release(theState(t).clock.now())
	require.Equal(t, home, served(t, engines, func() { s.with("X-Session-ID", "a", body) }))
	require.Equal(t, "affinity", s.lastDecision(4)["reason"])
	requireIdle(t)
}

// workerAt returns the worker with an address.
func workerAt(t *testing.T, address string) *fleet.Worker {
	t.Helper()
	for _, w := range theState(t).members() {
		if w.Address() == address {
			return w.Worker
		}
	}
	require.Fail(t, "no such worker")
	return nil
}

// TestASessionWhoseEngineIsDownGoesOn has sessions at home on an upstream that nobody
// listens on.
func TestASessionWhoseEngineIsDownGoesOn(t *testing.T) {
	up := newEngine(t)
	s := startSite(t, "lb_policy cache_aware {\naffinity header X-Session-ID\n}\nlb_retries 2", up.address(), freeAddress(t))
	reasons := map[any]int{}
	for n := range 24 {
		s.with("X-Session-ID", fmt.Sprint(n), chatOf(message("user", "hello")))
		reasons[s.lastDecision(n + 1)["reason"]]++
	}
	require.Equal(t, 24, reasons["affinity"]+reasons["owner_unavailable"], reasons)
	require.Positive(t, reasons["owner_unavailable"])
	requireIdle(t)
}

// TestWhatASessionIsCalledIsToldNobody sends names that are long, secret or no text.
func TestWhatASessionIsCalledIsToldNobody(t *testing.T) {
	engines := newEngines(t, 2)
	s := startSite(t, "lb_policy prefix_hash {\naffinity header X-Session-ID\naffinity body user\n}", addresses(engines)...)
	for n, name := range []string{strings.Repeat("secret", 100_000), `secret\"\u0000\ud83d`, "secret\xff\xfe", `secret{\n}`} {
		s.chat(`{"user":"` + name + `",` + chatOf(message("user", "hello"))[1:])
		require.Equal(t, "affinity", s.lastDecision(n + 1)["reason"])
	}
	require.NotContains(t, fmt.Sprint(s.decisions()), "secret")
	requireIdle(t)
}
