package kvevents

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/kvevents/zmtp/zmtptest"
)

// idlePublisher answers PINGs and publishes nothing.
func idlePublisher(l net.Listener) {
	for {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			p := &zmtptest.Peer{Conn: nc}
			defer p.Close()
			if p.ShakeHands("PUB") == nil {
				_, _ = p.ReadMessage()
				_, _ = p.ReadMessage()
			}
		}()
	}
}

func processorTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestIdleEnginesCostNextToNothing measures a hundred subscribers, publishers included,
// which run in the same process: 1 % of a core for all. Not every machine keeps time well
// enough to ask it that each time, so it is for LONG=1.
func TestIdleEnginesCostNextToNothing(t *testing.T) {
	span := 200 * time.Millisecond
	if os.Getenv("LONG") == "1" {
		span = 20 * time.Second
	}
	dir := t.TempDir()
	var subscribers []*Subscriber
	for i := range 100 {
		path := filepath.Join(dir, strconv.Itoa(i))
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		defer l.Close()
		go idlePublisher(l)
		s, err := Subscribe(Config{Endpoint: "ipc://" + path, Handler: &held{index: index{held: map[Hash]int{}}}})
		require.NoError(t, err)
		defer s.Close()
		subscribers = append(subscribers, s)
	}
	require.Eventually(t, func() bool {
		for _, s := range subscribers {
			if s.Status().State != Degraded {
				return false
			}
		}
		return true
	}, 10*time.Second, time.Millisecond)
	before := processorTime(t)
	time.Sleep(span)
	spent := processorTime(t) - before
	t.Logf("%d endpoints took %s of %s: %.2f %% of a core", len(subscribers), spent, span, 100*float64(spent)/float64(span))
	if span > time.Second {
		require.Less(t, spent, span/100)
	}
	for _, s := range subscribers {
		require.Equal(t, Degraded, s.Status().State)
	}
}
