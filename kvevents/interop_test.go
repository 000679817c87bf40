//go:build interop

package kvevents

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/kvevents/zmtp"
)

// engine is a process that publishes with the classes of an engine's release.
type engine struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// wheels are the releases to test against, from .ci/interop.
func wheels(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(os.Getenv("INTEROP_WHEELS"), "*.whl"))
	require.NoError(t, err)
	require.NotEmpty(t, files, "no engines' packages in INTEROP_WHEELS; run .ci/interop")
	return files
}

func startEngine(t *testing.T, wheel, endpoint, replay string, buffer int, seed uint64) *engine {
	name, _, _ := strings.Cut(filepath.Base(wheel), "_")
	name, _, _ = strings.Cut(name, "-")
	e := &engine{t: t}
	e.cmd = exec.Command(os.Getenv("INTEROP_PYTHON"), "engine.py", name, wheel, endpoint, replay, strconv.Itoa(buffer), strconv.FormatUint(seed, 10))
	e.cmd.Dir = "testdata/publishers"
	e.cmd.Stderr = os.Stderr
	in, err := e.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := e.cmd.StdoutPipe()
	require.NoError(t, err)
	e.in, e.out = in, bufio.NewReader(out)
	require.NoError(t, e.cmd.Start())
	t.Cleanup(e.kill)
	_, err = e.out.ReadString('\n')
	require.NoError(t, err)
	return e
}

func (e *engine) kill() {
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
}

func (e *engine) publish(batches int) {
	_, err := fmt.Fprintln(e.in, "publish", batches)
	require.NoError(e.t, err)
}

func (e *engine) held() map[Hash]int {
	_, err := fmt.Fprintln(e.in, "held")
	require.NoError(e.t, err)
	line, err := e.out.ReadBytes('\n')
	require.NoError(e.t, err)
	var said struct{ Held map[string]int }
	require.NoError(e.t, json.Unmarshal(line, &said))
	out := map[Hash]int{}
	for name, n := range said.Held {
		if v, err := strconv.ParseInt(name, 10, 64); err == nil {
			out[Hash(v)] = n
			continue
		}
		v, err := strconv.ParseUint(name, 10, 64)
		require.NoError(e.t, err)
		out[Hash(v)] = n
	}
	return out
}

// cutter makes links that break after some bytes, in the middle of whatever comes.
type cutter struct {
	net.Conn
	left int
}

var errCut = errors.New("the link is cut")

func (c *cutter) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errCut
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// cutting dials links most of which break.
func cutting(r *rand.Rand) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &cutter{c, 2000 + int(r.ExpFloat64()*500_000)}, nil
	}
}

// TestSubscriberHoldsWhatTheEngineHolds runs under load with links that are cut and
// engines that are killed. After each life the two must agree.
func TestSubscriberHoldsWhatTheEngineHolds(t *testing.T) {
	for _, wheel := range wheels(t) {
		t.Run(filepath.Base(wheel), func(t *testing.T) {
			ports := freePorts(t)
			bind := func(i int) string { return fmt.Sprintf("tcp://*:%d", ports[i]) }
			dial := func(i int) string { return fmt.Sprintf("tcp://127.0.0.1:%d", ports[i]) }
			h := &held{index: index{held: map[Hash]int{}}}
			// One dials live links only, the other replays: a Rand is for one goroutine.
			live, replays := cutting(rand.New(rand.NewPCG(1, 1))), cutting(rand.New(rand.NewPCG(2, 2)))
			s, err := Subscribe(Config{
				Endpoint: dial(0), Replay: dial(1), Topic: "kv-events", Handler: h, QueueBytes: 100_000,
				Link: zmtp.Options{BackoffMax: 200 * time.Millisecond, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
					if strings.HasSuffix(address, strconv.Itoa(ports[1])) {
						return replays(ctx, network, address)
					}
					return live(ctx, network, address)
				}},
			})
			require.NoError(t, err)
			defer s.Close()
			for life := range 6 {
				e := startEngine(t, wheel, bind(0), bind(1), 10_000, uint64(life))
				for range 20 {
					e.publish(200)
					time.Sleep(20 * time.Millisecond)
				}
				want := e.held()
				require.Eventually(t, func() bool {
					e.publish(1) // shows what is missing
					want = e.held()
					return h.equalsSoon(want)
				}, 2*time.Minute, 100*time.Millisecond, "life %d: %+v %+v", life, s.Status(), s.Stats())
				require.NotEqual(t, Blind, s.Status().State)
				e.publish(5000) // it is killed amid this
				e.kill()
			}
			stats := s.Stats()
			t.Logf("%+v", stats)
			require.Positive(t, stats.Restarts)
			require.Positive(t, stats.Replayed)
			require.Greater(t, stats.Batches, uint64(20_000))
			require.Greater(t, stats.Links[LinkLost], uint64(6))
		})
	}
}

func (h *held) equals(want map[Hash]int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Equal(h.index.held, want)
}

// equalsSoon gives what is on its way some time.
func (h *held) equalsSoon(want map[Hash]int) bool {
	for range 20 {
		if h.equals(want) {
			return true
		}
		time.Sleep(50 * time.Millisecond)
	}
	return false
}

func freePorts(t *testing.T) (ports [2]int) {
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports
}
