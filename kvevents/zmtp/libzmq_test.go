//go:build interop

package zmtp

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// python returns the interpreter that has pyzmq, from .ci/interop.
func python(t *testing.T) string {
	t.Helper()
	name := os.Getenv("INTEROP_PYTHON")
	require.NotEmpty(t, name, "INTEROP_PYTHON is not set; run .ci/interop")
	return name
}

// libzmq is a process with sockets of the real library.
type libzmq struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	ended bool
}

func startLibzmq(t *testing.T, args ...string) *libzmq {
	p := &libzmq{t: t, cmd: exec.Command(python(t), append([]string{"testdata/peer.py"}, args...)...)}
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.in, p.out = in, bufio.NewReader(out)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.kill)
	return p
}

func (p *libzmq) kill() {
	if !p.ended {
		p.ended = true
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

func (p *libzmq) line() string {
	s, err := p.out.ReadString('\n')
	require.NoError(p.t, err)
	return s
}

// send publishes messages and returns the number after the last.
func (p *libzmq) send(count, size int) int {
	_, err := fmt.Fprintf(p.in, "send %d %d\n", count, size)
	require.NoError(p.t, err)
	var next int
	_, err = fmt.Sscanf(p.line(), "sent %d", &next)
	require.NoError(p.t, err)
	return next
}

func (p *libzmq) endpoints() (pub, router string) {
	var version string
	_, err := fmt.Sscan(p.line(), &pub, &router, &version)
	require.NoError(p.t, err)
	p.t.Log("libzmq", version)
	return pub, router
}

// settle sends until a message has come, and some more of all sizes.
func (p *libzmq) settle(h *tape) {
	next := 0
	require.Eventually(p.t, func() bool {
		next = p.send(1, 10)
		return h.last() >= 0
	}, within, time.Millisecond)
	for _, size := range []int{0, 1, 254, 256, 70_000, 3 << 20} {
		next = p.send(3, size)
	}
	next = p.send(5000, 300)
	require.Eventually(p.t, func() bool { return h.last() == next-1 }, within, time.Millisecond)
	h.check(p.t)
}

func TestLibzmqPublisher(t *testing.T) {
	for name, args := range map[string][]string{
		"quiet":           {"bind"},
		"with heartbeats": {"bind", "20"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startLibzmq(t, args...)
			pub, _ := p.endpoints()
			h := &tape{}
			listen(t, h, connecting(pub))
			p.settle(h)
			time.Sleep(500 * time.Millisecond) // heartbeats in both directions
			p.settle(h)
			h.mu.Lock()
			defer h.mu.Unlock()
			require.Equal(t, 1, h.ups)
			require.Empty(t, h.downs)
		})
	}
}

func TestLibzmqAnswersPings(t *testing.T) {
	p := startLibzmq(t, "bind")
	pub, _ := p.endpoints()
	_, address, err := ParseEndpoint(pub)
	require.NoError(t, err)
	o := brisk.withDefaults()
	c, hangUp, err := dial(t.Context(), "tcp", address, &o, sub)
	require.NoError(t, err)
	defer hangUp()
	require.True(t, c.pings, "it must say so")
	c.pings = false
	require.NoError(t, c.write(ping))
	c.patience, c.silence = within, func() error { return ErrSilent }
	require.NoError(t, c.fill(len(ping)-2)) // a PONG has no time to live
	require.NoError(t, c.command(2, 5))
	require.True(t, c.pings, "it must have answered")
}

func TestLibzmqPublisherThatConnects(t *testing.T) {
	endpoint := "ipc://" + filepath.Join(t.TempDir(), "sub")
	h := &tape{}
	listen(t, h, accepting(endpoint))
	p := startLibzmq(t, "connect", endpoint)
	p.line()
	p.settle(h)
}

func TestLibzmqPublisherThatIsKilled(t *testing.T) {
	for range 3 {
		h := &tape{}
		p := startLibzmq(t, "bind")
		pub, _ := p.endpoints()
		listen(t, h, connecting(pub))
		p.settle(h)
		_, _ = fmt.Fprintln(p.in, "send 100000 1000") // it is killed amid this
		p.kill()
		require.Eventually(t, func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return len(h.downs) > 1
		}, within, time.Millisecond)
		h.check(t)
	}
}

func TestLibzmqRouter(t *testing.T) {
	p := startLibzmq(t, "bind")
	_, router := p.endpoints()
	for _, from := range []uint64{0, 9990, 20000} {
		d, err := DialDealer(t.Context(), router, Options{})
		require.NoError(t, err)
		require.NoError(t, d.Send(nil, binary.BigEndian.AppendUint64(nil, from)))
		for n := from; ; n++ {
			got, err := d.Receive(within)
			require.NoError(t, err)
			require.Len(t, got, 3)
			if binary.BigEndian.Uint64(got[1]) == 1<<64-1 {
				require.Equal(t, max(from, 10000), n)
				break
			}
			require.Equal(t, n, binary.BigEndian.Uint64(got[1]))
			require.Equal(t, fmt.Sprintf("payload %d", n), string(got[2]))
		}
		d.Close()
	}
}
