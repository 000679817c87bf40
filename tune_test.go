package inference

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/stretchr/testify/require"
)

// proxies returns every reverse_proxy of the running config.
func proxies(t *testing.T) []*reverseproxy.Handler {
	t.Helper()
	app, err := caddy.ActiveContext().App("http")
	require.NoError(t, err)
	var list []*reverseproxy.Handler
	var visit func(routes caddyhttp.RouteList)
	visit = func(routes caddyhttp.RouteList) {
		for _, route := range routes {
			for _, handler := range route.Handlers {
				switch h := handler.(type) {
				case *caddyhttp.Subroute:
					visit(h.Routes)
					if h.Errors != nil {
						visit(h.Errors.Routes)
					}
				case *reverseproxy.Handler:
					list = append(list, h)
				}
			}
		}
	}
	for _, server := range app.(*caddyhttp.App).Servers {
		visit(server.Routes)
		if server.Errors != nil {
			visit(server.Errors.Routes)
		}
	}
	return list
}

// TestCaddyProvisionsAReverseProxyInTheOrderWeRelyOn fails when another version of
// Caddy sets up a reverse_proxy in another order. What is said then is where to look.
func TestCaddyProvisionsAReverseProxyInTheOrderWeRelyOn(t *testing.T) {
	for name, transportBlock := range map[string]string{
		"default transport":    "",
		"configured transport": "transport http {\ndial_timeout 2s\n}",
	} {
		t.Run(name, func(t *testing.T) {
			engine := newEngine(t)
			s := startSite(t, "lb_policy cache_aware\n"+transportBlock, freeAddress(t), engine.address())
			h := proxies(t)[0]
			require.IsType(t, new(transport), h.Transport,
				"watch put its transport into the reverse_proxy, and Handler.Provision another one over it: it used to load the configured transport before the selection policy, and to make the default one after it")
			inner := watched(h)
			if transportBlock != "" {
				require.EqualValues(t, 2*time.Second, inner.DialTimeout, "watch found no configured transport and made one: it used to be loaded before the selection policy")
			}
			require.Equal(t, keepAlive, inner.Transport.IdleConnTimeout,
				"tune sets http.Transport.IdleConnTimeout if it is Caddy's default: has HTTPTransport.NewTransport another one, or was it provisioned again?")
			require.Equal(t, idleConnections, inner.Transport.MaxIdleConnsPerHost,
				"tune sets http.Transport.MaxIdleConnsPerHost if it is Caddy's default: has HTTPTransport.NewTransport another one?")
			require.Equal(t, 1, h.LoadBalancing.Retries,
				"tune sets Retries of the reverse_proxy's LoadBalancing while its selection policy is provisioned: was it copied before, or are upstreams read later?")
			for range 4 {
				status, _ := s.post("/v1/chat/completions", chatOf(message("user", "hello")))
				require.Equal(t, http.StatusOK, status, "LoadBalancing.tryAgain used to read Retries at each request, and to try again after a DialError")
			}
		})
	}
	t.Run("conditions of retries", func(t *testing.T) {
		startSite(t, "lb_policy cache_aware\nlb_retry_match {\nmethod POST\n}", freeAddress(t), freeAddress(t))
		require.Zero(t, proxies(t)[0].LoadBalancing.Retries,
			"tune looks for LoadBalancing.RetryMatchRaw, which used to be loaded after the selection policy")
	})
	t.Run("dynamic upstreams", func(t *testing.T) {
		startSite(t, "lb_policy cache_aware\ndynamic a localhost 1")
		require.Equal(t, mostRetries, proxies(t)[0].LoadBalancing.Retries,
			"tune looks for DynamicUpstreamsRaw, which used to be loaded after the selection policy")
	})
}

// filledIn is what is logged of a reverse_proxy that something was filled in in.
type filledIn struct {
	Keepalive   string   `json:"keepalive"`
	IdleConns   int      `json:"keepalive_idle_conns_per_host"`
	WriteBuffer int      `json:"write_buffer"`
	Retries     int      `json:"lb_retries"`
	Upstreams   []string `json:"upstreams"`
	Message     string   `json:"msg"`
	Hint        string   `json:"hint"`
	Level       string   `json:"level"`
}

func (f filledIn) settings() settings {
	filled := settings{0, f.IdleConns, f.WriteBuffer, f.Retries}
	if f.Keepalive != "" {
		filled.keepAlive, _ = caddy.ParseDuration(f.Keepalive)
	}
	return filled
}

// loadLog loads a config and returns what is logged meanwhile.
func (s *site) loadLog(caddyfile string) string {
	s.t.Helper()
	name := fmt.Sprint("server ", sites.Add(1))
	logs := new(syncBuffer)
	accessLogs.Store(name, logs)
	defer accessLogs.Delete(name)
	s.load(strings.Replace(caddyfile, "output discard", "output inference_test \""+name+"\"\nformat json", 1))
	return logs.String()
}

