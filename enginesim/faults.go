package enginesim

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// maxFaults is how many faults may wait at one time.
const maxFaults = 64

// Fault is something that goes wrong on purpose. A request meets the oldest
// fault that is meant for it, and only that one.
type Fault struct {
	// Path is the page it is for, e.g. "/health". Empty: every page that generates.
	Path string `json:"path,omitempty"`

	// Count is how many requests meet it. 0 is 1, -1 is all until it is deleted.
	Count int `json:"count,omitempty"`

	// DelayMS is how many milliseconds the request waits before anything else
	// happens. A stream's headers are out by then, its first token is not.
	DelayMS int `json:"delay_ms,omitempty"`

	// Status answers with an error of this status instead.
	Status int `json:"status,omitempty"`

	// RetryAfter is the Retry-After header in seconds that goes with Status.
	RetryAfter int `json:"retry_after,omitempty"`

	// DieAfterEvents breaks the connection after so many events of a stream, or
	// tokens of an answer in one piece. 0 breaks it before the headers.
	DieAfterEvents *int `json:"die_after_events,omitempty"`

	// Reset makes breaking the connection a TCP reset instead of a close. Without
	// DieAfterEvents it happens before the headers.
	Reset bool `json:"reset,omitempty"`

	// StallAfterEvents goes silent after so many events or tokens, until the
	// client leaves.
	StallAfterEvents *int `json:"stall_after_events,omitempty"`
}

func (f *Fault) validate() error {
	switch {
	case f.Count < -1:
		return fmt.Errorf("count is %d: use -1 for all requests, or how many", f.Count)
	case f.DelayMS < 0:
		return fmt.Errorf("delay_ms is %d: it must not be negative", f.DelayMS)
	case f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("status is %d: a fault's status is 400 to 599", f.Status)
	case f.RetryAfter < 0:
		return fmt.Errorf("retry_after is %d: it must not be negative", f.RetryAfter)
	case f.RetryAfter > 0 && f.Status == 0:
		return errors.New("retry_after needs a status to go with")
	case f.DieAfterEvents != nil && *f.DieAfterEvents < 0, f.StallAfterEvents != nil && *f.StallAfterEvents < 0:
		return errors.New("a number of events must not be negative")
	}
	return nil
}

// diesAtOnce reports whether the connection breaks before there is an answer.
func (f *Fault) diesAtOnce() bool {
	if f.DieAfterEvents != nil {
		return *f.DieAfterEvents == 0
	}
	return f.Reset
}

// faultList holds the faults to come. It outlives restarts of the engine: it is
// the tester's, not the engine's.
type faultList struct {
	mu   sync.Mutex
	list []Fault
}

var errTooManyFaults = fmt.Errorf("%d faults are waiting already: delete them or let requests meet them", maxFaults)

func (l *faultList) add(f Fault) error {
	if err := f.validate(); err != nil {
		return err
	}
	if f.Count == 0 {
		f.Count = 1
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) >= maxFaults {
		return errTooManyFaults
	}
	l.list = append(l.list, f)
	return nil
}

func (l *faultList) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = nil
}

func (l *faultList) all() []Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

// next takes the fault for a request to path, or returns nil. generates says
// which kind of page it is.
func (l *faultList) next(path string, generates bool) *Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.list {
		f := l.list[i]
		if f.Path != path && (f.Path != "" || !generates) {
			continue
		}
		if f.Count > 0 {
			l.list[i].Count--
		}
		if f.Count == 1 {
			l.list = slices.Delete(l.list, i, i+1)
		}
		return &f
	}
	return nil
}

var (
	// errDie ends a request whose connection has to break.
	errDie = errors.New("the fault breaks the connection")

	// errAnswered ends a request that has been answered with an error.
	errAnswered = errors.New("the answer was an error")
)

// before plays the part of a fault that stands in for an answer. It returns nil
// if there is none and the request takes its course.
func (f *Fault) before(w http.ResponseWriter, r *http.Request, write func(http.ResponseWriter, *apiError)) error {
	if f == nil || (f.Status == 0 && !f.diesAtOnce()) {
		return nil
	}
	if err := f.delay(r.Context().Done(), nil); err != nil {
		return err
	}
	if f.diesAtOnce() {
		return errDie
	}
	if f.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
	}
	write(w, &apiError{status: f.Status, kind: http.StatusText(f.Status), message: "a fault was asked for"})
	return errAnswered
}

// delay waits as long as the fault wants, until the client leaves, or until the
// engine stops.
func (f *Fault) delay(gone, stopped <-chan struct{}) error {
	if f == nil || f.DelayMS == 0 {
		return nil
	}
	timer := time.NewTimer(time.Duration(f.DelayMS) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-gone:
		return errGone
	case <-stopped:
		return errStopped
	}
}

// at plays the part of a fault that comes after so many events.
func (f *Fault) at(gone, stopped <-chan struct{}, events int) error {
	switch {
	case f == nil:
		return nil
	case f.DieAfterEvents != nil && events >= *f.DieAfterEvents:
		return errDie
	case f.StallAfterEvents != nil && events >= *f.StallAfterEvents:
		select {
		case <-gone:
			return errGone
		case <-stopped:
			return errStopped
		}
	}
	return nil
}

// breakConnection ends the connection without ending the answer. It does not
// return where the server has to be told by a panic.
func (f *Fault) breakConnection(w http.ResponseWriter) {
	if f == nil || !f.Reset {
		panic(http.ErrAbortHandler)
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil { // HTTP/2: the server resets the stream
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := tcpConn(conn); ok {
		_ = tcp.SetLinger(0) // the close below sends RST
	}
	_ = conn.Close()
}

// tcpConn finds the TCP connection below TLS and the server's own wrappers.
func tcpConn(conn net.Conn) (*net.TCPConn, bool) {
	for {
		switch c := conn.(type) {
		case *net.TCPConn:
			return c, true
		case interface{ NetConn() net.Conn }:
			conn = c.NetConn()
		default:
			return nil, false
		}
	}
}

func (s *Server) addFault(w http.ResponseWriter, r *http.Request) {
	var f Fault
	err := readRequest(r, &f)
	if err == nil {
		err = s.faults.add(f)
	}
	if err != nil {
		writeError(w, badRequest("fault: "+err.Error(), ""))
		return
	}
	writeJSON(w, http.StatusOK, s.faults.all())
}

func (s *Server) listFaults(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.faults.all())
}

func (s *Server) clearFaults(w http.ResponseWriter, _ *http.Request) {
	s.faults.clear()
	w.WriteHeader(http.StatusNoContent)
}
