package zmtp

import (
	"context"
	"fmt"
	"time"
)

// Handler is told what happens on the links of a [Sub], one call at a time.
type Handler interface {
	// Up says that a link to a publisher is there and the subscription sent. What
	// the publisher sends until it has read the subscription is lost.
	Up()

	// Message brings a message. The frames are valid until it returns.
	Message(frames [][]byte)

	// Down says that the link is gone, or that one could not be made.
	Down(err error)
}

// Sub is a subscriber's socket.
type Sub struct {
	Topic   string // what messages begin with; empty is all
	Handler Handler
	Options Options
}

// Connect connects to a publisher, and again whenever the link is lost, until ctx ends.
func (s *Sub) Connect(ctx context.Context, endpoint string) error {
	network, address, err := ParseEndpoint(endpoint)
	if err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	o := s.Options.withDefaults()
	again := backoff{min: o.BackoffMin, max: o.BackoffMax}
	for ctx.Err() == nil {
		lived, err := s.connectOnce(ctx, network, address, &o)
		if ctx.Err() != nil {
			break
		}
		s.Handler.Down(err)
		sleep(ctx, again.next(lived))
	}
	return ctx.Err()
}

func (s *Sub) check() error {
	if len(s.Topic) > maxTopic {
		return fmt.Errorf("topic has %d bytes, at most %d are let", len(s.Topic), maxTopic)
	}
	return nil
}

// connectOnce serves one link and returns how long it lived.
func (s *Sub) connectOnce(ctx context.Context, network, address string, o *Options) (time.Duration, error) {
	c, hangUp, err := dial(ctx, network, address, o, sub)
	if err != nil {
		return 0, err
	}
	defer hangUp()
	if err := s.subscribe(c); err != nil {
		return 0, err
	}
	up := time.Now()
	s.Handler.Up()
	err = s.serve(c)
	return time.Since(up), err
}

func (s *Sub) subscribe(c *conn) error {
	c.patience, c.silence = c.o.PingAfter, c.heartbeat
	b := append([]byte{0, byte(len(s.Topic) + 1), 1}, s.Topic...) //nolint:gosec // checked
	return c.write(b)
}

// serve hands messages on until the link ends.
func (s *Sub) serve(c *conn) error {
	for {
		frames, err := c.receive()
		if err != nil {
			return err
		}
		s.Handler.Message(frames)
	}
}