// loadLogged loads a config and returns what it logs of what was filled in.
func (s *site) loadLogged(caddyfile string) []filledIn {
	s.t.Helper()
	var list []filledIn
	for line := range strings.Lines(s.loadLog(caddyfile)) {
		var entry filledIn
		require.NoError(s.t, json.Unmarshal([]byte(line), &entry))
		if entry.Message == "reverse_proxy tuned" {
			list = append(list, entry)
		}
	}
	return list
}

// settings are those that tune may fill in, as a reverse_proxy has them.
type settings struct {
	keepAlive   time.Duration
	idleConns   int
	writeBuffer int
	retries     int
}

func settingsOf(h *reverseproxy.Handler) settings {
	if t := watched(h); t != nil {
		return settings{t.Transport.IdleConnTimeout, t.Transport.MaxIdleConnsPerHost, t.Transport.WriteBufferSize, h.LoadBalancing.Retries}
	}
	return settings{retries: h.LoadBalancing.Retries}
}

func TestOnlyWhatIsUnsetIsFilledIn(t *testing.T) {
	all := settings{keepAlive, idleConnections, writeBuffer, 2}
	with := func(change func(*settings)) settings {
		s := all
		change(&s)
		return s
	}
	noRetries := with(func(s *settings) { s.retries = 0 })
	tests := []struct {
		name   string
		block  string
		scheme string
		count  int // of upstreams
		want   settings
		filled settings
	}{
		{name: "nothing is set", count: 3, want: all, filled: all},
		{name: "one upstream", count: 1, want: noRetries, filled: noRetries},
		{
			name: "many upstreams", count: 20,
			want:   with(func(s *settings) { s.retries = 5 }),
			filled: with(func(s *settings) { s.retries = 5 }),
		},
		{
			name: "dynamic upstreams", block: "dynamic a localhost 1",
			want:   with(func(s *settings) { s.retries = 5 }),
			filled: with(func(s *settings) { s.retries = 5 }),
		},
		{
			name: "retries", block: "lb_retries 1", count: 3,
			want: with(func(s *settings) { s.retries = 1 }), filled: noRetries,
		},
		{name: "how long to try", block: "lb_try_duration 1s", count: 3, want: noRetries, filled: noRetries},
		{name: "when to try again", block: "lb_retry_match {\nmethod POST\n}", count: 3, want: noRetries, filled: noRetries},
		{name: "health checks", block: "fail_duration 3s\nmax_fails 2\nhealth_uri /health", count: 3, want: all, filled: all},
		{
			name: "keepalive", block: "transport http {\nkeepalive 30s\n}", count: 3,
			want:   with(func(s *settings) { s.keepAlive = 30 * time.Second }),
			filled: with(func(s *settings) { s.keepAlive = 0 }),
		},
		{
			name: "Caddy's own values", count: 3, want: all, filled: all,
			block: "lb_retries 0\ntransport http {\nkeepalive 2m\nkeepalive_idle_conns_per_host 32\n}",
		},
		{
			name: "no keepalive", block: "transport http {\nkeepalive off\n}", count: 3,
			want:   with(func(s *settings) { s.keepAlive, s.idleConns = caddysKeepAlive, caddysIdleConnections }),
			filled: with(func(s *settings) { s.keepAlive, s.idleConns = 0, 0 }),
		},
		{
			name: "connections and buffer", block: "transport http {\nkeepalive_idle_conns_per_host 7\nwrite_buffer 8KiB\n}", count: 3,
			want:   with(func(s *settings) { s.idleConns, s.writeBuffer = 7, 8<<10 }),
			filled: with(func(s *settings) { s.idleConns, s.writeBuffer = 0, 0 }),
		},
		{name: "TLS", scheme: "https://", count: 3, want: all, filled: all},
		{name: "HTTP/2 without TLS", scheme: "h2c://", count: 3, want: all, filled: all},
		{
			name: "HTTP/3", block: "transport http {\ntls\nversions 3\n}", count: 3,
			want: settings{caddysKeepAlive, caddysIdleConnections, 0, 2}, filled: settings{retries: 2},
		},
		{name: "another protocol", block: "transport fastcgi", count: 3, want: settings{retries: 2}, filled: settings{retries: 2}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var upstreams, dials []string
			for range test.count {
				dials = append(dials, freeAddress(t))
				upstreams = append(upstreams, test.scheme+dials[len(dials)-1])
			}
			s := newSite(t)
			said := s.loadLogged(s.caddyfile("lb_policy cache_aware\n"+test.block, upstreams...))
			require.Equal(t, test.want, settingsOf(proxies(t)[0]))
			require.Len(t, said, 1)
			require.Equal(t, test.filled, said[0].settings())
			require.Equal(t, "info", said[0].Level)
			require.Contains(t, said[0].Hint, "tune off")
			require.Contains(t, said[0].Hint, "another value than Caddy's default")
			require.ElementsMatch(t, dials, said[0].Upstreams)
		})
	}
}

