package inference

import (
	"maps"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/enginesim"
)

// mortal is a simulated engine that things can be done to which happen to processes. It
// counts how often it has generated for a request to the end: what a process did that was
// killed is over with it, and what nobody waits for any more is given up.
type mortal struct {
	t       *testing.T
	address string
	engine  *enginesim.Server

	mu       sync.Mutex
	server   *http.Server
	listener net.Listener
	conns    map[net.Conn]bool
	frozen   chan struct{} // closed when it thaws; nil if it is not frozen
	running  int           // requests
	done     map[string]int
}

// generated returns how often it has generated for each request, once nothing runs.
func (m *mortal) generated() map[string]int {
	require.Eventually(m.t, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.running == 0
	}, patience, tick)
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.done)
}

func newMortal(t *testing.T, options enginesim.Options) *mortal {
	t.Helper()
	engine, err := enginesim.NewServer(options)
	require.NoError(t, err)
	m := &mortal{t: t, address: "127.0.0.1:0", engine: engine, conns: map[net.Conn]bool{}, done: map[string]int{}}
	m.listen()
	m.address = m.listener.Addr().String()
	t.Cleanup(func() {
		m.thaw()
		m.kill()
	})
	return m
}

// ServeHTTP serves as the engine, and counts.
func (m *mortal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("X-Request-Id")
	if r.Method != http.MethodPost {
		m.engine.ServeHTTP(w, r)
		return
	}
	process := r.Context().Value(http.ServerContextKey)
	m.mu.Lock()
	m.running++
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.running--
		if m.server == process && r.Context().Err() == nil {
			m.done[id]++
		}
	}()
	m.engine.ServeHTTP(w, r)
}

// listen has it take connections, as a new process would if it does not yet.
func (m *mortal) listen() {
	m.mu.Lock()
	defer m.mu.Unlock()
	listener, err := net.Listen("tcp", m.address)
	require.NoError(m.t, err)
	m.listener = listener
	if m.server == nil {
		m.server = &http.Server{Handler: m}
	}
	m.server.SetKeepAlivesEnabled(true)
	go func() { _ = m.server.Serve(mortalListener{listener, m}) }()
}

// deafen has it take no connections any more, and end those it has when it has answered,
// as one that was asked to end.
func (m *mortal) deafen() {
	m.mu.Lock()
	m.listener.Close()
	server := m.server
	m.mu.Unlock()
	server.SetKeepAlivesEnabled(false) // closes the idle ones
}

// kill ends its process, and all that it was doing.
func (m *mortal) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listener.Close()
	m.breakAll()
	m.server = nil
	m.engine.Restart()
}

// breakAll resets its connections. m.mu is held.
func (m *mortal) breakAll() {
	for conn := range m.conns {
		_ = conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
}

// reset has it reset every connection, and each that is made.
func (m *mortal) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listener.Close()
	m.breakAll()
	listener, err := net.Listen("tcp", m.address)
	require.NoError(m.t, err)
	m.listener = listener
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
		}
	}()
}

// freeze stops it, as SIGSTOP does: the kernel takes connections and what is sent on them.
func (m *mortal) freeze() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.frozen = make(chan struct{})
}

func (m *mortal) thaw() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.frozen != nil {
		close(m.frozen)
		m.frozen = nil
	}
}

// wait waits until it is not frozen.
func (m *mortal) wait() {
	m.mu.Lock()
	frozen := m.frozen
	m.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

// mortalListener knows the connections that were taken.
type mortalListener struct {
	net.Listener
	of *mortal
}

func (l mortalListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.of.conns[conn] = true
	return &mortalConn{conn, l.of}, nil
}

// mortalConn does nothing while its engine is frozen.
type mortalConn struct {
	net.Conn
	of *mortal
}

func (c *mortalConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.of.wait()
	return n, err
}

func (c *mortalConn) Write(p []byte) (int, error) {
	c.of.wait()
	return c.Conn.Write(p)
}

func (c *mortalConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c.Conn)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
