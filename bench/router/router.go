// Package router runs the routers that are measured, each in a process of its
// own, so that what one takes of processor and memory can be told from what the
// load and the engines take.
//
// Caddy with any selection policy is a router, and so is anything that is given
// as a URL. Another product becomes one by implementing Router.
package router

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// Router is a router that can be put in front of engines.
type Router interface {
	// Name tells it from the others in a table.
	Name() string

	// Start runs it in front of a fleet. It takes requests when Start returns,
	// and runs until Stop is called or ctx ends.
	Start(ctx context.Context, fleet Fleet) (*Instance, error)
}

// Fleet is what a router is put in front of.
type Fleet struct {
	Engines []string // addresses, host:port
	Speed   float64  // how many times faster than in life time passes on them; 0 is 1
	Retry   bool     // go to another engine if one cannot be reached, and avoid it for 10 s
}

// Instance is a router that runs.
type Instance struct {
	URL string // where it takes requests, without a path

	command *exec.Cmd
	ended   chan struct{} // closed when the process has
	asked   bool          // the process had been asked to end when it did; read it after ended
	dir     string        // of its files, what it printed among them
	stop    sync.Once
	err     error // of Stop
}

const (
	startTimeout = 20 * time.Second
	stopTimeout  = 10 * time.Second
)

// outputFile is what a process prints, in its directory.
const outputFile = "output"

// run starts a command in a directory of its own and waits until it answers at url.
// The directory is the caller's to remove if there is an error.
func run(ctx context.Context, dir, url string, command *exec.Cmd) (*Instance, error) {
	output, err := os.Create(filepath.Join(dir, outputFile))
	if err != nil {
		return nil, err
	}
	defer output.Close() // the process has its own handle
	command.Dir = dir
	command.Stdout, command.Stderr = output, output
	command.WaitDelay = stopTimeout
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	if err := command.Start(); err != nil {
		return nil, err
	}
	i := &Instance{URL: url, command: command, dir: dir, ended: make(chan struct{})}
	go func() {
		command.Wait() //nolint:errcheck // how it ended is in ProcessState
		i.asked = ctx.Err() != nil
		close(i.ended)
	}()
	if err := i.await(ctx); err != nil {
		i.Stop() //nolint:errcheck // it has failed already
		return nil, err
	}
	return i, nil
}

// await returns when the process answers HTTP, whatever it answers.
func (i *Instance) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := answers(ctx, i.URL)
		if err == nil {
			return nil
		}
		select {
		case <-i.ended:
			if i.asked {
				return ctx.Err()
			}
			return fmt.Errorf("%s ended at once: %v\n%s", i.command.Path, i.command.ProcessState, i.Output())
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer at %s: %w\n%s", i.command.Path, i.URL, err, i.Output())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// answers returns nil if there is an answer to HTTP at url, whatever it is.
func answers(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// Output returns what the process has printed, or as much as can be read.
func (i *Instance) Output() string {
	b, _ := os.ReadFile(filepath.Join(i.dir, outputFile))
	return string(b)
}

// Stop ends the router, waits for it and removes its files. The error tells of a
// process that had ended before, unasked.
func (i *Instance) Stop() error {
	if i.command == nil {
		return nil
	}
	i.stop.Do(func() {
		defer os.RemoveAll(i.dir)
		select {
		case <-i.ended:
			if !i.asked {
				i.err = fmt.Errorf("%s ended during the run: %v\n%s", i.command.Path, i.command.ProcessState, i.Output())
			}
			return
		default:
		}
		i.command.Process.Signal(os.Interrupt) //nolint:errcheck // it may have ended
		select {
		case <-i.ended:
		case <-time.After(stopTimeout):
			i.command.Process.Kill() //nolint:errcheck // it may have ended
			<-i.ended
		}
	})
	return i.err
}

// freeAddress returns an address of this machine on which nothing listens.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