func TestTuneOffLeavesTheReverseProxyAsItIsWritten(t *testing.T) {
	engine := newEngine(t)
	s := newSite(t)
	require.Empty(t, s.loadLogged(s.caddyfile("lb_policy cache_aware {\ntune off\n}", freeAddress(t), engine.address())))
	require.Equal(t, settings{caddysKeepAlive, caddysIdleConnections, 0, 0}, settingsOf(proxies(t)[0]))
	statuses := make(map[int]int)
	for range 4 {
		status, _ := s.post("/v1/chat/completions", chatOf(message("user", "hello")))
		statuses[status]++
	}
	require.Positive(t, statuses[http.StatusBadGateway], "as Caddy answers without retries")
}

// TestEachReverseProxyIsTunedOnce has the policy in several places of several configs.
func TestEachReverseProxyIsTunedOnce(t *testing.T) {
	engines := newEngines(t, 2)
	s := newSite(t)
	config := s.caddyfile("lb_policy cache_aware", addresses(engines)...)
	list := strings.Join(addresses(engines), " ")
	config = config[:len(config)-2] + `
		handle_errors {
			reverse_proxy ` + list + ` {
				lb_policy header X-User {
					fallback cache_aware
				}
			}
		}
		handle /left {
			reverse_proxy ` + list + ` {
				lb_policy cache_aware {
					tune off
				}
			}
		}
		handle /others {
			reverse_proxy ` + list + `
		}
	}`
	for range 2 { // the second time it is a reload
		require.Len(t, s.loadLogged(config), 2)
		var tuned, left int
		for _, h := range proxies(t) {
			switch settingsOf(h) {
			case settings{keepAlive, idleConnections, writeBuffer, 1}:
				tuned++
				require.Empty(t, tune(h), "there is nothing left to do")
			default:
				left++
				require.Zero(t, h.LoadBalancing.Retries)
			}
		}
		require.Equal(t, []int{2, 2}, []int{tuned, left})
	}
	s.chat(chatOf(message("user", "hello")))
}

// idleLimit is when the stand-in for an engine closes an idle connection, as uvicorn
// does, which vLLM and SGLang are served by.
const idleLimit = 5 * time.Second

// pipes is a network without a kernel, which fake time passes for. It counts who closes
// its connections first.
type pipes struct {
	conns  chan net.Conn
	config *tls.Config // of the engine's end; nil without TLS
	closed chan struct{}

	dialed, byUs, byEngine atomic.Int32
}

func newPipes(config *tls.Config) *pipes {
	return &pipes{conns: make(chan net.Conn), config: config, closed: make(chan struct{})}
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	p.dialed.Add(1)
	ours, theirs := net.Pipe()
	if p.config != nil {
		theirs = tls.Server(theirs, p.config)
	}
	select {
	case p.conns <- &pipe{Conn: theirs, of: p}:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 8000} }

// pipe is the engine's end of a connection.
type pipe struct {
	net.Conn
	of    *pipes
	ended sync.Once
}

func (c *pipe) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == io.EOF { //nolint:errorlint // as a net.Conn returns it
		c.ended.Do(func() { c.of.byUs.Add(1) })
	}
	return n, err
}

func (c *pipe) Close() error {
	c.ended.Do(func() { c.of.byEngine.Add(1) })
	return c.Conn.Close()
}

// TestOurSideClosesIdleConnectionsBeforeTheEngine sends requests as long after each
// other as an engine keeps connections, give or take, in fake time.
func TestOurSideClosesIdleConnectionsBeforeTheEngine(t *testing.T) {
	authority := httptest.NewTLSServer(nil)
	defer authority.Close()
	h1, h2c := new(http.Protocols), new(http.Protocols)
	h1.SetHTTP1(true)
	h2c.SetUnencryptedHTTP2(true)
	for name, over := range map[string]idling{
		"HTTP/1.1":           {protocols: h1, scheme: "http"},
		"HTTP/2 without TLS": {configured: reverseproxy.HTTPTransport{Versions: []string{"h2c", "2"}}, protocols: h2c, scheme: "http"},
		"TLS": {
			configured: reverseproxy.HTTPTransport{TLS: &reverseproxy.TLSConfig{InsecureSkipVerify: true}},
			protocols:  h1, scheme: "https",
			config: &tls.Config{Certificates: authority.TLS.Certificates, MinVersion: tls.VersionTLS12},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := over.post(t, func(h *reverseproxy.Handler) { tune(h) })
				require.Zero(t, p.byEngine.Load(), "connections that the engine closed")
				require.Equal(t, p.dialed.Load(), p.byUs.Load(), "connections that we closed")
			})
			synctest.Test(t, func(t *testing.T) {
				p := over.post(t, func(*reverseproxy.Handler) {})
				require.Less(t, p.byUs.Load(), p.dialed.Load(), "as Caddy has it, connections stay open")
			})
		})
	}
}

