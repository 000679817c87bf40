package zmtp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/kvevents/zmtp/zmtptest"
)

const engine = "engine:5557"

// watch is a handler that writes down what it is told. It is read when all is quiet.
type watch struct {
	began    time.Time
	ups      []time.Duration
	downs    []time.Duration
	errs     []error
	messages []string
}

func (w *watch) Up() { w.ups = append(w.ups, time.Since(w.began)) }
func (w *watch) Down(err error) {
	w.downs, w.errs = append(w.downs, time.Since(w.began)), append(w.errs, err)
}
func (w *watch) Message(frames [][]byte) {
	w.messages = append(w.messages, string(bytes.Join(frames, []byte("|"))))
}

// subscribed runs a Sub against a network in memory and fake time.
func subscribed(t *testing.T, f func(t *testing.T, n *zmtptest.Network, w *watch)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &zmtptest.Network{}
		w := &watch{began: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		s := &Sub{Topic: "kv", Handler: w, Options: Options{Dial: n.Dial}}
		done := make(chan error, 1)
		go func() { done <- s.Connect(ctx, "tcp://"+engine) }()
		f(t, n, w)
		before := time.Now()
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.Equal(t, before, time.Now(), "it must end at once")
	})
}

// publish is a well-behaved publisher: it sends one message and then answers PINGs.
func publish(t *testing.T, p *zmtptest.Peer) {
	go func() {
		defer p.Close()
		if !accepted(t, p) {
			return
		}
		_ = p.Send([]byte("kv"), []byte("1"), []byte("hello"))
		_, _ = p.ReadMessage()
	}()
}

// accepted shakes hands and reads the subscription.
func accepted(t *testing.T, p *zmtptest.Peer) bool {
	if err := p.ShakeHands("PUB"); err != nil {
		return false
	}
	subscription, err := p.ReadMessage()
	if err != nil {
		return false
	}
	if string(subscription[0]) != "\x01kv" {
		t.Errorf("subscription %q", subscription)
	}
	return true
}

func TestSubConnectsBeforeThePublisherIsThere(t *testing.T) {
	subscribed(t, func(t *testing.T, n *zmtptest.Network, w *watch) {
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, w.ups)
		l := n.Listen(engine)
		p, err := l.Accept()
		require.NoError(t, err)
		publish(t, p)
		synctest.Wait()
		require.Less(t, w.ups[0], time.Minute+DefaultBackoffMax)
		require.Equal(t, []string{"kv|1|hello"}, w.messages)
	})
}

func TestSubWaitsLongerEachTimeAndAfterALongLifeShortly(t *testing.T) {
	subscribed(t, func(t *testing.T, n *zmtptest.Network, w *watch) {
		time.Sleep(time.Minute)
		synctest.Wait()
		wait := DefaultBackoffMin
		for i := range w.downs[1:] {
			require.ErrorIs(t, w.errs[i], syscall.ECONNREFUSED)
			took := w.downs[i+1] - w.downs[i]
			require.GreaterOrEqual(t, took, wait/2)
			require.LessOrEqual(t, took, wait)
			wait = min(2*wait, DefaultBackoffMax)
		}

		l := n.Listen(engine)
		live := func(life time.Duration) {
			p, err := l.Accept()
			require.NoError(t, err)
			publish(t, p)
			time.Sleep(life)
			p.Close()
			synctest.Wait()
		}
		reconnected := func() time.Duration {
			p, err := l.Accept()
			require.NoError(t, err)
			took := time.Since(w.began) - w.downs[len(w.downs)-1]
			p.Close()
			synctest.Wait()
			return took
		}
		live(DefaultBackoffMax - time.Second)
		require.GreaterOrEqual(t, reconnected(), DefaultBackoffMax/2)
		live(DefaultBackoffMax)
		require.LessOrEqual(t, reconnected(), DefaultBackoffMin)
	})
}

// script is what a peer does on its connection before it closes it.
type script func(p *zmtptest.Peer)

// once sends bytes.
func once(b []byte) script {
	return func(p *zmtptest.Peer) {
		if len(b) > 0 {
			_, _ = p.Write(b)
		}
	}
}

