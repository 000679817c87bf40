package zmtp

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/kvevents/zmtp/zmtptest"
)

// source is a connection that gives out bytes in pieces and swallows what is written.
type source struct {
	net.Conn
	data   []byte
	at     int
	piece  int
	repeat bool
}

func (s *source) Read(p []byte) (int, error) {
	if s.at == len(s.data) {
		if !s.repeat {
			return 0, io.EOF
		}
		s.at = 0
	}
	n := copy(p[:min(len(p), s.piece)], s.data[s.at:])
	s.at += n
	return n, nil
}

func (s *source) Write(p []byte) (int, error)      { return len(p), nil }
func (s *source) SetReadDeadline(time.Time) error  { return nil }
func (s *source) SetWriteDeadline(time.Time) error { return nil }

// reader returns a link past its handshake.
func reader(s *source) *conn {
	o := Options{}.withDefaults()
	c := newConn(s, &o)
	c.patience, c.silence = o.PingAfter, c.heartbeat
	return c
}

func message(frames ...[]byte) []byte {
	var b bytes.Buffer
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = zmtptest.More
		}
		b.Write(zmtptest.Frame(flags, f))
	}
	return b.Bytes()
}

func TestMessagesArriveWholeHoweverTheyAreCut(t *testing.T) {
	large := bytes.Repeat([]byte("0123456789abcdef"), 10<<10)
	pong := zmtptest.Frame(zmtptest.Command, []byte("\x04PONG"))
	var wire []byte
	wire = append(wire, message([]byte("topic"), []byte("12345678"), []byte("first"))...)
	wire = append(wire, pong...)
	wire = append(wire, message(nil, nil, nil)...)
	wire = append(wire, message(large, nil, large[:1000])...)
	wire = append(wire, message([]byte("last"))...)
	// A command may come between the frames of a message.
	wire = append(wire, zmtptest.Frame(zmtptest.More, []byte("a"))...)
	wire = append(wire, pong...)
	wire = append(wire, zmtptest.Frame(0, []byte("b"))...)
	for _, piece := range []int{1, 2, 3, 7, 100, 1000, readBuffer, 1 << 20} {
		c := reader(&source{data: wire, piece: piece})
		for _, want := range [][][]byte{
			{[]byte("topic"), []byte("12345678"), []byte("first")},
			{{}, {}, {}},
			{large, {}, large[:1000]},
			{[]byte("last")},
			{[]byte("a"), []byte("b")},
		} {
			got, err := c.receive()
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		_, err := c.receive()
		require.ErrorIs(t, err, io.EOF)
	}
}

func TestMessageCostsNoAllocation(t *testing.T) {
	wire := message([]byte("kv-events"), []byte("12345678"), make([]byte, 600))
	c := reader(&source{data: wire, piece: 64 << 10, repeat: true})
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		frames, err := c.receive()
		if err != nil || len(frames) != 3 {
			panic("no message")
		}
	}))
}

func TestBufferFollowsWhatCameNotWhatIsDeclared(t *testing.T) {
	wire := zmtptest.Frame(0, make([]byte, 30<<20))
	for _, came := range []int{0, 10 << 10, 100 << 10, 1 << 20} {
		c := reader(&source{data: wire[:9+came], piece: 64 << 10})
		_, err := c.receive()
		require.ErrorIs(t, err, io.EOF)
		require.LessOrEqual(t, len(c.buf), max(readBuffer, 2*(9+came)), "after %d bytes", came)
	}
}

func TestBufferShrinksAfterALargeMessage(t *testing.T) {
	large, little := message(make([]byte, 5<<20)), message([]byte("little"))
	c := reader(&source{data: append(large, bytes.Repeat(little, 2*shrinkAfter)...), piece: 64 << 10})
	_, err := c.receive()
	require.NoError(t, err)
	require.Greater(t, len(c.buf), 5<<20)
	for range 2 * shrinkAfter {
		frames, err := c.receive()
		require.NoError(t, err)
		require.Equal(t, "little", string(frames[0]))
	}
	require.Len(t, c.buf, readBuffer)
}

func TestLimitsAreExact(t *testing.T) {
	o := Options{MaxMessage: 100_000}.withDefaults()
	sizes := func(sizes ...int) []byte {
		frames := make([][]byte, len(sizes))
		for i, n := range sizes {
			frames[i] = make([]byte, n)
		}
		return message(frames...)
	}
	for _, test := range []struct {
		name string
		wire []byte
		want error
	}{
		{"a frame of the limit", sizes(100_000), nil},
		{"a frame of more", sizes(100_001), ErrTooLarge},
		{"frames of the limit", sizes(50_000, 0, 50_000), nil},
		{"frames of more", sizes(50_000, 1, 50_000), ErrTooLarge},
		{"as many frames as are let", sizes(1, 1, 1, 1, 1, 1, 1, 1), nil},
		{"one frame more", sizes(1, 1, 1, 1, 1, 1, 1, 1, 1), ErrTooLarge},
		{"the longest command", append(zmtptest.Frame(zmtptest.Command, make([]byte, maxCommand)), sizes(1)...), nil},
		{"a longer command", zmtptest.Frame(zmtptest.Command, make([]byte, maxCommand+1)), ErrProtocol},
		{"the longest PING", append(zmtptest.Frame(zmtptest.Command, append([]byte("\x04PING"), make([]byte, 18)...)), sizes(1)...), nil},
		{"a longer PING", zmtptest.Frame(zmtptest.Command, append([]byte("\x04PING"), make([]byte, 19)...)), ErrProtocol},
		{"a PING without time to live", zmtptest.Frame(zmtptest.Command, []byte("\x04PING\x00")), ErrProtocol},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newConn(&source{data: test.wire, piece: 1 << 20}, &o)
			c.patience, c.silence = o.PingAfter, c.heartbeat
			_, err := c.receive()
			require.ErrorIs(t, err, test.want)
		})
	}
}

func FuzzReceive(f *testing.F) {
	f.Add(message([]byte("kv-events"), []byte("12345678"), []byte("payload")), uint8(3))
	f.Add([]byte{2, 0, 4, 0, 0, 0, 0, 0, 0, 0}, uint8(1))
	f.Add(zmtptest.Frame(zmtptest.Command, []byte("\x04PING\x00\x00abc")), uint8(7))
	o := Options{MaxMessage: 1 << 20}.withDefaults()
	f.Fuzz(func(t *testing.T, wire []byte, piece uint8) {
		c := newConn(&source{data: wire, piece: int(piece) + 1}, &o)
		c.patience, c.silence = o.PingAfter, c.heartbeat
		for {
			frames, err := c.receive()
			if err != nil {
				break
			}
			if len(frames) == 0 || len(frames) > maxFrames {
				t.Fatalf("%d frames", len(frames))
			}
		}
		if len(c.buf) > max(readBuffer, 2*len(wire)) {
			t.Fatalf("buffer of %d bytes for %d", len(c.buf), len(wire))
		}
	})
}

func BenchmarkReceive(b *testing.B) {
	wire := message([]byte("kv-events"), []byte("12345678"), make([]byte, 300))
	c := reader(&source{data: bytes.Repeat(wire, 200), piece: 64 << 10, repeat: true})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.receive(); err != nil {
			b.Fatal(err)
		}
	}
}
