package inference

import (
	"os"
	"regexp"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// page reads the policy's page in docs.
func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("docs/cache_aware.md")
	require.NoError(t, err)
	return string(text)
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
	for field := range logged(t, &d) {
		require.Regexp(t, "(?m)^\\| .*`"+field+"`.*\\|", page(t))
	}
}
