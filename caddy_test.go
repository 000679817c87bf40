package inference

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/standard"
	_ "github.com/caddyserver/caddy/v2/modules/logging"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// What tests wait for comes at once; patience is for machines that are busy.
const (
	patience = 10 * time.Second
	tick     = 2 * time.Millisecond
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Caddy's own, one for the process: it ends with it.
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"),
		goleak.IgnoreAnyFunction("github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy.(*Upstream).fillDynamicHost.func1.1"),
	)
}

// overPolicies runs a test with each policy, for what they have in common.
func overPolicies(t *testing.T, test func(t *testing.T, policy string)) {
	for _, policy := range []string{"cache_aware", "prefix_hash", "kv_aware"} {
		t.Run(policy, func(t *testing.T) { test(t, policy) })
	}
}

// mockEngine is a stand-in for an inference engine: it notes what it is sent and
// answers as the test wants.
type mockEngine struct {
	*httptest.Server
	t *testing.T

	metrics atomic.Value // the page, a string

	mu       sync.Mutex
	requests []received
	open     int
	respond  http.HandlerFunc // nil: answer
	tell     http.HandlerFunc // what the plugin asks, but the metrics; nil: nothing
}

// received is one request as an engine got it.
type received struct {
	path   string
	header http.Header
	length int64
	body   []byte
}

func newEngine(t *testing.T) *mockEngine {
	e := &mockEngine{t: t}
	e.metrics.Store("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"32768\"} 1.0\n")
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Close)
	return e
}

func newEngines(t *testing.T, n int) []*mockEngine {
	engines := make([]*mockEngine, n)
	for i := range engines {
		engines[i] = newEngine(t)
	}
	return engines
}

func (e *mockEngine) address() string { return e.Listener.Addr().String() }

func (e *mockEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/metrics" {
		page, _ := e.metrics.Load().(string)
		fmt.Fprint(w, page)
		return
	}
	if r.UserAgent() == "caddy-inference" {
		e.asked(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	e.mu.Lock()
	e.requests = append(e.requests, received{r.URL.Path, r.Header.Clone(), r.ContentLength, body})
	e.open++
	respond := e.respond
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.open--
		e.mu.Unlock()
	}()
	if respond == nil {
		respond = answer
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	respond(w, r)
}

// asked answers a question of the plugin's own. It is not among the requests.
func (e *mockEngine) asked(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	tell := e.tell
	e.mu.Unlock()
	if tell == nil {
		tell = http.NotFound
	}
	tell(w, r)
}

// tellWith sets what the engine tells the plugin from now on.
func (e *mockEngine) tellWith(f http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tell = f
}

// answer answers a chat with one word and counts as an engine would, had it
// nothing in its cache.
func answer(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":1,"total_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}`, len(body)/4)
	if !bytes.Contains(body, []byte(`"stream":true`)) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"choices":[{"message":{"role":"assistant","content":"yes"}}],"usage":%s}`, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, event := range []string{`{"choices":[{"delta":{"content":"yes"}}]}`, `{"choices":[],"usage":` + usage + `}`, `[DONE]`} {
		fmt.Fprintf(w, "data: %s\n\n", event)
		w.(http.Flusher).Flush()
	}
}

// respondWith sets how the engine answers from now on.
func (e *mockEngine) respondWith(f http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.respond = f
}

func (e *mockEngine) received() []received {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]received(nil), e.requests...)
}

func (e *mockEngine) openRequests() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.open
}

// patient sends a request again whose connection was not served: the listener of a
// config that ends may take one with it.
type patient struct{ *http.Transport }

func (p patient) RoundTrip(r *http.Request) (response *http.Response, err error) {
	for range 5 {
		response, err = p.Transport.RoundTrip(r)
		if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) || r.Body != nil && r.GetBody == nil {
			break
		}
		if r.GetBody != nil {
			r = r.Clone(r.Context())
			r.Body, _ = r.GetBody()
		}
	}
	return response, err
}

// site is a running Caddy with one site in front of engines.
type site struct {
	t      *testing.T
	url    string
	client *http.Client
	logs   *syncBuffer
	log    string // by which the access log finds logs
}

// sites counts the sites made, as two may come to have the same address.
var sites atomic.Int64

// startSite runs Caddy with the lines of a reverse_proxy block in front of the
// addresses, and ends it with the test.
func startSite(t *testing.T, block string, addresses ...string) *site {
	t.Helper()
	s := newSite(t)
	s.load(s.caddyfile(block, addresses...))
	return s
}

