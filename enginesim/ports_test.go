package enginesim

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/standard"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// loadSim runs a Caddy with one simulated engine on the addresses, and ends it
// with the test.
func loadSim(t *testing.T, listen string) error {
	t.Helper()
	t.Cleanup(func() { require.NoError(t, caddy.Stop()) })
	return caddy.Load(fmt.Appendf(nil, `{
		"admin": {"disabled": true, "config": {"persist": false}},
		"logging": {"logs": {"default": {"writer": {"output": "discard"}}}},
		"apps": {"http": {"servers": {"sim": {
			"listen": [%s],
			"automatic_https": {"disable": true},
			"routes": [{"handle": [{"handler": "inference_sim", "name": %q}]}]
		}}}}
	}`, listen, t.Name()), true)
}

// listenShared listens on a free port of 127.0.0.1, ready to share it as Caddy
// is, and returns the port.
func listenShared(t *testing.T) int {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if controlErr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}); controlErr != nil {
			return controlErr
		}
		return err
	}}
	listener, err := config.Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().(*net.TCPAddr).Port
}

// freePort returns a port that nobody listens on.
func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().(*net.TCPAddr).Port
}

func TestAPortOfAnotherProcessIsNotShared(t *testing.T) {
	taken, free := listenShared(t), freePort(t)
	inUse := fmt.Sprintf(":(%d|%d) is in use by another process", taken-1, taken)
	for name, listen := range map[string]string{
		"alone":         fmt.Sprintf(`"127.0.0.1:%d"`, taken),
		"on all hosts":  fmt.Sprintf(`":%d"`, taken),
		"after another": fmt.Sprintf(`"127.0.0.1:%d", "127.0.0.1:%d"`, free, taken),
		"in a range":    fmt.Sprintf(`"tcp4/127.0.0.1:%d-%d"`, taken-1, taken),
	} {
		t.Run(name, func(t *testing.T) {
			err := loadSim(t, listen)
			require.ErrorContains(t, err, "inference_sim")
			require.Regexp(t, inUse, err)
		})
	}
}

func TestAReloadKeepsItsOwnPorts(t *testing.T) {
	port := freePort(t)
	for _, listen := range []string{"127.0.0.1:%d", "127.0.0.1:%d", ":%d", "tcp4/127.0.0.1:%d"} {
		require.NoError(t, loadSim(t, fmt.Sprintf(`"`+listen+`"`, port)), listen)
		require.Eventually(t, func() bool { // the old listener may take one with it
			connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			return err == nil && connection.Close() == nil
		}, 5*time.Second, 10*time.Millisecond, "nobody listens on "+listen, port)
	}
}

func TestOtherAddressesAreLeftToCaddy(t *testing.T) {
	require.NoError(t, loadSim(t, `"127.0.0.1:0", "unix/`+t.TempDir()+`/sim.sock"`))
	err := loadSim(t, `"192.0.2.1:80"`) // an address of nobody's
	require.Error(t, err)
	require.NotContains(t, err.Error(), "another process")
}
