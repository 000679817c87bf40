package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/caddy-inference/caddy-inference/enginesim"
)

const (
	engineCount = 4

	// eventGap is the time between two events of a stream. It is long enough for
	// every event to pass on its own, as they do in life.
	eventGap = 5 * time.Millisecond
)

// engines are simulated ones, in this process. They take no time for a prompt.
type engines struct {
	addresses []string
	sims      []*enginesim.Server
	https     []*http.Server
	serving   sync.WaitGroup
}

// startEngines starts engines at an address and the ports after it. Port 0 takes
// any that are free.
func startEngines(first string) (*engines, error) {
	at, err := netip.ParseAddrPort(first)
	if err != nil {
		return nil, fmt.Errorf("engines' address %q: must be an IP address and a port: %w", first, err)
	}
	es := &engines{}
	for range engineCount {
		if err := es.start(at.String()); err != nil {
			es.close()
			return nil, fmt.Errorf("engine %d: %w", len(es.addresses)+1, err)
		}
		if at.Port() != 0 {
			at = netip.AddrPortFrom(at.Addr(), at.Port()+1)
		}
	}
	return es, nil
}

// start starts one more engine.
func (es *engines) start(address string) error {
	options := enginesim.DefaultOptions()
	options.PrefillRate = 1e12 // a rate of 0 would make streams instant, too
	options.DecodeBase, options.DecodePerRunning = eventGap, 0
	sim, err := enginesim.NewServer(options)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: sim, ReadHeaderTimeout: time.Minute}
	es.serving.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			panic(err) // a listener of our own does not fail
		}
	})
	es.addresses = append(es.addresses, l.Addr().String())
	es.sims = append(es.sims, sim)
	es.https = append(es.https, server)
	return nil
}

func (es *engines) close() {
	for _, s := range es.https {
		_ = s.Close() // what was open is cut off, as it should be
	}
	es.serving.Wait()
}

// cancelled is how many clients the engines have seen leave.
func (es *engines) cancelled() (n int) {
	for _, s := range es.sims {
		n += int(s.Stats().Cancelled)
	}
	return n
}

// open is how many requests the engines are at.
func (es *engines) open() (n int) {
	for _, s := range es.sims {
		n += int(s.Stats().Open)
	}
	return n
}

// settle waits until the engines have nothing to do, or for as long as an answer
// may take.
func (es *engines) settle(ctx context.Context) {
	end := time.Now().Add(patience)
	for es.open() > 0 && ctx.Err() == nil && time.Now().Before(end) {
		time.Sleep(time.Millisecond)
	}
}
