// Package engines runs simulated engines in this process, each at an address of its
// own, for routers to be put in front of.
package engines

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/caddy-inference/caddy-inference/enginesim"
)

// Fleet is engines that run.
type Fleet []*Engine

// Engine is a simulated engine that takes connections.
type Engine struct {
	Address string // host:port
	Server  *enginesim.Server

	http    *http.Server
	serving sync.WaitGroup
}

// Start starts n engines, all alike: the first at an address, host:port, the others
// on the ports after it. Port 0 takes any that are free.
func Start(n int, first string, options enginesim.Options) (Fleet, error) {
	host, port, err := split(first)
	if err != nil {
		return nil, err
	}
	var f Fleet
	for i := range n {
		e := &Engine{Address: net.JoinHostPort(host, strconv.Itoa(port))}
		if e.Server, err = enginesim.NewServer(options); err == nil {
			err = e.listen()
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("engine %d: %w", i+1, err)
		}
		f = append(f, e)
		if port > 0 {
			port++
		}
	}
	return f, nil
}

func split(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("engines' address %q: must be host:port: %w", address, err)
	}
	if port, err = strconv.Atoi(text); err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("engines' address %q: no port %q", address, text)
	}
	return host, port, nil
}

// listen takes connections at the engine's address.
func (e *Engine) listen() error {
	l, err := net.Listen("tcp", e.Address)
	if err != nil {
		return err
	}
	e.Address = l.Addr().String()
	server := &http.Server{Handler: e.Server, ReadHeaderTimeout: time.Minute}
	e.http = server
	e.serving.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			panic(err) // a listener of our own does not fail
		}
	})
	return nil
}

// Close cuts all connections and gives the port back.
func (e *Engine) Close() {
	_ = e.http.Close() // what was open is cut off, as it should be
	e.serving.Wait()
}

// Restart is an engine's process that ends, and another that is there after down,
// or as soon as ctx ends.
func (e *Engine) Restart(ctx context.Context, down time.Duration) error {
	e.Close()
	e.Server.Restart()
	select {
	case <-ctx.Done():
	case <-time.After(down):
	}
	return e.listen()
}

// Addresses are where the engines listen.
func (f Fleet) Addresses() (list []string) {
	for _, e := range f {
		list = append(list, e.Address)
	}
	return list
}

// Close closes all engines.
func (f Fleet) Close() {
	for _, e := range f {
		e.Close()
	}
}
