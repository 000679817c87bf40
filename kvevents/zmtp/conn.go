package zmtp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// The flags of a frame.
const (
	flagMore    = 1 << 0
	flagLong    = 1 << 1
	flagCommand = 1 << 2
)

// conn is a link and what has been read of it. One goroutine uses it; only closing it
// is for others too.
type conn struct {
	net.Conn
	o *Options

	buf   []byte
	r, w  int // buf[r:w] has come and is not used up
	taken int // bytes from r on that the last message holds
	small int // messages in a row that would have fitted a new buffer

	bounds [maxFrames]bound
	frames [maxFrames][]byte
	out    [64]byte // for what is written in answer

	// patience is how long to wait for bytes before calling silence. 0 leaves
	// deadlines alone: the handshake has one for all of it.
	patience time.Duration
	silence  func() error
	heard    time.Time // when bytes last came
	pings    bool      // the peer answers them
}

// bound is where a frame lies, in bytes from conn.r.
type bound struct{ from, to int }

func newConn(nc net.Conn, o *Options) *conn {
	return &conn{Conn: nc, o: o, buf: make([]byte, readBuffer)}
}

// dial connects to an endpoint, shakes hands, and has the link closed when ctx ends.
// The caller calls hangUp.
func dial(ctx context.Context, network, address string, o *Options, k kind) (c *conn, hangUp func(), err error) {
	dialing, cancel := context.WithTimeout(ctx, o.DialTimeout)
	defer cancel()
	nc, err := o.Dial(dialing, network, address)
	if err != nil {
		return nil, nil, err
	}
	return open(ctx, nc, o, k)
}

// open shakes hands on a connection.
func open(ctx context.Context, nc net.Conn, o *Options, k kind) (c *conn, hangUp func(), err error) {
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	hangUp = func() {
		stop()
		nc.Close()
	}
	c = newConn(nc, o)
	if err := c.shakeHands(k); err != nil {
		hangUp()
		return nil, nil, err
	}
	return c, hangUp, nil
}

// receive returns the frames of the next message. They are valid until the next call.
func (c *conn) receive() ([][]byte, error) {
	c.release()
	n, at, size := 0, 0, 0
	for {
		h, err := c.header(at)
		if err != nil {
			return nil, err
		}
		body := at + h.bytes
		if h.flags&flagCommand != 0 {
			if err := c.command(body, h.size); err != nil {
				return nil, err
			}
			at = body + h.size
			if n == 0 {
				c.r += at
				at = 0
			}
			continue
		}
		size += h.size
		if size > c.o.MaxMessage || at > c.limit() {
			return nil, fmt.Errorf("%w of %d bytes", ErrTooLarge, c.o.MaxMessage)
		}
		if n == maxFrames {
			return nil, fmt.Errorf("%w of %d frames", ErrTooLarge, maxFrames)
		}
		at = body + h.size
		if err := c.fill(at); err != nil {
			return nil, err
		}
		c.bounds[n] = bound{body, at}
		n++
		if h.flags&flagMore == 0 {
			return c.take(n, at), nil
		}
	}
}

// take makes the message of the first n bounds the last one.
func (c *conn) take(n, bytes int) [][]byte {
	c.taken = bytes
	for i, b := range c.bounds[:n] {
		c.frames[i] = c.buf[c.r+b.from : c.r+b.to : c.r+b.to]
	}
	return c.frames[:n]
}

// release uses up the last message. A buffer that grew for a large message is let go
// once no more of that size come.
func (c *conn) release() {
	if c.taken > readBuffer/2 {
		c.small = 0
	} else {
		c.small++
	}
	c.r += c.taken
	c.taken = 0
	if c.small >= shrinkAfter {
		c.shrink()
	}
}

func (c *conn) shrink() {
	if len(c.buf) == readBuffer || c.w-c.r > readBuffer/2 {
		return
	}
	buf := make([]byte, readBuffer)
	c.w = copy(buf, c.buf[c.r:c.w])
	c.r, c.buf = 0, buf
}

type header struct {
	flags byte
	size  int // of the body
	bytes int // of the header
}

