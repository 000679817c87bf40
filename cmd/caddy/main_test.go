package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/stretchr/testify/require"
)

// elsewhere makes every HTTP server of a config listen on a socket file, so that
// the config can be provisioned while somebody runs the one it was made from.
func elsewhere(t *testing.T, config []byte) []byte {
	t.Helper()
	var all map[string]any
	require.NoError(t, json.Unmarshal(config, &all))
	servers := all["apps"].(map[string]any)["http"].(map[string]any)["servers"].(map[string]any)
	require.NotEmpty(t, servers)
	dir := t.TempDir()
	for name, server := range servers {
		server.(map[string]any)["listen"] = []string{"unix/" + filepath.Join(dir, name)}
	}
	config, err := json.Marshal(all)
	require.NoError(t, err)
	return config
}

func TestEveryExampleIsValid(t *testing.T) {
	examples, err := filepath.Glob("../../examples/*/Caddyfile")
	require.NoError(t, err)
	require.NotEmpty(t, examples)
	for _, path := range examples {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			adapted, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(text, map[string]any{"filename": path})
			require.NoError(t, err)
			require.Empty(t, warnings, "run `caddy fmt --overwrite` on it")
			require.Regexp(t, `"policy":"(cache_aware|prefix_hash|kv_aware)"`, string(adapted), "an example of something else")

			var config caddy.Config
			require.NoError(t, caddy.StrictUnmarshalJSON(elsewhere(t, adapted), &config))
			require.NoError(t, caddy.Validate(&config))
		})
	}
}
