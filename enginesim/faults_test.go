package enginesim

import (
	"bufio"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// served is a server on a real socket, and a client that holds no connections.
type served struct {
	*Server
	t      *testing.T
	url    string
	client *http.Client
}

func serve(t *testing.T) *served {
	t.Helper()
	s := instantServer(t)
	web := httptest.NewServer(s)
	transport := &http.Transport{DisableKeepAlives: true}
	t.Cleanup(web.Close)
	return &served{Server: s, t: t, url: web.URL, client: &http.Client{Transport: transport}}
}

func (s *served) fault(f Fault) {
	s.t.Helper()
	require.NoError(s.t, s.faults.add(f))
}

// stream asks for a stream of 5 tokens and returns the events that came, and the
// error that ended them.
func (s *served) stream(ctx context.Context) (events []string, err error) {
	s.t.Helper()
	body := strings.NewReader(`{"messages":[{"role":"user","content":"x"}],"max_tokens":5,"stream":true}`)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/chat/completions", body)
	require.NoError(s.t, err)
	response, err := s.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return events, err
		}
		if strings.HasPrefix(line, "data: ") {
			events = append(events, strings.TrimSpace(line))
		}
	}
}

func TestStreamDiesAfterTheGivenEvents(t *testing.T) {
	s := serve(t)
	for _, k := range []int{1, 3, 6} { // role, 5 tokens, [DONE]
		s.fault(Fault{DieAfterEvents: &k})
		events, err := s.stream(t.Context())
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Len(t, events, k)
	}
	events, err := s.stream(t.Context())
	require.NoError(t, err)
	require.Len(t, events, 7)
	require.Zero(t, s.Stats().Cancelled, "the client did not leave")
	require.Zero(t, s.Stats().Running)
}

func TestConnectionDiesBeforeTheHeaders(t *testing.T) {
	s := serve(t)
	s.fault(Fault{DieAfterEvents: new(0)})
	_, err := s.stream(t.Context())
	require.ErrorIs(t, err, io.EOF)
}

func TestResetIsATCPReset(t *testing.T) {
	s := serve(t)
	s.fault(Fault{Reset: true})
	_, err := s.stream(t.Context())
	require.ErrorIs(t, err, syscall.ECONNRESET)

	s.fault(Fault{Reset: true, DieAfterEvents: new(2)})
	events, err := s.stream(t.Context())
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.LessOrEqual(t, len(events), 2, "a reset may overtake what was sent before")
}

func TestStalledStreamIsSilentUntilTheClientLeaves(t *testing.T) {
	s := serve(t)
	s.fault(Fault{StallAfterEvents: new(2)})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.stream(ctx)
		ended <- err
	}()
	require.Eventually(t, func() bool { return s.Stats().GenerationTokens == 2 }, 5*time.Second, time.Millisecond)
	require.EqualValues(t, 1, s.Stats().Open)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Eventually(t, func() bool { return s.Stats().Cancelled == 1 && s.Stats().Running == 0 }, 5*time.Second, time.Millisecond)
}

func TestStalledStreamEndsWithTheEngine(t *testing.T) {
	s := serve(t)
	s.fault(Fault{StallAfterEvents: new(2)})
	ended := make(chan error, 1)
	go func() {
		_, err := s.stream(t.Context())
		ended <- err
	}()
	require.Eventually(t, func() bool { return s.Stats().GenerationTokens == 2 }, 5*time.Second, time.Millisecond)
	s.Restart()
	require.ErrorIs(t, <-ended, io.ErrUnexpectedEOF)
}

func TestFaultAnswersWithItsStatusForAsManyRequestsAsItSays(t *testing.T) {
	s := instantServer(t)
	require.Equal(t, 200, post(s, "/sim/faults", `{"status":503,"retry_after":7,"count":2}`).Code)
	for range 2 {
		w := post(s, "/v1/completions", `{"prompt":"x"}`)
		require.Equal(t, 503, w.Code)
		require.Equal(t, "7", w.Header().Get("Retry-After"))
		require.Contains(t, w.Body.String(), `"code":503`)
	}
	require.Equal(t, 200, post(s, "/v1/completions", `{"prompt":"x"}`).Code)
	require.JSONEq(t, `[]`, strings.Replace(do(s, "GET", "/sim/faults", "").Body.String(), "null", "[]", 1))
	require.EqualValues(t, 3, s.Stats().Received)
}

