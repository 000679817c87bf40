package inference

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/stretchr/testify/require"
)

// goldenLine parts a Caddyfile from what it becomes: JSON, or a part of an error.
const goldenLine = "\n----------\n"

func TestCaddyfilesBecomeTheirJSON(t *testing.T) {
	files, err := filepath.Glob("testdata/caddyfile/*.caddyfiletest")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".caddyfiletest"), func(t *testing.T) {
			golden, err := os.ReadFile(file)
			require.NoError(t, err)
			input, expected, found := strings.Cut(string(golden), goldenLine)
			require.True(t, found, "no line of ----------")
			expected = strings.TrimSpace(expected)

			config, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(input+"\n"), nil)
			if !strings.HasPrefix(expected, "{") {
				require.ErrorContains(t, err, expected)
				return
			}
			require.NoError(t, err)
			require.Empty(t, warnings, "Caddyfile is not formatted")
			require.JSONEq(t, expected, string(config), indented(config))
			requireProvisions(t, config)
		})
	}
}

// indented is how a golden is written.
func indented(config []byte) string {
	var b bytes.Buffer
	_ = json.Indent(&b, config, "", "\t")
	return b.String()
}

// requireProvisions checks that Caddy takes the whole config: it reads modules
// strictly, provisions and validates them.
func requireProvisions(t *testing.T, config []byte) {
	t.Helper()
	var c caddy.Config
	require.NoError(t, caddy.StrictUnmarshalJSON(config, &c))
	c.Admin = &caddy.AdminConfig{Disabled: true}
	c.Logging = &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{
		WriterRaw: json.RawMessage(`{"output":"discard"}`),
	}}}}
	require.NoError(t, caddy.Validate(&c))
}

func parsePolicy(block string) (*CacheAware, error) {
	c := new(CacheAware)
	return c, c.UnmarshalCaddyfile(caddyfile.NewTestDispenser("cache_aware " + block))
}

func parseInference(block string) (*App, error) {
	a := new(App)
	return a, a.UnmarshalCaddyfile(caddyfile.NewTestDispenser("inference " + block))
}

func TestEveryOptionIsParsed(t *testing.T) {
	for text, expected := range map[string]*CacheAware{
		"":                               {},
		"{\n}":                           {},
		"{\nmax_tree_size 256MiB\n}":     {MaxTreeSize: 256 << 20},
		"{\nmax_tree_size 1GB\n}":        {MaxTreeSize: 1e9},
		"{\nmax_tree_size 1048576\n}":    {MaxTreeSize: 1 << 20},
		"{\nmax_body 1.5KiB\n}":          {MaxBody: 1536},
		"{\neviction_interval 2m\n}":     {EvictionInterval: caddy.Duration(2 * time.Minute)},
		"{\neviction_interval 1d\n}":     {EvictionInterval: caddy.Duration(24 * time.Hour)},
		"{\nfallback random\n}":          {FallbackRaw: json.RawMessage(`{"policy":"random"}`)},
		"{\nfallback random_choose 3\n}": {FallbackRaw: json.RawMessage(`{"choose":3,"policy":"random_choose"}`)},
		"{\nscoring cost\n}":             {Scoring: byCost},
		"{\nscoring threshold\ncache_threshold 0\nbalance_abs_threshold 0\nbalance_rel_threshold 2.5\n}": {
			Scoring: byThreshold, CacheThreshold: new(0.0), BalanceAbsThreshold: new(0), BalanceRelThreshold: new(2.5),
		},
		"{\ntune off\n}":                      {Tune: "off"},
		"{\nmax_body 2KiB\nfallback first\n}": {MaxBody: 2048, FallbackRaw: json.RawMessage(`{"policy":"first"}`)},
	} {
		c, err := parsePolicy(text)
		require.NoError(t, err, text)
		require.Equal(t, expected, c, text)
	}
	for text, expected := range map[string]*App{
		"":                        {},
		"{\nmax_buffered 1GiB\n}": {MaxBuffered: 1 << 30},
		"{\ntime_scale 20\n}":     {TimeScale: 20},
		"{\ntime_scale 0.5\n}":    {TimeScale: 0.5},
	} {
		a, err := parseInference(text)
		require.NoError(t, err, text)
		require.Equal(t, expected, a, text)
	}
}

