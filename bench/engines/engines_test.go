package engines

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-inference/caddy-inference/enginesim"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAddressesThatCannotBeListenedAt(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	for first, want := range map[string]string{
		"nowhere":             `engines' address "nowhere": must be host:port`,
		"127.0.0.1:port":      `engines' address "127.0.0.1:port": no port "port"`,
		"127.0.0.1:70000":     "no port",
		taken.Addr().String(): "engine 1: listen tcp",
	} {
		_, err := Start(2, first, enginesim.DefaultOptions())
		require.ErrorContains(t, err, want)
	}
	_, err = Start(1, "127.0.0.1:0", enginesim.Options{})
	require.ErrorContains(t, err, "engine 1: no model")
}

func TestAnEngineRestartsAtItsAddressAndEmpty(t *testing.T) {
	options := enginesim.DefaultOptions()
	options.PrefillRate = 0
	f, err := Start(2, "127.0.0.1:0", options)
	require.NoError(t, err)
	defer f.Close()
	defer http.DefaultClient.CloseIdleConnections()
	address := f.Addresses()[0]
	ask := func() enginesim.Stats {
		body := `{"max_tokens":1,"prompt":"` + strings.Repeat(" the", 100) + `"}`
		response, err := http.Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode)
		return f[0].Server.Stats()
	}
	ask()
	require.Positive(t, ask().CachedTokens)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // at once
	require.NoError(t, f[0].Restart(ctx, 1<<40))
	require.Equal(t, address, f.Addresses()[0])
	http.DefaultClient.CloseIdleConnections() // they were cut
	require.Zero(t, ask().CachedTokens)
}
