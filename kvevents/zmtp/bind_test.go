package zmtp

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/kvevents/zmtp/zmtptest"
)

// log is a handler for real sockets.
type log struct {
	mu   sync.Mutex
	said []string
}

func (l *log) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, fmt.Sprintf(format, args...))
}

func (l *log) Up()                     { l.add("up") }
func (l *log) Down(error)              { l.add("down") }
func (l *log) Message(frames [][]byte) { l.add("message %s", frames[len(frames)-1]) }

func (l *log) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.said...)
}

func (l *log) eventually(t *testing.T, want ...string) {
	t.Helper()
	require.Eventually(t, func() bool { return len(l.all()) >= len(want) }, 10*time.Second, time.Millisecond)
	require.Equal(t, want, l.all())
}

// listening runs a Sub that listens.
func listening(t *testing.T, endpoint string) (*log, func()) {
	ctx, cancel := context.WithCancel(t.Context())
	l := &log{}
	s := &Sub{Topic: "kv", Handler: l}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Bind(ctx, endpoint)
	}()
	stop := func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return l, stop
}

// publisher connects to an address until somebody listens.
func publisher(t *testing.T, network, address string) *zmtptest.Peer {
	t.Helper()
	var p *zmtptest.Peer
	require.Eventually(t, func() bool {
		nc, err := net.Dial(network, address)
		if err == nil {
			p = &zmtptest.Peer{Conn: nc}
		}
		return err == nil
	}, 10*time.Second, time.Millisecond)
	t.Cleanup(func() { p.Close() })
	return p
}

func TestBoundSubTakesTheNewestPublisher(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub")
	l, stop := listening(t, "ipc://"+path)

	first := publisher(t, "unix", path)
	require.True(t, accepted(t, first))
	require.NoError(t, first.Send([]byte("kv"), []byte("one")))
	l.eventually(t, "up", "message one")

	// Who does not get through the handshake takes no place.
	stranger := publisher(t, "unix", path)
	_, err := stranger.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	buf := make([]byte, 100)
	for err == nil {
		_, err = stranger.Read(buf)
	}
	require.NoError(t, first.Send([]byte("kv"), []byte("two")))
	l.eventually(t, "up", "message one", "message two")

	second := publisher(t, "unix", path)
	require.True(t, accepted(t, second))
	require.NoError(t, second.Send([]byte("kv"), []byte("three")))
	l.eventually(t, "up", "message one", "message two", "down", "up", "message three")

	second.Close()
	l.eventually(t, "up", "message one", "message two", "down", "up", "message three", "down")
	stop()
	require.NoFileExists(t, path)
}

func TestBoundSubTakesOverTheSocketOfADeadProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	dead.SetUnlinkOnClose(false)
	require.NoError(t, dead.Close())
	require.FileExists(t, path)
	l, _ := listening(t, "ipc://"+path)
	require.True(t, accepted(t, publisher(t, "unix", path)))
	l.eventually(t, "up")
}

func TestBoundSubLeavesWhatIsNotItsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub")
	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	l, _ := listening(t, "ipc://"+path)
	l.eventually(t, "down")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "precious", string(content))
}

func TestBoundSubListensOnTCP(t *testing.T) {
	free, err := net.Listen("tcp", "[::1]:0")
	require.NoError(t, err)
	address := free.Addr().String()
	free.Close()
	l, _ := listening(t, "tcp://"+address)
	p := publisher(t, "tcp", address)
	require.True(t, accepted(t, p))
	require.NoError(t, p.Send([]byte("kv"), []byte("one")))
	l.eventually(t, "up", "message one")
}

func TestBoundSubEndsWithLinksAndHandshakesOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub")
	l, stop := listening(t, "ipc://"+path)
	require.True(t, accepted(t, publisher(t, "unix", path)))
	l.eventually(t, "up")
	for range 2 * maxShaking {
		publisher(t, "unix", path)
	}
	stop()
	l.eventually(t, "up")
}
