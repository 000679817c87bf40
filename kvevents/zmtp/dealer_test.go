package zmtp

import (
	"bytes"
	"context"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/kvevents/zmtp/zmtptest"
)

func TestDealerAsksAndHears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &zmtptest.Network{}
		l := n.Listen(engine)
		long := bytes.Repeat([]byte("x"), 1000)
		asked := make(chan [][]byte, 1)
		go func() {
			p, err := l.Accept()
			if err != nil || p.ShakeHands("ROUTER") != nil {
				return
			}
			defer p.Close()
			request, _ := p.ReadMessage()
			asked <- request
			_ = p.Send(nil, []byte("1"), long)
			time.Sleep(time.Second)
			_ = p.Send(nil, []byte("2"), nil)
			stay(p)
		}()
		d, err := DialDealer(t.Context(), "tcp://"+engine, Options{Dial: n.Dial})
		require.NoError(t, err)
		defer d.Close()
		require.NoError(t, d.Send(nil, []byte("12345678"), long))
		require.Equal(t, [][]byte{{}, []byte("12345678"), long}, <-asked)

		got, err := d.Receive(2 * time.Second)
		require.NoError(t, err)
		require.Equal(t, [][]byte{{}, []byte("1"), long}, got)
		got, err = d.Receive(2 * time.Second)
		require.NoError(t, err)
		require.Equal(t, [][]byte{{}, []byte("2"), {}}, got)

		before := time.Now()
		_, err = d.Receive(2 * time.Second)
		require.ErrorIs(t, err, ErrSilent)
		require.Equal(t, 2*time.Second, time.Since(before))
	})
}

func TestDealerTellsWhatIsWrongWithAPeer(t *testing.T) {
	for _, test := range []struct {
		name   string
		script script
		want   error
	}{
		{"a publisher", func(p *zmtptest.Peer) { _ = p.ShakeHands("PUB") }, ErrProtocol},
		{"HTTP", greets([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")), ErrProtocol},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &zmtptest.Network{}
				l := n.Listen(engine)
				go func() {
					if p, err := l.Accept(); err == nil {
						test.script(p)
						p.Close()
					}
				}()
				_, err := DialDealer(t.Context(), "tcp://"+engine, Options{Dial: n.Dial})
				require.ErrorIs(t, err, test.want)
			})
		})
	}
}

func TestDealerEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &zmtptest.Network{}
		_, err := DialDealer(t.Context(), "tcp://"+engine, Options{Dial: n.Dial})
		require.ErrorIs(t, err, syscall.ECONNREFUSED)

		l := n.Listen(engine)
		go func() {
			if p, err := l.Accept(); err == nil && p.ShakeHands("ROUTER") == nil {
				drain(p)
			}
		}()
		ctx, cancel := context.WithCancel(t.Context())
		d, err := DialDealer(ctx, "tcp://"+engine, Options{Dial: n.Dial})
		require.NoError(t, err)
		time.AfterFunc(time.Second, cancel)
		before := time.Now()
		_, err = d.Receive(time.Minute)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, time.Second, time.Since(before))
	})
}
