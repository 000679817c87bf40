package zmtp

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"
)

// Dealer is a link to a router socket, for one conversation. One goroutine uses it.
type Dealer struct {
	conn   *conn
	hangUp func()
	ctx    context.Context // the link's life
}

// DialDealer connects to a router socket. The link ends when it is closed or ctx ends.
func DialDealer(ctx context.Context, endpoint string, o Options) (*Dealer, error) {
	network, address, err := ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	o = o.withDefaults()
	c, hangUp, err := dial(ctx, network, address, &o, dealer)
	if err != nil {
		return nil, err
	}
	return &Dealer{conn: c, hangUp: hangUp, ctx: ctx}, nil
}

// Send sends a message.
func (d *Dealer) Send(frames ...[]byte) error {
	var b []byte
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		if len(f) > 255 {
			b = binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(len(f)))
		} else {
			b = append(b, flags, byte(len(f))) //nolint:gosec // under 256
		}
		b = append(b, f...)
	}
	d.conn.patience, d.conn.silence = d.conn.o.HandshakeTimeout, d.tooLong
	return d.conn.write(b)
}

// Receive returns the frames of the next message, which are valid until the next call. It
// fails with [ErrSilent] if nothing comes for so long.
func (d *Dealer) Receive(patience time.Duration) ([][]byte, error) {
	d.conn.patience, d.conn.silence = patience, d.tooLong
	frames, err := d.conn.receive()
	if err != nil && d.ctx.Err() != nil {
		return nil, d.ctx.Err()
	}
	return frames, err
}

func (d *Dealer) tooLong() error {
	return fmt.Errorf("%w for %s", ErrSilent, d.conn.patience)
}

// Close ends the link.
func (d *Dealer) Close() { d.hangUp() }
