package enginesim

import (
	"encoding/json"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/stretchr/testify/require"
)

// eventsConfig is a config with engines on socket files, each with its events options.
func eventsConfig(t *testing.T, engines ...string) []byte {
	t.Helper()
	var routes []json.RawMessage
	for i, engine := range engines {
		routes = append(routes, fmt.Appendf(nil, `{"handle":[{"handler":"inference_sim","name":"%s-%d","prefill_rate":0,"events":%s}]}`, t.Name(), i, engine))
	}
	all, err := json.Marshal(routes)
	require.NoError(t, err)
	return fmt.Appendf(nil, `{
		"admin": {"disabled": true, "config": {"persist": false}},
		"logging": {"logs": {"default": {"writer": {"output": "discard"}}}},
		"apps": {"http": {"servers": {"sim": {"listen": [%q], "automatic_https": {"disable": true}, "routes": %s}}}}
	}`, "unix/"+t.TempDir()+"/sim", all)
}

// hears reports whether somebody listens on a port.
func hears(port int) bool {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

// engineCount is how many engines there are in the pool.
func engineCount() (n int) {
	engines.Range(func(_, _ any) bool { n++; return true })
	return n
}

func TestValidatingOpensNoSocket(t *testing.T) {
	port := freePorts(t, 2)
	var config caddy.Config
	require.NoError(t, caddy.StrictUnmarshalJSON(eventsConfig(t, fmt.Sprintf(`{"endpoint":"tcp://*:%d","replay":"tcp://*:%d"}`, port, port+1)), &config))
	// If it did, it could not: the port is taken.
	taken, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	require.NoError(t, err)
	defer taken.Close()
	require.NoError(t, caddy.Validate(&config))
	require.Zero(t, engineCount())
}

func TestSocketsLiveAsLongAsAConfigHasTheEngine(t *testing.T) {
	t.Cleanup(func() { require.NoError(t, caddy.Stop()) })
	port := freePorts(t, 2)
	options := fmt.Sprintf(`{"endpoint":"tcp://*:%d","replay":"tcp://*:%d"}`, port, port+1)
	require.NoError(t, caddy.Load(eventsConfig(t, options), true))
	require.True(t, hears(port))
	require.True(t, hears(port+1))

	live := dialSocket(t, endpoint{network: "tcp", host: "127.0.0.1", port: port}, "SUB")
	require.NoError(t, caddy.Load(eventsConfig(t, options, `{"endpoint":"tcp://*:0"}`), true))
	require.Equal(t, 2, engineCount())
	require.NoError(t, live.SendCmd("PING", []byte{0, 0}))
	_, err := live.RecvMsg()
	require.NoError(t, err, "the engine is the same, and so is its connection")

	require.NoError(t, caddy.Load(eventsConfig(t, fmt.Sprintf(`{"endpoint":"tcp://*:%d","topic":"other"}`, port)), true))
	require.Eventually(t, func() bool { _, err := live.RecvMsg(); return err != nil }, time.Minute, time.Millisecond, "another engine has the port now")
	require.True(t, hears(port))
	require.False(t, hears(port+1))

	require.NoError(t, caddy.Stop())
	require.False(t, hears(port))
}

func TestEndpointThatIsTakenIsAnErrorAndOpensNothing(t *testing.T) {
	t.Cleanup(func() { require.NoError(t, caddy.Stop()) })
	port := listenShared(t)
	err := caddy.Load(eventsConfig(t, fmt.Sprintf(`{"endpoint":"tcp://*:%d"}`, port)), true)
	require.ErrorContains(t, err, "in use by another process")
	require.Zero(t, engineCount())

	port = freePorts(t, 1)
	options := fmt.Sprintf(`{"endpoint":"tcp://*:%d"}`, port)
	err = caddy.Load(eventsConfig(t, options, options), true)
	require.ErrorContains(t, err, "as those of another engine: give each its own endpoint")
	require.Zero(t, engineCount())
	require.False(t, hears(port))
}
