package zmtp

import (
	"cmp"
	"context"
	"net"
	"time"
)

// The defaults of [Options].
const (
	DefaultDialTimeout      = 3 * time.Second
	DefaultHandshakeTimeout = 3 * time.Second
	DefaultPingAfter        = 2 * time.Second
	DefaultDeadAfter        = 6 * time.Second
	DefaultBackoffMin       = 100 * time.Millisecond
	DefaultBackoffMax       = 5 * time.Second
	DefaultMaxMessage       = 32 << 20
)

// What no option changes.
const (
	readBuffer  = 32 << 10 // bytes; what an idle link holds
	maxFrames   = 8        // in a message
	maxCommand  = 4 << 10  // bytes
	maxContext  = 16       // bytes of a PING's context
	maxTopic    = 254      // bytes, so that a subscription is a short frame
	longFrame   = 9        // bytes of the longest frame header
	shrinkAfter = 64       // small messages, until a buffer grown for a large one is let go
)

// Options are the limits of links. Zero values mean the defaults.
type Options struct {
	// DialTimeout limits how long connecting may take.
	DialTimeout time.Duration

	// HandshakeTimeout limits how long the handshake may take as a whole, and later
	// how long the peer may take to read what it is sent.
	HandshakeTimeout time.Duration

	// PingAfter is the silence after which a PING is sent.
	PingAfter time.Duration

	// DeadAfter is the silence after which a link is given up.
	DeadAfter time.Duration

	// BackoffMin and BackoffMax are the first and the longest wait before connecting
	// again. The wait doubles each time, less up to a half at random. It starts anew
	// after a link that lived for BackoffMax.
	BackoffMin, BackoffMax time.Duration

	// MaxMessage is the size of the largest message let in, in bytes over all frames.
	MaxMessage int

	// Dial makes connections. Nil means those of the net package, with keep-alive
	// probes that notice a lost host within about ten seconds.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// keepAlive notices what is gone for peers that do not know PING.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}

func (o Options) withDefaults() Options {
	o.DialTimeout = cmp.Or(o.DialTimeout, DefaultDialTimeout)
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, DefaultHandshakeTimeout)
	o.PingAfter = cmp.Or(o.PingAfter, DefaultPingAfter)
	o.DeadAfter = cmp.Or(o.DeadAfter, DefaultDeadAfter)
	o.BackoffMin = cmp.Or(o.BackoffMin, DefaultBackoffMin)
	o.BackoffMax = cmp.Or(o.BackoffMax, DefaultBackoffMax)
	o.MaxMessage = cmp.Or(o.MaxMessage, DefaultMaxMessage)
	if o.Dial == nil {
		dialer := net.Dialer{KeepAliveConfig: keepAlive}
		o.Dial = dialer.DialContext
	}
	return o
}
