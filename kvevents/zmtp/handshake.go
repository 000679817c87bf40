package zmtp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"
)

// kind is a type of socket, and which types it talks to.
type kind struct {
	name  string
	peers []string
}

var (
	sub    = kind{"SUB", []string{"PUB", "XPUB"}}
	dealer = kind{"DEALER", []string{"ROUTER"}}
)

// The greeting: signature, version, mechanism. It says 3.0, so that subscriptions are
// messages, which all publishers understand.
const (
	greetingBytes  = 64
	signatureBytes = 11 // and the major version
	greeting       = "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL"
	mechanism      = "NULL\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
)

// shakeHands makes a link of a connection, within the handshake timeout as a whole.
func (c *conn) shakeHands(k kind) error {
	if err := c.SetDeadline(time.Now().Add(c.o.HandshakeTimeout)); err != nil {
		return err
	}
	if err := c.greet(); err != nil {
		return fmt.Errorf("greeting: %w", err)
	}
	if err := c.ready(k); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	c.heard = time.Now()
	return c.SetDeadline(time.Time{})
}

func (c *conn) greet() error {
	b := c.out[:greetingBytes]
	clear(b)
	copy(b, greeting)
	if err := c.write(b); err != nil {
		return err
	}
	// Byte by byte where it helps to tell what else is there: other servers may send
	// less than a greeting and wait.
	if err := c.fill(1); err != nil {
		return err
	}
	if first := c.buf[c.r]; first != 0xff {
		return fmt.Errorf("%w: first byte is %#x, so it is something else than ZeroMQ", ErrProtocol, first)
	}
	if err := c.fill(signatureBytes); err != nil {
		return err
	}
	if b := c.buf[c.r:]; b[9] != 0x7f || b[10] < 3 {
		return fmt.Errorf("%w: version %d, want 3", ErrProtocol, b[10])
	}
	if err := c.fill(greetingBytes); err != nil {
		return err
	}
	b = c.buf[c.r : c.r+greetingBytes]
	if got := b[12:32]; string(got) != mechanism {
		return fmt.Errorf("%w: mechanism %q, want NULL", ErrProtocol, bytes.TrimRight(got, "\x00"))
	}
	c.pings = b[10] > 3 || b[11] >= 1 // PING came with 3.1
	c.r += greetingBytes
	return nil
}

var readyName = []byte("\x05READY")

// ready exchanges READY commands.
func (c *conn) ready(k kind) error {
	if err := c.write(readyCommand(k.name)); err != nil {
		return err
	}
	h, err := c.header(0)
	if err != nil {
		return err
	}
	if h.flags&flagCommand == 0 {
		return fmt.Errorf("%w: a message before READY", ErrProtocol)
	}
	end := h.bytes + h.size
	if err := c.fill(end); err != nil {
		return err
	}
	body := c.buf[c.r+h.bytes : c.r+end]
	properties, ok := bytes.CutPrefix(body, readyName)
	if !ok {
		return fmt.Errorf("%w: %q, want READY", ErrProtocol, body[:min(len(body), 64)])
	}
	peer, err := socketType(properties)
	if err != nil {
		return err
	}
	if !slices.Contains(k.peers, peer) {
		return fmt.Errorf("%w: it is a %q socket, want %s", ErrProtocol, peer, strings.Join(k.peers, " or "))
	}
	c.r += end
	return nil
}

func readyCommand(name string) []byte {
	body := append([]byte(nil), readyName...)
	body = appendProperty(body, "Socket-Type", name)
	body = appendProperty(body, "Identity", "")
	return append([]byte{flagCommand, byte(len(body))}, body...) //nolint:gosec // some 50 bytes
}

func appendProperty(b []byte, name, value string) []byte {
	b = append(b, byte(len(name))) //nolint:gosec // of ours
	b = append(b, name...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(value))) //nolint:gosec // of ours
	return append(b, value...)
}

// socketType finds the type of socket among the properties of a READY command.
func socketType(b []byte) (string, error) {
	found := ""
	for len(b) > 0 {
		n := 1 + int(b[0])
		if len(b) < n+4 {
			return "", fmt.Errorf("%w: READY is cut short", ErrProtocol)
		}
		name, size := b[1:n], uint64(binary.BigEndian.Uint32(b[n:]))
		b = b[n+4:]
		if size > uint64(len(b)) {
			return "", fmt.Errorf("%w: READY is cut short", ErrProtocol)
		}
		if strings.EqualFold(string(name), "Socket-Type") {
			found = string(b[:min(size, 64)])
		}
		b = b[size:]
	}
	return found, nil
}