func TestAWrongOptionIsNamedWithItsValueAndWhatToDo(t *testing.T) {
	const size, duration, factor, policy = "such as 256MiB", "such as 2m", "such as 20", "such as least_conn"
	for text, said := range map[string][]string{
		"256MiB":                                           {"'256MiB'", "block"},
		"256MiB {\n}":                                      {"'256MiB'", "block"},
		"{\nmax_size 1MiB\n}":                              {"'max_size'", "max_tree_size, eviction_interval, scoring, cache_threshold, balance_abs_threshold, balance_rel_threshold, max_body, fallback, affinity and tune"},
		"{\nmax_body 1MiB {\nx\n}\n}":                      {"'{'"},
		"{\nmax_tree_size\n}":                              {"max_tree_size", size},
		"{\nmax_tree_size 1MiB 2MiB\n}":                    {"max_tree_size", size},
		"{\nmax_tree_size big\n}":                          {"max_tree_size 'big'", size},
		"{\nmax_tree_size 0\n}":                            {"max_tree_size '0'", size},
		"{\nmax_tree_size -1\n}":                           {"max_tree_size '-1'", size},
		"{\nmax_tree_size 16EiB\n}":                        {"max_tree_size '16EiB'", size},
		"{\nmax_tree_size 8EiB\n}":                         {"max_tree_size '8EiB'", size},
		"{\nmax_tree_size 1MiB\nmax_tree_size 1MiB\n}":     {"max_tree_size is there twice", "keep one"},
		"{\nscoring\n}":                                    {"scoring takes one of cost, threshold"},
		"{\nscoring fast\n}":                               {"scoring takes one of cost, threshold"},
		"{\nscoring cost\nscoring cost\n}":                 {"scoring is there twice"},
		"{\ncache_threshold\n}":                            {"cache_threshold takes one number"},
		"{\ncache_threshold half\n}":                       {"cache_threshold 'half'", "such as 1"},
		"{\ncache_threshold NaN\n}":                        {"cache_threshold 'NaN'"},
		"{\ncache_threshold 0\ncache_threshold 1\n}":       {"cache_threshold is there twice"},
		"{\nbalance_abs_threshold 1.5\n}":                  {"balance_abs_threshold '1.5'"},
		"{\nbalance_rel_threshold Inf\n}":                  {"balance_rel_threshold 'Inf'"},
		"{\ntune\n}":                                       {"tune takes one of on, off"},
		"{\ntune none\n}":                                  {"tune takes one of on, off"},
		"{\ntune on\ntune off\n}":                          {"tune is there twice", "keep one"},
		"{\nmax_body\n}":                                   {"max_body", size},
		"{\nmax_body 1s\n}":                                {"max_body '1s'", size},
		"{\nmax_body 1KiB\nmax_body 2KiB\n}":               {"max_body is there twice", "keep one"},
		"{\neviction_interval\n}":                          {"eviction_interval", duration},
		"{\neviction_interval 1m 2m\n}":                    {"eviction_interval", duration},
		"{\neviction_interval 2\n}":                        {"eviction_interval '2'", duration},
		"{\neviction_interval 0s\n}":                       {"eviction_interval '0s'", duration},
		"{\neviction_interval -1s\n}":                      {"eviction_interval '-1s'", duration},
		"{\neviction_interval 1m\neviction_interval 1m\n}": {"eviction_interval is there twice", "keep one"},
		"{\nfallback\n}":                                   {"fallback", policy},
		"{\nfallback nothing\n}":                           {"fallback 'nothing'", "not registered", policy},
		"{\nfallback random_choose many\n}":                {"fallback 'random_choose'", "many", policy},
		"{\nfallback random 3\n}":                          {"fallback 'random'", policy},
		"{\nfallback random\nfallback random\n}":           {"fallback is there twice", "keep one"},
	} {
		_, err := parsePolicy(text)
		requireSays(t, err, text, append(said, "cache_aware: "))
	}
	for text, said := range map[string][]string{
		"on":                       {"'on'", "block"},
		"{\nmax_tree_size 1MiB\n}": {"'max_tree_size'", "max_buffered and time_scale"},
		"{\nmax_buffered\n}":       {"max_buffered", size},
		"{\nmax_buffered all\n}":   {"max_buffered 'all'", size},
		"{\nmax_buffered 1GiB\nmax_buffered 1GiB\n}": {"max_buffered is there twice", "keep one"},
		"{\ntime_scale\n}":                           {"time_scale", factor},
		"{\ntime_scale 1 2\n}":                       {"time_scale", factor},
		"{\ntime_scale 20x\n}":                       {"time_scale '20x'", factor},
		"{\ntime_scale 0\n}":                         {"time_scale '0'", factor},
		"{\ntime_scale -1\n}":                        {"time_scale '-1'", factor},
		"{\ntime_scale NaN\n}":                       {"time_scale 'NaN'", factor},
		"{\ntime_scale Inf\n}":                       {"time_scale 'Inf'", factor},
		"{\ntime_scale 1e400\n}":                     {"time_scale '1e400'", factor},
		"{\ntime_scale 2\ntime_scale 2\n}":           {"time_scale is there twice", "keep one"},
	} {
		_, err := parseInference(text)
		requireSays(t, err, text, append(said, "inference: "))
	}
}

