package inference

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/kvevents"
	"github.com/caddy-inference/caddy-inference/prompt"
	"github.com/caddy-inference/caddy-inference/selection"
)

// page reads the pages in docs that tell what is logged and measured.
func page(t *testing.T) string {
	t.Helper()
	var pages string
	for _, name := range []string{"docs/cache_aware.md", "docs/kv_aware.md"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		pages += string(text)
	}
	return pages
}

// TestTheDocsNameTheMetricsThereAre compares both ways.
func TestTheDocsNameTheMetricsThereAre(t *testing.T) {
	var exported []string
	descs := make(chan *prometheus.Desc, 100)
	newState().metrics.Describe(descs)
	close(descs)
	name := regexp.MustCompile(`fqName: "(\w+)"`)
	for d := range descs {
		exported = append(exported, name.FindStringSubmatch(d.String())[1])
	}
	seen := map[string]bool{}
	var documented []string
	for _, name := range regexp.MustCompile("`(caddy_inference_\\w+)`").FindAllStringSubmatch(page(t), -1) {
		if !seen[name[1]] {
			seen[name[1]] = true
			documented = append(documented, name[1])
		}
	}
	require.ElementsMatch(t, exported, documented)
}

// TestTheDocsNameTheLogFieldsThereAre looks for every field of a decision that has
// them all.
func TestTheDocsNameTheLogFieldsThereAre(t *testing.T) {
	d := decided(t).decision
	d.cause, d.cut, d.holder, d.broken, d.firstToken, d.cached = "c", "c", "h", true, 1, 1
	d.asked, d.inexact = true, "i"
	for field := range logged(t, &d) {
		require.Regexp(t, "(?m)^\\| .*`"+field+"`.*\\|", page(t))
	}
}

// TestTheDocsNameTheReasonsThereAre looks for every reason of a choice.
func TestTheDocsNameTheReasonsThereAre(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| `reason` \\| .*").FindString(page(t))
	owners, err := os.ReadFile("docs/prefix_hash.md")
	require.NoError(t, err)
	for why := range selection.Reasons {
		name := "`" + why.String() + "`"
		require.True(t, strings.Contains(row, name) || strings.Contains(string(owners), "| "+name+" |"), name)
	}
	require.Contains(t, row, "`"+fallback.String()+"`")
}

// TestTheDocsSayTheSameInBothForms makes JSON of each page's Caddyfile and compares the
// policy in it with the one that stands beside it.
func TestTheDocsSayTheSameInBothForms(t *testing.T) {
	policy := func(config []byte) any {
		var c struct {
			Apps struct {
				HTTP struct {
					Servers map[string]struct {
						Routes []any `json:"routes"`
					} `json:"servers"`
				} `json:"http"`
			} `json:"apps"`
		}
		require.NoError(t, json.Unmarshal(config, &c))
		return find(c.Apps.HTTP.Servers["srv0"].Routes, "selection_policy")
	}
	for _, name := range []string{"docs/cache_aware.md", "docs/prefix_hash.md", "docs/kv_aware.md"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		forms := regexp.MustCompile("(?s)<td>\n\n```\n(.*?)```.*?```json\n(.*?)```").FindStringSubmatch(string(text))
		require.NotNil(t, forms, name)
		adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(forms[1]), nil)
		require.NoError(t, err, name)
		require.NotNil(t, policy(adapted), name)
		require.Equal(t, policy([]byte(forms[2])), policy(adapted), name)
	}
}

// find returns the first value of a key, anywhere in a JSON value.
func find(in any, key string) any {
	switch v := in.(type) {
	case []any:
		for _, element := range v {
			if found := find(element, key); found != nil {
				return found
			}
		}
	case map[string]any:
		if found, ok := v[key]; ok {
			return found
		}
		return find(slices.Collect(maps.Values(v)), key)
	}
	return nil
}

// TestTheDocsNameTheCausesThereAre looks for every cause for which nothing is known exactly.
func TestTheDocsNameTheCausesThereAre(t *testing.T) {
	text, err := os.ReadFile("docs/kv_aware.md")
	require.NoError(t, err)
	causes := []string{notAsked, tooMany, kvevents.Connecting.String(), kvevents.Replaying.String(), kvevents.Degraded.String(), kvevents.Blind.String()}
	causes = append(causes, slices.Collect(maps.Keys(hints))...)
	for _, cause := range causes {
		require.Regexp(t, "(?m)^\\| .*`"+cause+"`.*\\|", string(text))
	}
}

// TestTheExamplesAreValid provisions the Caddyfiles of examples that need no simulator.
func TestTheExamplesAreValid(t *testing.T) {
	for _, name := range []string{"examples/cache_aware/Caddyfile", "examples/prefix_hash/Caddyfile"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		config, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(text, nil)
		require.NoError(t, err, name)
		require.Empty(t, warnings, name)
		requireProvisions(t, config)
	}
}

// TestTheDocsNameTheAPIsThereAre reads the table of paths both ways.
func TestTheDocsNameTheAPIsThereAre(t *testing.T) {
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`/[^|]+) \\| `(\\w+)` \\|").FindAllStringSubmatch(page(t), -1) {
		for path := range strings.SplitSeq(row[1], ", ") {
			require.Equal(t, row[2], prompt.APIOf(strings.Trim(path, "`")).String(), path)
		}
		documented[row[2]] = true
	}
	for api := prompt.Unknown + 1; api.String() != prompt.Unknown.String(); api++ {
		require.True(t, documented[api.String()], "%s is not documented", api)
		delete(documented, api.String())
	}
	require.Empty(t, documented)
}
