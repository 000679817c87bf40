// Package zmtptest has the other end for tests of who uses package zmtp: a network in
// memory, which works inside of testing/synctest, and peers that follow a script.
package zmtptest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
)

// Network is a network in memory. The zero value is an empty one.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*Listener
}

// Dial connects to an address, as zmtp.Options want it.
func (n *Network) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	ours, theirs := net.Pipe()
	gone := make(chan struct{})
	select {
	case l.conns <- &Peer{Conn: theirs, Gone: gone}:
		return &near{Conn: ours, gone: gone}, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
	}
}

// Listen opens an address, "host:port". Connections to it wait until they are accepted.
func (n *Network) Listen(address string) *Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = make(map[string]*Listener)
	}
	l := &Listener{network: n, address: address, conns: make(chan *Peer), closed: make(chan struct{})}
	n.listeners[address] = l
	return l
}

// Listener is an open address of a [Network].
type Listener struct {
	network *Network
	address string
	conns   chan *Peer
	closed  chan struct{}
}

// Accept waits for a connection.
func (l *Listener) Accept() (*Peer, error) {
	select {
	case p := <-l.conns:
		return p, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close closes the address; connections stay.
func (l *Listener) Close() {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	if l.network.listeners[l.address] == l {
		delete(l.network.listeners, l.address)
	}
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
}

// Peer is the far end of a link. What it sends is not checked, so that it can send anything.
type Peer struct {
	net.Conn
	Gone <-chan struct{} // closed once the near end is; nil on a real network
}

// near is the near end of a link.
type near struct {
	net.Conn
	once sync.Once
	gone chan struct{}
}

func (n *near) Close() error {
	n.once.Do(func() { close(n.gone) })
	return n.Conn.Close()
}

// The flags of a frame.
const (
	More    = 1
	Long    = 2
	Command = 4
)

// Greeting returns a greeting of ZMTP 3 with a minor version and a mechanism.
func Greeting(minor byte, mechanism string) []byte {
	b := make([]byte, 64)
	copy(b, "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03")
	b[11] = minor
	copy(b[12:32], mechanism)
	return b
}

// Ready returns a READY command of a type of socket.
func Ready(socketType string) []byte {
	body := binary.BigEndian.AppendUint32([]byte("\x05READY\x0bSocket-Type"), uint32(len(socketType))) //nolint:gosec // some bytes
	return Frame(Command, append(body, socketType...))
}

// Frame returns a frame.
func Frame(flags byte, body []byte) []byte {
	if len(body) > 255 {
		return append(binary.BigEndian.AppendUint64([]byte{flags | Long}, uint64(len(body))), body...)
	}
	return append([]byte{flags, byte(len(body))}, body...) //nolint:gosec // under 256
}

// Greet reads the other's greeting and sends one.
func (p *Peer) Greet(greeting []byte) error {
	if _, err := io.ReadFull(p, make([]byte, 64)); err != nil {
		return err
	}
	_, err := p.Write(greeting)
	return err
}

// ShakeHands does a whole handshake of ZMTP 3.1 as a type of socket.
func (p *Peer) ShakeHands(socketType string) error {
	if err := p.Greet(Greeting(1, "NULL")); err != nil {
		return err
	}
	if _, _, err := p.ReadFrame(); err != nil {
		return err
	}
	_, err := p.Write(Ready(socketType))
	return err
}

// ReadFrame reads a frame.
func (p *Peer) ReadFrame() (flags byte, body []byte, err error) {
	var head [9]byte
	if _, err := io.ReadFull(p, head[:2]); err != nil {
		return 0, nil, err
	}
	size := uint64(head[1])
	if head[0]&Long != 0 {
		if _, err := io.ReadFull(p, head[2:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(head[1:])
	}
	if size > 64<<20 {
		return 0, nil, fmt.Errorf("frame of %d bytes", size)
	}
	body = make([]byte, size)
	_, err = io.ReadFull(p, body)
	return head[0], body, err
}

// ReadMessage reads a message, and answers PINGs on the way.
func (p *Peer) ReadMessage() ([][]byte, error) {
	var message [][]byte
	for {
		flags, body, err := p.ReadFrame()
		if err != nil {
			return nil, err
		}
		if flags&Command != 0 {
			if err := p.pong(body); err != nil {
				return nil, err
			}
			continue
		}
		message = append(message, body)
		if flags&More == 0 {
			return message, nil
		}
	}
}

func (p *Peer) pong(command []byte) error {
	if len(command) < 7 || string(command[:5]) != "\x04PING" {
		return nil
	}
	_, err := p.Write(Frame(Command, append([]byte("\x04PONG"), command[7:]...)))
	return err
}

// Send sends a message.
func (p *Peer) Send(frames ...[]byte) error {
	if len(frames) == 0 {
		return errors.New("a message has frames")
	}
	var b []byte
	last := len(frames) - 1
	for _, f := range frames[:last] {
		b = append(b, Frame(More, f)...)
	}
	_, err := p.Write(append(b, Frame(0, frames[last])...))
	return err
}