func requireSays(t *testing.T, err error, text string, said []string) {
	t.Helper()
	require.Error(t, err, text)
	for _, part := range said {
		require.ErrorContains(t, err, part, text)
	}
	require.Contains(t, err.Error(), "Testfile:", "where it is")
}

func TestAConfigSurvivesJSON(t *testing.T) {
	policy, err := parsePolicy("{\nmax_tree_size 256MiB\nmax_body 1MiB\neviction_interval 1m\nfallback random_choose 3\n}")
	require.NoError(t, err)
	text, err := json.Marshal(policy)
	require.NoError(t, err)
	again := new(CacheAware)
	require.NoError(t, caddy.StrictUnmarshalJSON(text, again))
	require.Equal(t, policy, again)

	app, err := parseInference("{\nmax_buffered 1GiB\ntime_scale 20\n}")
	require.NoError(t, err)
	text, err = json.Marshal(app)
	require.NoError(t, err)
	appAgain := new(App)
	require.NoError(t, caddy.StrictUnmarshalJSON(text, appAgain))
	require.Equal(t, app, appAgain)
}

func TestAnUnknownFieldIsRejected(t *testing.T) {
	require.Error(t, caddy.StrictUnmarshalJSON([]byte(`{"max_tree":1}`), new(CacheAware)))
	require.Error(t, caddy.StrictUnmarshalJSON([]byte(`{"max_body":1}`), new(App)))
}

func TestDefaultsAreValid(t *testing.T) {
	policy := &CacheAware{MaxTreeSize: defaultMaxTreeSize, EvictionInterval: caddy.Duration(defaultEvictionInterval), Scoring: byCost, thresholds: defaultThresholds, MaxBody: defaultMaxBody, Tune: "on"}
	require.NoError(t, policy.Validate())
	require.NoError(t, (&App{MaxBuffered: defaultMaxBuffered, TimeScale: defaultTimeScale}).Validate())
}

