package main

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

// engines are simulated engines, each with an address of its own, in this process.
type engines struct {
	list []*engine
}

// engine is one simulated engine and what it was seen to do.
type engine struct {
	address string
	server  *enginesim.Server
	http    *http.Server
	serving sync.WaitGroup

	mu       sync.Mutex
	prefills []enginesim.Prefill
}

// startEngines starts n engines. Their ports follow the base address's; port 0
// takes any that are free.
func startEngines(n int, base string, options enginesim.Options) (*engines, error) {
	host, first, err := splitBase(base)
	if err != nil {
		return nil, err
	}
	es := &engines{}
	for i := range n {
		port := 0
		if first > 0 {
			port = first + i
		}
		e := &engine{address: net.JoinHostPort(host, strconv.Itoa(port))}
		if e.server, err = enginesim.NewServer(options); err != nil {
			es.close()
			return nil, err
		}
		e.server.Watch(e.note)
		if err := e.listen(); err != nil {
			es.close()
			return nil, fmt.Errorf("engine %d: %w", i+1, err)
		}
		es.list = append(es.list, e)
	}
	return es, nil
}

func splitBase(base string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(base)
	if err != nil {
		return "", 0, fmt.Errorf("engines' address %q: must be host:port: %w", base, err)
	}
	if port, err = strconv.Atoi(text); err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("engines' address %q: no port %q", base, text)
	}
	return host, port, nil
}

// listen takes connections at the engine's address.
func (e *engine) listen() error {
	l, err := net.Listen("tcp", e.address)
	if err != nil {
		return err
	}
	e.address = l.Addr().String()
	e.http = &http.Server{Handler: e.server, ReadHeaderTimeout: time.Minute}
	server := e.http
	e.serving.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			panic(err) // a listener of our own does not fail
		}
	})
	return nil
}

// note takes down a prefill that has ended.
func (e *engine) note(p enginesim.Prefill) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.prefills = append(e.prefills, p)
}

// close cuts all connections and gives the port back.
func (e *engine) close() {
	e.http.Close() // what was open is cut off, as it should be
	e.serving.Wait()
}

// restart is an engine's process that ends, and another that is there after down.
func (e *engine) restart(ctx context.Context, down time.Duration) error {
	e.close()
	e.server.Restart()
	select {
	case <-ctx.Done():
	case <-time.After(down):
	}
	return e.listen()
}

// addresses are where the engines listen.
func (es *engines) addresses() []string {
	var list []string
	for _, e := range es.list {
		list = append(list, e.address)
	}
	return list
}

func (es *engines) close() {
	for _, e := range es.list {
		e.close()
	}
}