// sends sends bytes and stays.
func sends(bytes ...[]byte) script {
	return func(p *zmtptest.Peer) {
		for _, b := range bytes {
			_, _ = p.Write(b)
		}
		stay(p)
	}
}

// endless sends the same bytes until it cannot.
func endless(b []byte) script {
	return func(p *zmtptest.Peer) {
		for {
			if _, err := p.Write(b); err != nil {
				return
			}
		}
	}
}

// stay neither reads nor writes until the link is closed.
func stay(p *zmtptest.Peer) { <-p.Gone }

// drain reads and does not write.
func drain(p *zmtptest.Peer) { _, _ = io.Copy(io.Discard, p) }

// greets answers the greeting with bytes.
func greets(b []byte) script {
	return func(p *zmtptest.Peer) {
		_, _ = io.ReadFull(p, make([]byte, 64))
		sends(b)(p)
	}
}

// ready answers READY with bytes.
func ready(b []byte) script {
	return func(p *zmtptest.Peer) {
		_ = p.Greet(zmtptest.Greeting(1, "NULL"))
		_, _, _ = p.ReadFrame()
		sends(b)(p)
	}
}

// link follows a script once the subscription has come.
func link(then script) script {
	return func(p *zmtptest.Peer) {
		if p.ShakeHands("PUB") != nil {
			return
		}
		if _, err := p.ReadMessage(); err == nil {
			then(p)
		}
	}
}