func TestFaultForOnePageLeavesOthersAlone(t *testing.T) {
	s := instantServer(t)
	require.Equal(t, 200, post(s, "/sim/faults", `{"path":"/health","status":503,"count":-1}`).Code)
	for range 3 {
		require.Equal(t, 503, do(s, "GET", "/health", "").Code)
		require.Equal(t, 200, post(s, "/v1/completions", `{"prompt":"x"}`).Code)
	}
	require.Equal(t, http.StatusNoContent, do(s, "DELETE", "/sim/faults", "").Code)
	require.Equal(t, 200, do(s, "GET", "/health", "").Code)

	require.NoError(t, s.faults.add(Fault{Path: "/health", DieAfterEvents: new(0)}))
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { do(s, "GET", "/health", "") })
}

func TestDelayComesBeforeTheFirstToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := instantServer(t)
		for _, test := range []struct {
			method, path, body string
			flushed            []time.Duration
		}{
			{"POST", "/v1/completions", `{"prompt":"x","max_tokens":1,"stream":true}`, []time.Duration{0, 50 * ms, 50 * ms}},
			{"POST", "/v1/completions", `{"prompt":"x","max_tokens":1}`, nil},
			{"GET", "/health", ``, nil},
		} {
			require.NoError(t, s.faults.add(Fault{Path: test.path, DelayMS: 50}))
			w := &watched{ResponseRecorder: httptest.NewRecorder(), start: time.Now()}
			s.ServeHTTP(w, httptest.NewRequest(test.method, test.path, strings.NewReader(test.body)))
			require.Equal(t, 50*ms, time.Since(w.start))
			require.Equal(t, test.flushed, w.flushed)
			require.Equal(t, 200, w.Code)
		}
	})
}

func TestClientMayLeaveDuringADelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := instantServer(t)
		for i, f := range []Fault{{DelayMS: 1000}, {DelayMS: 1000, Status: 500}, {DelayMS: 1000, DieAfterEvents: new(0)}} {
			require.NoError(t, s.faults.add(f))
			ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
			start := time.Now()
			s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", strings.NewReader(`{"prompt":"x"}`)))
			cancel()
			require.Equal(t, 10*ms, time.Since(start))
			require.EqualValues(t, i+1, s.Stats().Cancelled)
		}
	})
}

func TestAnswerInOnePieceDiesAfterTheGivenTokens(t *testing.T) {
	s := instantServer(t)
	require.NoError(t, s.faults.add(Fault{DieAfterEvents: new(2)}))
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { post(s, "/v1/completions", `{"prompt":"x"}`) })
	require.Equal(t, 3, s.Stats().GenerationTokens)
	require.Zero(t, s.Stats().Running)
}

func TestFaultsAreBounded(t *testing.T) {
	s := instantServer(t)
	for range maxFaults {
		require.NoError(t, s.faults.add(Fault{Status: 500}))
	}
	require.ErrorIs(t, s.faults.add(Fault{Status: 500}), errTooManyFaults)
	require.Equal(t, 400, post(s, "/sim/faults", `{"status":500}`).Code)
	post(s, "/v1/completions", `{"prompt":"x"}`)
	require.NoError(t, s.faults.add(Fault{Status: 500}))
}

func TestWrongFaultsAreRefused(t *testing.T) {
	s := instantServer(t)
	for _, body := range []string{
		``, `{`, `[]`, `{"unknown":1}`, `{"count":-2}`, `{"delay_ms":-1}`, `{"status":200}`, `{"status":600}`,
		`{"retry_after":-1}`, `{"retry_after":1}`, `{"die_after_events":-1}`, `{"stall_after_events":-1}`,
	} {
		require.Equal(t, 400, post(s, "/sim/faults", body).Code, body)
	}
	require.Empty(t, s.faults.all())
}

func TestStatsShowTheLastBodyByItsHash(t *testing.T) {
	s := instantServer(t)
	post(s, "/v1/completions", `{"prompt":"x"}`)
	var stats Stats
	require.NoError(t, json.Unmarshal(do(s, "GET", "/sim/stats", "").Body.Bytes(), &stats))
	require.Equal(t, s.Stats(), stats)
	require.Equal(t, 14, stats.LastBodyBytes)
	require.Equal(t, fmt.Sprintf("%x", sha256Of(`{"prompt":"x"}`)), stats.LastBodySHA256)
}

// TestAFieldThatThereIsNotIsAnsweredWithThoseThereAre asks all pages that are sent any.
func TestAFieldThatThereIsNotIsAnsweredWithThoseThereAre(t *testing.T) {
	s := instantServer(t)
	for page, names := range map[string]string{
		"/sim/faults": "path, count, delay_ms, status, retry_after, die_after_events, reset, stall_after_events",
		"/sim/events": "rank, drop, restart, shape",
	} {
		answer := post(s, page, `{"hang":true}`)
		require.Equal(t, http.StatusBadRequest, answer.Code)
		require.Contains(t, answer.Body.String(), "hang")
		require.Contains(t, answer.Body.String(), "there are "+names)
	}
}