// idling is a way to an engine that closes connections at the limit.
type idling struct {
	configured reverseproxy.HTTPTransport
	scheme     string
	protocols  *http.Protocols // of the engine
	config     *tls.Config     // of the engine
}

// post posts from fifty clients, six times each, about as often as the engine closes
// connections, then once more, and looks who has closed them shortly before the limit.
func (i idling) post(t *testing.T, prepare func(*reverseproxy.Handler)) *pipes {
	p := newPipes(i.config)
	engine := &http.Server{Handler: http.HandlerFunc(answer), IdleTimeout: idleLimit, ReadHeaderTimeout: time.Minute, Protocols: i.protocols}
	go func() { _ = engine.Serve(p) }()
	t.Cleanup(func() { engine.Close() })
	ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
	t.Cleanup(cancel)
	require.NoError(t, i.configured.Provision(ctx))
	i.configured.Transport.DialContext = p.dial
	prepare(&reverseproxy.Handler{Transport: &transport{&i.configured}})

	var clients sync.WaitGroup
	var failed atomic.Int32
	for client := range 50 {
		random := rand.New(rand.NewPCG(uint64(client), 17))
		clients.Go(func() {
			for range 6 {
				if post(&i.configured, i.scheme) != nil {
					failed.Add(1)
				}
				time.Sleep(idleLimit + time.Duration(random.IntN(40_000)-20_000)*time.Microsecond)
			}
		})
	}
	clients.Wait()
	require.Zero(t, failed.Load())
	require.NoError(t, post(&i.configured, i.scheme))
	time.Sleep(idleLimit - 500*time.Millisecond)
	synctest.Wait()
	t.Cleanup(func() { require.NoError(t, i.configured.Cleanup()) })
	return p
}

// post posts a chat and reads the answer.
func post(over http.RoundTripper, scheme string) error {
	r, err := http.NewRequest(http.MethodPost, scheme+"://engine:8000/v1/chat/completions", strings.NewReader(chatOf(""))) //nolint:noctx // as long as it takes
	if err != nil {
		return err
	}
	response, err := over.RoundTrip(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, response.Body)
	return errors.Join(err, response.Body.Close())
}

// TestTheDocsTellEveryValueThatIsFilledIn compares the table with the constants.
func TestTheDocsTellEveryValueThatIsFilledIn(t *testing.T) {
	text, err := os.ReadFile("docs/tuning.md")
	require.NoError(t, err)
	for option, value := range map[string]string{
		"keepalive":                     keepAlive.String(),
		"keepalive_idle_conns_per_host": strconv.Itoa(idleConnections),
		"write_buffer":                  strconv.Itoa(writeBuffer>>10) + "KiB",
		"lb_retries":                    "at most " + strconv.Itoa(mostRetries),
	} {
		require.Regexp(t, "(?m)^\\| `"+option+"` \\|.*"+value, string(text))
	}
}

// TestTheDocsSetWhatIsFilledIn loads the Caddyfile that sets by hand what tune would, and
// compares it with the JSON beside it.
func TestTheDocsSetWhatIsFilledIn(t *testing.T) {
	text, err := os.ReadFile("docs/tuning.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "<table>")
	require.True(t, found)
	blocks := regexp.MustCompile("(?s)```(?:json)?\n(.*?)```").FindAllStringSubmatch(rest, -1)
	require.Len(t, blocks, 2)
	caddyfile, beside := blocks[0][1], blocks[1][1]

	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), nil)
	require.NoError(t, err)
	var config struct {
		Apps struct {
			HTTP struct {
				Servers map[string]struct {
					Routes []struct {
						Handle []json.RawMessage `json:"handle"`
					} `json:"routes"`
				} `json:"servers"`
			} `json:"http"`
		} `json:"apps"`
	}
	require.NoError(t, json.Unmarshal(adapted, &config))
	require.JSONEq(t, string(config.Apps.HTTP.Servers["srv0"].Routes[0].Handle[0]), beside)

	caddyfile = strings.TrimSuffix(strings.TrimPrefix(caddyfile, ":8080 {\n\treverse_proxy vllm-1:8000 vllm-2:8000 vllm-3:8000 {\n"), "\t}\n}\n")
	written := newSite(t)
	require.Empty(t, written.loadLogged(written.caddyfile(caddyfile, freeAddress(t), freeAddress(t), freeAddress(t))))
	require.Equal(t, settings{keepAlive, idleConnections, writeBuffer, 2}, settingsOf(proxies(t)[0]))
}
