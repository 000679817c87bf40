package zmtp

import (
	"bytes"
	"context"
	"encoding/binary"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/require"
)

// brisk makes whatever goes wrong with heartbeats show at once.
var brisk = Options{PingAfter: 20 * time.Millisecond, DeadAfter: time.Minute, BackoffMin: time.Millisecond}

// tape is a handler that keeps what it is told.
type tape struct {
	mu      sync.Mutex
	ups     int
	downs   []error
	numbers []uint64
	mangled int
}

func (h *tape) Up() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ups++
}

func (h *tape) Down(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.downs = append(h.downs, err)
}

func (h *tape) Message(frames [][]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := binary.BigEndian.Uint64(frames[1])
	h.numbers = append(h.numbers, n)
	if len(frames) != 3 || string(frames[0]) != "kv" || len(bytes.Trim(frames[2], string([]byte{byte(n)}))) > 0 {
		h.mangled++
	}
}

// last is the number of the last message, -1 if none has come.
func (h *tape) last() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.numbers) == 0 {
		return -1
	}
	return int(h.numbers[len(h.numbers)-1])
}

// check says that messages came whole and in order.
func (h *tape) check(t *testing.T) {
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Zero(t, h.mangled)
	for i := 1; i < len(h.numbers); i++ {
		require.Equal(t, h.numbers[i-1]+1, h.numbers[i])
	}
}

// listen runs a Sub until the test ends.
func listen(t *testing.T, h Handler, run func(ctx context.Context, s *Sub) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = run(ctx, &Sub{Topic: "kv", Handler: h, Options: brisk})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func connecting(endpoint string) func(context.Context, *Sub) error {
	return func(ctx context.Context, s *Sub) error { return s.Connect(ctx, endpoint) }
}

func accepting(endpoint string) func(context.Context, *Sub) error {
	return func(ctx context.Context, s *Sub) error { return s.Bind(ctx, endpoint) }
}

const within = 30 * time.Second

func TestGoZeroMQPublisher(t *testing.T) {
	for _, binds := range []string{"publisher", "subscriber"} {
		t.Run(binds+" binds", func(t *testing.T) {
			pub := zmq4.NewPub(t.Context())
			defer pub.Close()
			h := &tape{}
			if binds == "publisher" {
				require.NoError(t, pub.Listen("tcp://127.0.0.1:0"))
				listen(t, h, connecting("tcp://"+pub.Addr().String()))
			} else {
				endpoint := "ipc://" + filepath.Join(t.TempDir(), "sub")
				listen(t, h, accepting(endpoint))
				require.Eventually(t, func() bool { return pub.Dial(endpoint) == nil }, within, time.Millisecond)
			}
			n := uint64(0)
			send := func(size int) {
				number := binary.BigEndian.AppendUint64(nil, n)
				require.NoError(t, pub.Send(zmq4.NewMsgFrom([]byte("kv"), number, bytes.Repeat([]byte{byte(n)}, size))))
				require.NoError(t, pub.Send(zmq4.NewMsgFrom([]byte("other"), number, nil)))
				n++
			}
			for h.last() < 0 { // until the subscription has arrived
				send(10)
				time.Sleep(time.Millisecond)
			}
			for _, size := range []int{0, 1, 200, 300, 70_000, 1 << 20} {
				send(size)
			}
			require.Eventually(t, func() bool { return h.last() == int(n)-1 }, within, time.Millisecond)
			h.check(t)
			require.Equal(t, 1, h.ups)
		})
	}
}

func TestGoZeroMQRouter(t *testing.T) {
	router := zmq4.NewRouter(t.Context())
	defer router.Close()
	require.NoError(t, router.Listen("tcp://127.0.0.1:0"))
	go func() {
		for {
			m, err := router.Recv()
			if err != nil {
				return
			}
			_ = router.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, m.Frames[2], []byte("first")))
			_ = router.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, m.Frames[2], make([]byte, 1<<20)))
		}
	}()
	d, err := DialDealer(t.Context(), "tcp://"+router.Addr().String(), Options{})
	require.NoError(t, err)
	defer d.Close()
	require.NoError(t, d.Send(nil, []byte("12345678")))
	got, err := d.Receive(within)
	require.NoError(t, err)
	require.Equal(t, [][]byte{{}, []byte("12345678"), []byte("first")}, got)
	got, err = d.Receive(within)
	require.NoError(t, err)
	require.Len(t, got[2], 1<<20)
}