func TestSubOutlivesWhateverAPeerDoes(t *testing.T) {
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = byte(rand.Uint32()) | 0x80 // reserved flags first of all
	}
	huge := func(flags byte, size uint64) []byte {
		return binary.BigEndian.AppendUint64([]byte{flags | zmtptest.Long}, size)
	}
	for _, test := range []struct {
		name   string
		script script
		want   error
	}{
		{"accepts and closes", once(nil), io.EOF},
		{"says nothing", stay, os.ErrDeadlineExceeded},
		{"greets byte by byte", func(p *zmtptest.Peer) {
			_, _ = io.ReadFull(p, make([]byte, 64))
			for _, b := range zmtptest.Greeting(1, "NULL") {
				select {
				case <-p.Gone:
					return
				case <-time.After(time.Second):
					_, _ = p.Write([]byte{b})
				}
			}
		}, os.ErrDeadlineExceeded},
		{"speaks HTTP", greets([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")), ErrProtocol},
		{"sends 01 00", greets([]byte{1, 0}), ErrProtocol},
		{"sends noise", greets(noise[:64]), ErrProtocol},
		{"is of version 2", greets([]byte("\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01\x02")), ErrProtocol},
		{"wants PLAIN", greets(zmtptest.Greeting(1, "PLAIN")), ErrProtocol},
		{"has a mechanism that begins with NULL", greets(zmtptest.Greeting(1, "NULLIFY")), ErrProtocol},
		{"closes within the greeting", func(p *zmtptest.Peer) {
			_, _ = io.ReadFull(p, make([]byte, 64))
			_, _ = p.Write(zmtptest.Greeting(1, "NULL")[:20])
		}, io.EOF},
		{"says nothing after the greeting", greets(zmtptest.Greeting(1, "NULL")), os.ErrDeadlineExceeded},
		{"is a router", ready(zmtptest.Ready("ROUTER")), ErrProtocol},
		{"says no type of socket", ready(zmtptest.Frame(zmtptest.Command, []byte("\x05READY"))), ErrProtocol},
		{"cuts a property's name", ready(zmtptest.Frame(zmtptest.Command, []byte("\x05READY\x0bSock"))), ErrProtocol},
		{"cuts a property's value", ready(zmtptest.Frame(zmtptest.Command, []byte("\x05READY\x0bSocket-Type\x7f\x00\x00\x03PUB"))), ErrProtocol},
		{"answers READY with ERROR", ready(zmtptest.Frame(zmtptest.Command, []byte("\x05ERROR\x06go off"))), ErrProtocol},
		{"answers READY with a message", ready(zmtptest.Frame(0, []byte("hello"))), ErrProtocol},
		{"declares a READY of 2^50 bytes", ready(huge(zmtptest.Command, 1<<50)), ErrTooLarge},
		{"declares a READY of 5000 bytes", ready(huge(zmtptest.Command, 5000)), ErrProtocol},

		{"closes after READY", link(once(nil)), io.EOF},
		{"declares a frame of 2^50 bytes", link(sends(huge(0, 1<<50))), ErrTooLarge},
		{"declares a frame of 2^64-1 bytes", link(sends(huge(0, 1<<64-1))), ErrTooLarge},
		{"declares a frame of 8 GiB and feeds it", link(sends(huge(0, 8<<30), noise, noise)), ErrTooLarge},
		{"sends a message of more than 32 MiB", link(endless(zmtptest.Frame(zmtptest.More, make([]byte, 5<<20)))), ErrTooLarge},
		{"sends frames of 64 KiB without end", link(endless(zmtptest.Frame(zmtptest.More, noise[:64<<10]))), ErrTooLarge},
		{"sends empty frames without end", link(endless(zmtptest.Frame(zmtptest.More, nil))), ErrTooLarge},
		{"sends noise after READY", link(sends(noise)), ErrProtocol},
		{"sets reserved flags", link(sends([]byte{8, 0})), ErrProtocol},
		{"sends a command with more to come", link(sends([]byte{zmtptest.Command | zmtptest.More, 0})), ErrProtocol},
		{"sends a large command", link(sends(zmtptest.Frame(zmtptest.Command, noise[:5000]))), ErrProtocol},
		{"sends a PING with a large context", link(sends(zmtptest.Frame(zmtptest.Command, append([]byte("\x04PING"), noise[:100]...)))), ErrProtocol},
		{"sends ERROR", link(sends(zmtptest.Frame(zmtptest.Command, []byte("\x05ERROR\x03bye")))), ErrProtocol},
		{"closes within a header", link(once(huge(0, 100)[:5])), io.EOF},
		{"closes within a frame", link(once(zmtptest.Frame(0, noise[:100])[:50])), io.EOF},
		{"freezes", link(stay), os.ErrDeadlineExceeded}, // PING cannot be written
		{"reads but never sends", link(drain), ErrSilent},
		{"stops within a large frame", link(func(p *zmtptest.Peer) {
			_, _ = p.Write(zmtptest.Frame(0, noise)[:500_000])
			_, _ = io.Copy(io.Discard, p)
		}), ErrSilent},
		{"sends PINGs and reads nothing", link(endless(zmtptest.Frame(zmtptest.Command, []byte("\x04PING\x00\x00abc")))), os.ErrDeadlineExceeded},
	} {
		t.Run(test.name, func(t *testing.T) {
			subscribed(t, func(t *testing.T, n *zmtptest.Network, w *watch) {
				l := n.Listen(engine)
				synctest.Wait()
				began := len(w.errs)
				p, err := l.Accept()
				require.NoError(t, err)
				go func() {
					defer p.Close()
					test.script(p)
				}()
				next, err := l.Accept()
				require.NoError(t, err)
				got := w.errs[began]
				if errors.Is(got, io.ErrClosedPipe) { // how a pipe says it to who was not reading
					got = io.EOF
				}
				require.ErrorIs(t, got, test.want)
				require.LessOrEqual(t, w.downs[began], DefaultDialTimeout+DefaultDeadAfter+DefaultPingAfter)
				publish(t, next)
				synctest.Wait()
				require.Equal(t, []string{"kv|1|hello"}, w.messages)
			})
		})
	}
}

func TestSubConnectsNoFasterToAPeerThatAcceptsAndCloses(t *testing.T) {
	subscribed(t, func(t *testing.T, n *zmtptest.Network, _ *watch) {
		l := n.Listen(engine)
		connects := 0
		for end := time.Now().Add(time.Minute); time.Now().Before(end); connects++ {
			p, err := l.Accept()
			require.NoError(t, err)
			p.Close()
		}
		require.Less(t, connects, 35)
	})
}

func TestSubStaysWithAQuietPublisherThatAnswersPings(t *testing.T) {
	subscribed(t, func(t *testing.T, n *zmtptest.Network, w *watch) {
		p, err := n.Listen(engine).Accept()
		require.NoError(t, err)
		publish(t, p)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Len(t, w.ups, 1)
		require.Equal(t, len(w.downs), strings.Count(errorsOf(w), "refused"))
	})
}

func TestSubStaysWithAQuietPublisherThatKnowsNoPing(t *testing.T) {
	subscribed(t, func(t *testing.T, n *zmtptest.Network, w *watch) {
		p, err := n.Listen(engine).Accept()
		require.NoError(t, err)
		heard := make(chan int, 1)
		go func() {
			_ = p.Greet(zmtptest.Greeting(0, "NULL"))
			_, _, _ = p.ReadFrame()
			_, _ = p.Write(zmtptest.Ready("PUB"))
			_, _ = p.ReadMessage()
			b, _ := io.ReadAll(p)
			heard <- len(b)
		}()
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Len(t, w.ups, 1)
		p.Close()
	})
}

func TestSubAnswersPingsWithTheirContext(t *testing.T) {
	subscribed(t, func(t *testing.T, n *zmtptest.Network, _ *watch) {
		p, err := n.Listen(engine).Accept()
		require.NoError(t, err)
		require.True(t, accepted(t, p))
		for _, context := range []string{"", "a", "0123456789abcdef"} {
			_, err := p.Write(zmtptest.Frame(zmtptest.Command, []byte("\x04PING\x00\x64"+context)))
			require.NoError(t, err)
			flags, body, err := p.ReadFrame()
			require.NoError(t, err)
			require.Equal(t, byte(zmtptest.Command), flags)
			require.Equal(t, "\x04PONG"+context, string(body))
		}
		p.Close()
	})
}

func TestSilenceIsNoticedInTimeAndTheLinkIsMadeAnew(t *testing.T) {
	subscribed(t, func(t *testing.T, n *zmtptest.Network, w *watch) {
		l := n.Listen(engine)
		p, err := l.Accept()
		require.NoError(t, err)
		require.True(t, accepted(t, p))
		began := time.Since(w.began)
		go drain(p)
		next, err := l.Accept()
		require.NoError(t, err)
		down := w.downs[len(w.downs)-1]
		require.Equal(t, began+DefaultDeadAfter, down)
		publish(t, next)
		synctest.Wait()
		require.Len(t, w.ups, 2)
		p.Close()
	})
}

func TestSubEndsAtOnceInWhateverItDoes(t *testing.T) {
	for name, s := range map[string]script{
		"greeting":        stay,
		"handshake":       greets(zmtptest.Greeting(1, "NULL")),
		"idle":            link(drain),
		"within a frame":  link(sends(zmtptest.Frame(0, make([]byte, 1000))[:500])),
		"at a full peer":  link(endless(zmtptest.Frame(zmtptest.Command, []byte("\x04PING\x00\x00")))),
		"after a failure": once(nil),
	} {
		t.Run(name, func(t *testing.T) {
			subscribed(t, func(t *testing.T, n *zmtptest.Network, _ *watch) {
				p, err := n.Listen(engine).Accept()
				require.NoError(t, err)
				go func() {
					defer p.Close()
					s(p)
				}()
				synctest.Wait()
			})
		})
	}
}

func TestSubDoesNotBeginWithWhatItCannotDo(t *testing.T) {
	s := &Sub{Handler: &watch{}}
	require.ErrorContains(t, s.Connect(t.Context(), "http://engine:5557"), "want tcp://")
	require.ErrorContains(t, s.Bind(t.Context(), "tcp://engine"), "no port")
	s.Topic = strings.Repeat("x", maxTopic+1)
	require.ErrorContains(t, s.Connect(t.Context(), "tcp://engine:5557"), "topic has 255 bytes")
	require.ErrorContains(t, s.Bind(t.Context(), "tcp://*:5557"), "topic has 255 bytes")
}

func errorsOf(w *watch) string {
	var b strings.Builder
	for _, err := range w.errs {
		b.WriteString(err.Error() + "\n")
	}
	return b.String()
}
