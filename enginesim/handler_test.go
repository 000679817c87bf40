package enginesim

import (
	"encoding/json"
	jsonv2 "encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/standard"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// TestMain checks that no test of the package leaves a goroutine behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		err := goleak.Find(
			// Caddy's storage refreshes its locks in the background, every 5 seconds.
			goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"),
		)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func TestCaddyfileBecomesJSON(t *testing.T) {
	for _, test := range []struct{ caddyfile, want string }{
		{`inference_sim`, `{}`},
		{"inference_sim {\nevents\nname a\n}", `{"events":{},"name":"a"}`},
		{"inference_sim {\nevents {\n}\nname a\n}", `{"events":{},"name":"a"}`},
		{`inference_sim {
			name                  a
			model                 one two
			model                 three
			capacity              65_536
			block_size            32
			max_model_len         4096
			prefill_rate          0
			decode_base           5ms
			decode_per_running    0s
			speed                 2.5
			stream_interval       16
			prompt_tokens_details off
			ranks                 2
			events {
				shape        sglang
				endpoint     tcp://*:5600
				replay       tcp://*:5700
				topic        kv
				buffer_steps 1_000
				hashes       int
			}
		}`, `{"name":"a","models":["one","two","three"],"ranks":2,"events":{"shape":"sglang","endpoint":"tcp://*:5600","replay":"tcp://*:5700","topic":"kv","buffer_steps":1000,"hashes":"int"},"capacity":65536,"block_size":32,"max_model_len":4096,"prefill_rate":0,
			"decode_base":5000000,"decode_per_running":0,"speed":2.5,"stream_interval":16,"prompt_tokens_details":false}`},
	} {
		h := new(Handler)
		require.NoError(t, h.UnmarshalCaddyfile(caddyfile.NewTestDispenser(test.caddyfile)))
		got, err := json.Marshal(h)
		require.NoError(t, err)
		require.JSONEq(t, test.want, string(got))
	}
}

func TestWrongCaddyfilesAreRefusedWithTheReason(t *testing.T) {
	for option, want := range map[string]string{
		"name":                        "wrong argument count",
		"name a b":                    "wrong argument count",
		"model":                       "wrong argument count",
		"capacity many":               `capacity: "many" is not a number of tokens`,
		"capacity -5":                 "is not a number of tokens",
		"block_size 0":                "is not a number of tokens",
		"max_model_len 1.5":           "is not a number of tokens",
		"prefill_rate fast":           `prefill_rate: "fast" is not a number`,
		"decode_base 6":               `decode_base: "6" is not a duration`,
		"decode_per_running x":        "is not a duration",
		"speed 0":                     "0 would stop time",
		"stream_interval 0":           "is not a number of tokens",
		"stream_interval 1 2":         "wrong argument count",
		"prompt_tokens_details yes":   "neither on nor off",
		"color red":                   "color: unrecognized option",
		"ranks 0":                     "ranks: \"0\" is not a number, 1 or more",
		"events vllm":                 "events: unrecognized option",
		"events {\ntopic\n}":          "wrong argument count",
		"events {\nbuffer_steps x\n}": "events: buffer_steps: \"x\" is not a number, 1 or more",
		"events {\nblock_size 16\n}":  "events: block_size: unrecognized option",
	} {
		err := new(Handler).UnmarshalCaddyfile(caddyfile.NewTestDispenser("inference_sim {\n" + option + "\n}"))
		require.ErrorContains(t, err, want, option)
	}
	require.Error(t, new(Handler).UnmarshalCaddyfile(caddyfile.NewTestDispenser("inference_sim extra")))
}

func TestWrongSettingsAreRefusedWithTheReason(t *testing.T) {
	for config, want := range map[string]string{
		`{"models":[""]}`:                       "model 1 has an empty name",
		`{"block_size":-1}`:                     "block_size is -1",
		`{"capacity":8}`:                        "less than one block of 16",
		`{"capacity":268435457,"block_size":1}`: "the most is 16777216",
		`{"capacity":100,"max_model_len":97}`:   "between 1 and the 96 tokens",
		`{"max_model_len":-1}`:                  "max_model_len is -1",
		`{"prefill_rate":-1}`:                   "prefill_rate is -1",
		`{"decode_base":-1}`:                    "must not be negative",
		`{"speed":-1}`:                          "speed is -1",
		`{"stream_interval":-1}`:                "stream_interval is -1",
		`{"ranks":-1}`:                          "ranks is -1",
	} {
		h := new(Handler)
		require.NoError(t, json.Unmarshal([]byte(config), h))
		require.NoError(t, h.Provision(caddy.Context{}))
		require.ErrorContains(t, h.Validate(), want, config)
		require.NoError(t, h.Cleanup())
	}
}

func TestDefaultsAreThoseOfTheDocs(t *testing.T) {
	h := new(Handler)
	require.NoError(t, h.Provision(caddy.Context{}))
	require.NoError(t, h.Validate())
	require.Equal(t, DefaultOptions(), h.options())
	require.NoError(t, h.Cleanup())

	small := &Handler{Capacity: 100}
	require.NoError(t, small.Provision(caddy.Context{}))
	require.NoError(t, small.Validate())
	require.Equal(t, 96, small.MaxModelLen, "what fits into the cache")
	require.NoError(t, small.Cleanup())
	require.NoError(t, small.Cleanup(), "twice does no harm")
}

