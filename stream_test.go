package inference

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// script is a stream with all that events may have in them.
const script = ": ping\n\n" +
	"event: message\r\nid: 1\r\ndata:{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\n" +
	"data: first line\ndata: second line\n\n" +
	"data: {\"choices\":[{\"delta\":{\"content\":\"👩‍👩‍👧 é 你\"}}]}\n\n" +
	"retry: 100\n\n\n" +
	"data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\n" +
	"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\n" +
	"data: [DONE]\n\n"

// TestStreamsArriveAsTheyWereSent writes a stream byte by byte, as events of every kind
// of name, over both protocols.
func TestStreamsArriveAsTheyWereSent(t *testing.T) { overPolicies(t, streamsArriveAsTheyWereSent) }

func streamsArriveAsTheyWereSent(t *testing.T, policy string) {
	engine := newEngine(t)
	s := startSite(t, "lb_policy "+policy, engine.address())
	h2 := &http.Transport{Protocols: new(http.Protocols)}
	h2.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(h2.CloseIdleConnections)
	n := 0
	for _, kind := range []string{"text/event-stream", "text/event-stream; charset=utf-8", "TEXT/EVENT-STREAM", "application/x-ndjson"} {
		for name, client := range map[string]http.RoundTripper{"HTTP/1.1": s.client.Transport, "HTTP/2": h2} {
			engine.respondWith(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", kind)
				for i := range len(script) {
					_, _ = io.WriteString(w, script[i:i+1])
					w.(http.Flusher).Flush()
				}
			})
			request := newRequest(t, s.url+"/v1/chat/completions", strings.NewReader(`{"stream":true,`+chatOf(message("user", "hello"))[1:]))
			response, err := client.RoundTrip(request)
			require.NoError(t, err)
			got, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, script, string(got), "%s over %s", kind, name)
			require.Equal(t, kind, response.Header.Get("Content-Type"))
			n++
			last := s.lastDecision(n)
			require.NotContains(t, last, "broken")
			if kind != "application/x-ndjson" {
				require.Equal(t, 3.0, last["cached_tokens"])
			}
		}
	}
	requireIdle(t)
}

// TestAStreamThatBreaksOffIsNoCleanEnd breaks the connection after two events.
func TestAStreamThatBreaksOffIsNoCleanEnd(t *testing.T) {
	overPolicies(t, aStreamThatBreaksOffIsNoCleanEnd)
}

func aStreamThatBreaksOffIsNoCleanEnd(t *testing.T, policy string) {
	engines := newEngines(t, 2)
	for _, e := range engines {
		e.respondWith(func(w http.ResponseWriter, _ *http.Request) {
			event(w, "{}")
			event(w, "{}")
			hangUp(w, nil)
		})
	}
	s := startSite(t, "lb_policy "+policy, addresses(engines)...)
	response, err := s.client.Do(newRequest(t, s.url+"/v1/chat/completions", strings.NewReader(`{"stream":true,`+chatOf(message("user", "hello"))[1:])))
	require.NoError(t, err)
	got, err := io.ReadAll(response.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NoError(t, response.Body.Close())
	require.Equal(t, "data: {}\n\ndata: {}\n\n", string(got))
	last := s.lastDecision(1)
	require.Equal(t, true, last["broken"])
	require.Equal(t, 1.0, last["attempts"], "it is not asked for again")
	requireIdle(t)
}