func TestAConfigOutOfBoundsIsRejected(t *testing.T) {
	valid := CacheAware{MaxTreeSize: minTreeSize, EvictionInterval: caddy.Duration(time.Second), Scoring: byThreshold, thresholds: defaultThresholds, MaxBody: minBody, Tune: "off"}
	require.NoError(t, valid.Validate())
	for said, change := range map[string]func(c *CacheAware){
		fmt.Sprintf("max_tree_size of %d bytes: must be at least %d", minTreeSize-1, minTreeSize): func(c *CacheAware) { c.MaxTreeSize = minTreeSize - 1 },
		"max_tree_size of -1 bytes":   func(c *CacheAware) { c.MaxTreeSize = -1 },
		"eviction_interval -1s: must": func(c *CacheAware) { c.EvictionInterval = caddy.Duration(-time.Second) },
		fmt.Sprintf("max_body of %d bytes: must be at least %d", minBody-1, minBody): func(c *CacheAware) { c.MaxBody = minBody - 1 },
		"max_body of -1 bytes":                      func(c *CacheAware) { c.MaxBody = -1 },
		"scoring 'fast': must be cost or threshold": func(c *CacheAware) { c.Scoring = "fast" },
		"cache_threshold, balance_abs_threshold and balance_rel_threshold mean nothing to scoring by cost": func(c *CacheAware) {
			c.Scoring, c.BalanceAbsThreshold = byCost, new(1)
		},
		"cache_threshold of 1.1: must be from 0 to 1":       func(c *CacheAware) { c.thresholds.Share = 1.1 },
		"cache_threshold of NaN: must be from 0 to 1":       func(c *CacheAware) { c.thresholds.Share = math.NaN() },
		"balance_abs_threshold of -1: must be at least 0":   func(c *CacheAware) { c.thresholds.Absolute = -1 },
		"balance_rel_threshold of 0.9: must be at least 1":  func(c *CacheAware) { c.thresholds.Relative = 0.9 },
		"balance_rel_threshold of +Inf: must be at least 1": func(c *CacheAware) { c.thresholds.Relative = math.Inf(1) },
		"tune 'no': must be on or off":                      func(c *CacheAware) { c.Tune = "no" },
	} {
		c := valid
		change(&c)
		require.ErrorContains(t, c.Validate(), "cache_aware: "+said)
	}
	require.NoError(t, (&App{MaxBuffered: firstPart, TimeScale: defaultTimeScale}).Validate())
	for _, n := range []int64{firstPart - 1, 1, -1} {
		require.ErrorContains(t, (&App{MaxBuffered: n}).Validate(),
			fmt.Sprintf("inference: max_buffered of %d bytes: must be at least %d", n, firstPart))
	}
	for _, scale := range []float64{minTimeScale, maxTimeScale} {
		require.NoError(t, (&App{MaxBuffered: firstPart, TimeScale: scale}).Validate())
	}
	for said, scale := range map[string]float64{"0.0099": 0.0099, "10001": 10_001, "-1": -1, "NaN": math.NaN(), "+Inf": math.Inf(1)} {
		require.ErrorContains(t, (&App{MaxBuffered: firstPart, TimeScale: scale}).Validate(),
			"inference: time_scale of "+said+": must be from 0.01 to 1000")
	}
}

// FuzzCaddyfile parses any block: what is taken for valid comes out of JSON as it
// went in.
func FuzzCaddyfile(f *testing.F) {
	f.Add("{\nmax_tree_size 256MiB\neviction_interval 2m\nmax_body 1MiB\nfallback header X {\nfallback random_choose 2\n}\n}")
	f.Add("{\nmax_body 1e18KiB\n}")
	f.Add("{\naffinity header X\naffinity cookie b\naffinity body user\n}")
	f.Fuzz(func(t *testing.T, block string) {
		c, err := parsePolicy(block)
		if err != nil {
			return
		}
		require.GreaterOrEqual(t, c.MaxTreeSize, int64(0))
		require.GreaterOrEqual(t, c.MaxBody, int64(0))
		require.GreaterOrEqual(t, c.EvictionInterval, caddy.Duration(0))
		text, err := json.Marshal(c)
		require.NoError(t, err)
		again := new(CacheAware)
		require.NoError(t, caddy.StrictUnmarshalJSON(text, again))
		require.Equal(t, c.MaxTreeSize, again.MaxTreeSize)
		require.Equal(t, string(c.FallbackRaw), string(again.FallbackRaw))
	})
}