func newSite(t *testing.T) *site {
	s := &site{t: t, url: "http://" + freeAddress(t), logs: new(syncBuffer), log: fmt.Sprint(sites.Add(1))}
	transport := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	s.client = &http.Client{Transport: patient{transport}, Timeout: 30 * time.Second}
	accessLogs.Store(s.log, s.logs)
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		require.NoError(t, caddy.Stop())
		accessLogs.Delete(s.log)
	})
	return s
}

func (s *site) caddyfile(block string, addresses ...string) string {
	return s.caddyfileWith("", block, addresses...)
}

func (s *site) caddyfileWith(global, block string, addresses ...string) string {
	return fmt.Sprintf(`{
		admin off
		auto_https off
		persist_config off
		log default {
			output discard
		}
		servers {
			protocols h1 h2c
		}
		%s
	}
	%s {
		bind 127.0.0.1
		log {
			output inference_test %s
			format json
		}
		reverse_proxy %s {
			%s
		}
	}`, global, s.url, s.log, strings.Join(addresses, " "), block)
}

func (s *site) load(caddyfile string) {
	s.t.Helper()
	require.NoError(s.t, loadCaddyfile(caddyfile))
	s.client.CloseIdleConnections() // the server of the config before is closing them too
}

func loadCaddyfile(text string) error {
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), nil)
	if err != nil {
		return err
	}
	return caddy.Load(config, true)
}

// post sends a body to a path and returns the whole answer.
func (s *site) post(path string, body string) (status int, answer string) {
	s.t.Helper()
	response, err := s.client.Post(s.url+path, "application/json", strings.NewReader(body))
	require.NoError(s.t, err)
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	require.NoError(s.t, err)
	return response.StatusCode, string(b)
}

// chat sends a chat and requires that it is answered.
func (s *site) chat(body string) {
	s.t.Helper()
	status, text := s.post("/v1/chat/completions", body)
	require.Equal(s.t, http.StatusOK, status, text)
}

// decisions returns the inference fields of the access log so far.
func (s *site) decisions() []map[string]any {
	s.t.Helper()
	var list []map[string]any
	for line := range strings.Lines(s.logs.String()) {
		var entry struct {
			Inference map[string]any `json:"inference"`
		}
		require.NoError(s.t, json.Unmarshal([]byte(line), &entry))
		list = append(list, entry.Inference)
	}
	return list
}

// lastDecision waits for n decisions to be logged and returns the last one: the
// log is written after the client has its answer.
func (s *site) lastDecision(n int) map[string]any {
	s.t.Helper()
	var list []map[string]any
	require.Eventually(s.t, func() bool { list = s.decisions(); return len(list) >= n }, patience, tick)
	return list[n-1]
}

// theState returns the process's state, which some config must be using.
func theState(t *testing.T) *state {
	t.Helper()
	s, err := loadState()
	require.NoError(t, err)
	require.NoError(t, releaseState())
	return s
}

// requireIdle waits until no request is in flight in anybody's books.
func requireIdle(t *testing.T) {
	t.Helper()
	s := theState(t)
	require.EventuallyWithT(t, func(c *assertT) {
		for _, w := range s.members() {
			require.Zero(c, w.Load().InFlight(), "requests in flight on %s", w.Address())
			require.Zero(c, w.Load().Queued(), "queued tokens on %s", w.Address())
			require.Zero(c, w.Decoding(), "requests decoding on %s", w.Address())
		}
		require.Zero(c, s.buffered.used.Load(), "bytes of bodies held")
	}, patience, tick)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func addresses(engines []*mockEngine) []string {
	list := make([]string, len(engines))
	for i, e := range engines {
		list[i] = e.address()
	}
	return list
}

func requireNoAllocations(t *testing.T, runs int, f func()) {
	t.Helper()
	requireAllocations(t, 0, runs, f)
}

// requireAllocations runs f some times. What is left of other tests may allocate in the
// background meanwhile, so one try of several with no more than most each is enough.
func requireAllocations(t *testing.T, most float64, runs int, f func()) {
	t.Helper()
	least := math.Inf(1)
	for range 5 {
		least = min(least, testing.AllocsPerRun(runs, f))
		if least <= most {
			return
		}
	}
	require.LessOrEqual(t, least, most)
}

func hash(body []byte) string { return fmt.Sprintf("%x", sha256.Sum256(body)) }

func newRequest(t *testing.T, url string, body io.Reader) *http.Request {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	return request
}