// header reads the header of the frame that begins so many bytes after r.
func (c *conn) header(at int) (header, error) {
	if err := c.fill(at + 2); err != nil {
		return header{}, err
	}
	b := c.buf[c.r+at:]
	h := header{flags: b[0], size: int(b[1]), bytes: 2}
	if h.flags&^(flagMore|flagLong|flagCommand) != 0 || h.flags&flagCommand != 0 && h.flags&flagMore != 0 {
		return header{}, fmt.Errorf("%w: frame with flags %#x", ErrProtocol, h.flags)
	}
	if h.flags&flagLong != 0 {
		if err := c.fill(at + longFrame); err != nil {
			return header{}, err
		}
		size := binary.BigEndian.Uint64(c.buf[c.r+at+1:])
		if size > uint64(c.o.MaxMessage) { //nolint:gosec // a limit is not negative
			return header{}, fmt.Errorf("%w of %d bytes: a frame has %d", ErrTooLarge, c.o.MaxMessage, size)
		}
		h.size, h.bytes = int(size), longFrame //nolint:gosec // under the limit
	}
	if h.flags&flagCommand != 0 && h.size > maxCommand {
		return header{}, fmt.Errorf("%w: command of %d bytes", ErrProtocol, h.size)
	}
	return h, nil
}

// limit is the size of the largest buffer: a message with its headers, and some commands
// between its frames.
func (c *conn) limit() int { return c.o.MaxMessage + maxFrames*longFrame + 2*maxCommand }

// fill waits until so many bytes after r have come.
func (c *conn) fill(n int) error {
	for c.w-c.r < n {
		if err := c.makeRoom(); err != nil {
			return err
		}
		if err := c.read(); err != nil {
			return err
		}
	}
	return nil
}

// makeRoom makes room to read into. The buffer doubles only when it is full of a message.
func (c *conn) makeRoom() error {
	const little = 4 << 10
	if c.r == c.w {
		c.r, c.w = 0, 0
	}
	if c.r > 0 && len(c.buf)-c.w < little {
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	if c.w < len(c.buf) {
		return nil
	}
	if len(c.buf) >= c.limit() {
		return fmt.Errorf("%w of %d bytes with its headers", ErrTooLarge, c.o.MaxMessage)
	}
	buf := make([]byte, min(2*len(c.buf), c.limit()))
	copy(buf, c.buf[:c.w])
	c.buf = buf
	return nil
}

// read waits for bytes.
func (c *conn) read() error {
	for {
		if c.patience > 0 {
			if err := c.SetReadDeadline(time.Now().Add(c.patience)); err != nil {
				return err
			}
		}
		n, err := c.Read(c.buf[c.w:])
		if n > 0 {
			c.w += n
			c.heard = time.Now()
			return nil // an error comes again
		}
		if c.patience > 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			err = c.silence()
		}
		if err != nil {
			return err
		}
	}
}

// write sends bytes; a peer that does not read them in time loses the link.
func (c *conn) write(b []byte) error {
	if c.patience > 0 {
		if err := c.SetWriteDeadline(time.Now().Add(c.o.HandshakeTimeout)); err != nil {
			return err
		}
	}
	_, err := c.Write(b)
	return err
}

var (
	ping     = []byte("\x04\x07\x04PING\x00\x00") // no time to live, no context
	pingName = []byte("\x04PING")
	pongName = []byte("\x04PONG")
	errName  = []byte("\x05ERROR")
)

// heartbeat answers silence: with PING first, then by giving the link up. Peers of
// ZMTP 3.0 may know no PING: those are asked only once they have sent one themselves.
func (c *conn) heartbeat() error {
	if c.r == c.w {
		c.shrink()
	}
	if !c.pings {
		return nil
	}
	if silent := time.Since(c.heard); silent >= c.o.DeadAfter {
		return fmt.Errorf("%w for %s", ErrSilent, silent.Round(time.Second))
	}
	return c.write(ping)
}

// command reads and obeys the command whose body begins at an offset from r. Unknown
// ones have no meaning for us.
func (c *conn) command(from, size int) error {
	if err := c.fill(from + size); err != nil {
		return err
	}
	body := c.buf[c.r+from : c.r+from+size]
	switch {
	case bytes.HasPrefix(body, pingName):
		return c.pong(body[len(pingName):])
	case bytes.HasPrefix(body, pongName):
		c.pings = true
	case bytes.HasPrefix(body, errName):
		return fmt.Errorf("%w: it says %q", ErrProtocol, body[len(errName):min(len(body), 64)])
	}
	return nil
}

// pong answers a PING, which carries a time to live and a context to send back.
func (c *conn) pong(ping []byte) error {
	if len(ping) < 2 || len(ping) > 2+maxContext {
		return fmt.Errorf("%w: PING of %d bytes", ErrProtocol, len(ping))
	}
	c.pings = true
	echo := ping[2:]
	b := append(c.out[:0], flagCommand, byte(len(pongName)+len(echo))) //nolint:gosec // 21 at most
	b = append(b, pongName...)
	b = append(b, echo...)
	return c.write(b)
}
