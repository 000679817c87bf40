package zmtp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// maxShaking is how many connections may be in their handshake at once; more are closed.
const maxShaking = 16

// Bind listens on an endpoint for a publisher that connects, until ctx ends. There is one
// link at a time: a publisher that comes takes the place of the one before, which is most
// likely an earlier life of the same engine whose end went unnoticed.
func (s *Sub) Bind(ctx context.Context, endpoint string) error {
	network, address, err := ParseEndpoint(endpoint)
	if err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	b := &binding{sub: s, o: s.Options.withDefaults(), shaking: make(chan struct{}, maxShaking)}
	again := backoff{min: b.o.BackoffMin, max: b.o.BackoffMax}
	for ctx.Err() == nil {
		began := time.Now()
		err := b.listen(ctx, network, address)
		if ctx.Err() != nil {
			break
		}
		s.Handler.Down(fmt.Errorf("listening on %s: %w", endpoint, err))
		sleep(ctx, again.next(time.Since(began)))
	}
	return ctx.Err()
}

// binding is a Sub that listens.
type binding struct {
	sub     *Sub
	o       Options
	shaking chan struct{} // a place for each handshake

	turn   sync.Mutex // held by whoever serves the link
	mu     sync.Mutex // guards newest
	newest *conn      // the link that came last; nil if there was none
}

// listen accepts connections until ctx ends, and waits for all it began.
func (b *binding) listen(ctx context.Context, network, address string) error {
	if network == "unix" {
		removeStale(ctx, address)
	}
	config := net.ListenConfig{KeepAliveConfig: keepAlive}
	l, err := config.Listen(ctx, network, address)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	var links sync.WaitGroup
	defer links.Wait()
	for ctx.Err() == nil {
		nc, err := l.Accept()
		if err != nil {
			sleep(ctx, b.o.BackoffMin) // out of descriptors, most likely: the link goes on
			continue
		}
		select {
		case b.shaking <- struct{}{}:
			links.Go(func() { b.serve(ctx, nc) })
		default:
			nc.Close()
		}
	}
	return ctx.Err()
}

// serve shakes hands, ends the link before, and serves this one. A connection that does
// not become a link changes nothing.
func (b *binding) serve(ctx context.Context, nc net.Conn) {
	c, hangUp, err := open(ctx, nc, &b.o, sub)
	<-b.shaking
	if err != nil {
		return
	}
	defer hangUp()
	if err := b.sub.subscribe(c); err != nil {
		return
	}
	b.replace(c)
	b.turn.Lock()
	defer b.turn.Unlock()
	if !b.isNewest(c) || ctx.Err() != nil {
		return
	}
	b.sub.Handler.Up()
	if err := b.sub.serve(c); ctx.Err() == nil {
		b.sub.Handler.Down(err)
	}
}

// replace makes a link the newest and ends the one before.
func (b *binding) replace(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.newest != nil {
		b.newest.Close()
	}
	b.newest = c
}

func (b *binding) isNewest(c *conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.newest == c
}

// removeStale removes the socket file of a process that is gone.
func removeStale(ctx context.Context, path string) {
	info, err := os.Stat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		nc.Close()
		return
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path) // if it stays, listening says why
	}
}
