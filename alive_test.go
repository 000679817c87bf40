package inference

import (
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-inference/caddy-inference/fleet"
)

// answering has w answer a request in the pieces that are written.
func answering(t *testing.T, s *state, w *worker, status int, header http.Header) *io.PipeWriter {
	t.Helper()
	ticket := &ticket{state: s, worker: w, model: s.models.Get(nil)}
	r := w.Place(1000, s.clock.now())
	r.Expect(fleet.Streamed, r.Charged())
	ticket.reservation.Store(r)
	from, to := io.Pipe()
	body, is := watchBody(&http.Response{StatusCode: status, Header: header, Body: from}, ticket).(*responseBody)
	require.True(t, is)
	body.taken = true
	go func() { _, _ = io.Copy(io.Discard, body) }()
	return to
}

// TestWhateverComesOfAnAnswerIsASignOfLife has one request wait while another is answered.
func TestWhateverComesOfAnAnswerIsASignOfLife(t *testing.T) {
	stream := func(pairs ...string) http.Header {
		h := http.Header{"Content-Type": {"text/event-stream"}}
		for i := 0; i < len(pairs); i += 2 {
			h.Set(pairs[i], pairs[i+1])
		}
		return h
	}
	for name, c := range map[string]struct {
		status      int
		header      http.Header
		first, next string
		alive       bool
	}{
		"a stream":           {http.StatusOK, stream(), "data: {}\n\n", "d", true},
		"a coded stream":     {http.StatusOK, stream("Content-Encoding", "gzip"), "\x1f\x8b", "\x00", true},
		"not really coded":   {http.StatusOK, stream("Content-Encoding", "identity"), ": ping\n\n", ": ping\n\n", false},
		"before the engine":  {http.StatusOK, stream(), ": ping\n\n", "event: response.created\ndata: {}\n\n", false},
		"in one piece":       {http.StatusOK, http.Header{"Content-Type": {"application/json"}}, "{", "}", true},
		"of some other kind": {http.StatusOK, http.Header{"Content-Type": {"audio/mpeg"}}, "a", "b", true},
		"an error":           {http.StatusBadRequest, stream(), "e", "r", true},
	} {
		t.Run(name, func(t *testing.T) {
			inSuspicion(t, func(s *state, w *worker, _ *door, _ *observer.ObservedLogs) {
				answer := answering(t, s, w, c.status, c.header)
				defer answer.Close()
				piece := func(p string) {
					_, _ = io.WriteString(answer, p)
					pass(0)
				}
				piece(c.first)
				waiting := w.Place(0, s.clock.now())
				waiting.Expect(fleet.Streamed, waiting.Charged())
				defer waiting.Release(s.clock.now())
				pass(10 * time.Second)
				require.Positive(t, w.Overdue(s.clock.now()))
				for range 3 {
					piece(c.next)
					require.Equal(t, c.alive, w.Overdue(s.clock.now()) == 0)
					pass(10 * time.Second)
				}
			})
		})
	}
}

// TestThePrefillOfACodedStreamEndsWithItsFirstByte cannot tell its events apart.
func TestThePrefillOfACodedStreamEndsWithItsFirstByte(t *testing.T) {
	inSuspicion(t, func(s *state, w *worker, _ *door, _ *observer.ObservedLogs) {
		answer := answering(t, s, w, http.StatusOK, http.Header{"Content-Type": {"text/event-stream"}, "Content-Encoding": {"br"}})
		defer answer.Close()
		pass(time.Second)
		require.Equal(t, 1000, w.Load().Queued())
		_, _ = answer.Write([]byte{0x1b})
		pass(0)
		require.Zero(t, w.Load().Queued())
		require.Equal(t, 1, w.Load().InFlight())
	})
}

// TestASlowUploadIsNotTheWorkersDelay has a request be written slowly, and then not be
// answered.
func TestASlowUploadIsNotTheWorkersDelay(t *testing.T) {
	inSuspicion(t, func(s *state, w *worker, _ *door, _ *observer.ObservedLogs) {
		ticket := &ticket{state: s, worker: w, scratch: new(scratch), body: &body{rest: newRest(nil, http.NoBody, nil)}}
		ticket.scratch.prompt.Stream = true
		r := w.Place(0, s.clock.now())
		ticket.reservation.Store(r)
		defer ticket.release()
		sent := traced(newRequest(t, "http://10.0.0.1:8000/v1/chat/completions", http.NoBody), ticket)
		wrote := httptrace.ContextClientTrace(sent.Context()).WroteRequest
		pass(time.Minute)
		wrote(httptrace.WroteRequestInfo{Err: io.ErrUnexpectedEOF})
		pass(time.Minute)
		require.Zero(t, w.Overdue(s.clock.now()))
		wrote(httptrace.WroteRequestInfo{})
		pass(10 * time.Second)
		require.Equal(t, 8*time.Second, w.Overdue(s.clock.now()))
	})
}

// TestNothingIsDueWhileTheClientSends has one send slowly what is too long to be read first.
func TestNothingIsDueWhileTheClientSends(t *testing.T) {
	engine := newEngine(t)
	s := newSite(t)
	s.load(s.caddyfileWith("inference {\ntime_scale 1000\n}", "lb_policy cache_aware {\nmax_body 64KiB\n}", engine.address()))
	from, to := io.Pipe()
	request := newRequest(t, s.url+"/v1/chat/completions", from)
	answered := make(chan error, 1)
	go func() {
		response, err := s.client.Do(request)
		if err == nil {
			_, err = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
		answered <- err
	}()
	_, err := io.WriteString(to, `{"stream":true,`+strings.TrimSuffix(chatOf(message("user", strings.Repeat("hello ", 20_000)))[1:], "}"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return theState(t).members()[0].Load().InFlight() == 1 }, patience, tick)
	for range 20 { // a slower machine only sees more of what should not be
		require.Zero(t, value(t, "overdue_seconds", "upstream", engine.address()))
		time.Sleep(tick)
	}
	_, err = io.WriteString(to, "}")
	require.NoError(t, err)
	require.NoError(t, to.Close())
	require.NoError(t, <-answered)
	requireIdle(t)
}