func TestStateLivesAsLongAsAConfigHasTheSettings(t *testing.T) {
	provision := func(h Handler) *Handler {
		require.NoError(t, h.Provision(caddy.Context{}))
		return &h
	}
	first, again := provision(Handler{Name: "a"}), provision(Handler{Name: "a"})
	other, faster := provision(Handler{Name: "b"}), provision(Handler{Name: "a", Speed: 2})
	require.Same(t, first.server, again.server)
	require.NotSame(t, first.server, other.server)
	require.NotSame(t, first.server, faster.server)

	server := first.server
	require.NoError(t, first.Cleanup())
	third := provision(Handler{Name: "a"})
	require.Same(t, server, third.server, "one config had it all along")
	require.NoError(t, again.Cleanup())
	require.NoError(t, third.Cleanup())
	fourth := provision(Handler{Name: "a"})
	require.NotSame(t, server, fourth.server, "no config had it")
	for _, h := range []*Handler{other, faster, fourth} {
		require.NoError(t, h.Cleanup())
	}
	engines.Range(func(key, _ any) bool {
		require.Fail(t, "an engine is left", key)
		return true
	})
}

// site is a running Caddy with two engines.
type site struct {
	t      *testing.T
	urls   [2]string
	client *http.Client
}

const siteConfig = `{
	admin off
	persist_config off
	auto_https off
	log default {
		output discard
	}
}
http://%s {
	inference_sim {
		prefill_rate 0
		%s
	}
}
http://%s {
	inference_sim {
		prefill_rate 0
	}
}`

// freeAddress returns an address of this machine that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", freePort(t))
}

func startSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, urls: [2]string{freeAddress(t), freeAddress(t)}}
	s.client = &http.Client{Transport: patient{&http.Transport{DisableKeepAlives: true}}}
	s.load("")
	t.Cleanup(func() { require.NoError(t, caddy.Stop()) })
	return s
}

// load loads the config, with one more line for the first engine.
func (s *site) load(line string) {
	s.t.Helper()
	adapted, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(fmt.Appendf(nil, siteConfig, s.urls[0], line, s.urls[1]), nil)
	require.NoError(s.t, err)
	require.NotNil(s.t, adapted)
	for _, warning := range warnings {
		require.Contains(s.t, warning.Message, "not formatted")
	}
	require.NoError(s.t, caddy.Load(adapted, true))
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

func (s *site) call(engine int, method, path, body string) (int, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, "http://"+s.urls[engine]+path, strings.NewReader(body))
	require.NoError(s.t, err)
	response, err := s.client.Do(r)
	require.NoError(s.t, err)
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	require.NoError(s.t, err)
	return response.StatusCode, string(answer)
}

// cached asks an engine for an answer and returns its cached_tokens.
func (s *site) cached(engine int) int {
	s.t.Helper()
	status, body := s.call(engine, "POST", "/v1/completions", fmt.Sprintf(`{"prompt":%q}`, english))
	require.Equal(s.t, 200, status)
	var answer whole
	require.NoError(s.t, jsonv2.Unmarshal([]byte(body), &answer, loose))
	return answer.Usage.PromptDetails.CachedTokens
}

func TestEnginesInCaddyAreApartAndOutliveReloads(t *testing.T) {
	s := startSite(t)
	require.Zero(t, s.cached(0))
	require.NotZero(t, s.cached(0))
	require.Zero(t, s.cached(1), "the other engine has its own cache, without a name of its own")

	s.load("")
	require.NotZero(t, s.cached(0), "nothing changed")
	s.load("block_size 8")
	require.Zero(t, s.cached(0), "other settings are another engine")
	require.NotZero(t, s.cached(1))
	s.load("")
	require.Zero(t, s.cached(0), "no config had it in between")

	status, body := s.call(0, "GET", "/metrics", "")
	require.Equal(t, 200, status)
	require.Contains(t, body, "vllm:prefix_cache_queries_total")
	status, body = s.call(0, "GET", "/no/such/page", "")
	require.Equal(t, 404, status)
	require.Contains(t, body, `"code":404`)
}

func TestStreamThroughCaddyIsWholeAndEnds(t *testing.T) {
	s := startSite(t)
	status, body := s.call(0, "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"max_tokens":5,"stream":true}`)
	require.Equal(t, 200, status)
	require.Len(t, answered(t, body), 7)
	require.True(t, strings.HasSuffix(body, "data: [DONE]\n\n"))
}

func TestFaultsWorkThroughCaddy(t *testing.T) {
	s := startSite(t)
	web := &served{t: t, url: "http://" + s.urls[0], client: &http.Client{Transport: s.client.Transport.(patient).Transport}}
	for body, want := range map[string]string{
		`{"die_after_events":3}`: "unexpected EOF",
		`{"reset":true}`:         "connection reset by peer",
	} {
		status, _ := s.call(0, "POST", "/sim/faults", body)
		require.Equal(t, 200, status)
		_, err := web.stream(t.Context())
		require.ErrorContains(t, err, want)
	}
	require.Eventually(t, func() bool {
		_, body := s.call(0, "GET", "/sim/stats", "")
		return strings.Contains(body, `"open":0`) && strings.Contains(body, `"running":0`)
	}, 5*time.Second, 10*time.Millisecond)
}
