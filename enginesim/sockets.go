package enginesim

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// The handshake and all that is read of a connection are go-zeromq's; its sockets are
// not used. Its PUB writes to one subscriber after the other, so that one who does not
// read stops all of them, and leaves a goroutine behind when it is closed; both sockets
// shake hands with one peer at a time, for as long as that takes. Engines' sockets, which
// are libzmq's, give each peer a queue and let go what does not fit.

const (
	// highWater is how many messages may wait for one subscriber; more are lost to it.
	highWater = 100000

	// maxPeers is how many connections a rank has at most; more are closed.
	maxPeers = 256

	handshakeTimeout = 10 * time.Second
	writeTimeout     = 30 * time.Second
	redialAfter      = 100 * time.Millisecond
)

// sockets are the open PUB and ROUTER sockets of one rank.
type sockets struct {
	publisher    *publisher
	live, replay endpoint // with the ports they have got
	listeners    []net.Listener
	ctx          context.Context //nolint:containedctx // the sockets' life
	cancel       context.CancelFunc
	serving      sync.WaitGroup

	mu    sync.Mutex // guards peers
	peers map[*peer]struct{}
}

// peer is a connection to somebody, and if that is a subscriber, what waits for it.
type peer struct {
	conn net.Conn
	gone chan struct{} // closed with the connection
	wake chan struct{} // the queue is not empty

	mu     sync.Mutex // guards what follows
	topics []string   // what it subscribes to
	queue  [][]byte
}

// listenTCP is how sockets are opened outside of Caddy.
func listenTCP(network, address string) (net.Listener, error) {
	var config net.ListenConfig
	return config.Listen(context.Background(), network, address)
}

func openSockets(p *publisher, listen ListenFunc) (*sockets, error) {
	s := &sockets{publisher: p, peers: make(map[*peer]struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	live, err := parseEndpoint(p.options.Endpoint)
	if err != nil {
		return nil, err
	}
	s.live = live.of(p.rank)
	if listens(p.options.Endpoint) {
		s.live, err = s.listen(listen, s.live, s.serveSubscriber)
	} else {
		s.serving.Go(s.connect)
	}
	if err == nil && p.options.Replay != "" {
		if s.replay, err = parseEndpoint(p.options.Replay); err == nil {
			s.replay, err = s.listen(listen, s.replay.of(p.rank), s.serveReplay)
		}
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// listen opens an endpoint and has serve called for each connection to it.
func (s *sockets) listen(listen ListenFunc, e endpoint, serve func(net.Conn, *peer)) (endpoint, error) {
	l, err := listen(e.network, e.address())
	if err != nil {
		return e, fmt.Errorf("events at %s: %w", e, err)
	}
	s.listeners = append(s.listeners, l)
	s.serving.Go(func() { s.accept(l, serve) })
	return e.bound(l.Addr()), nil
}

func (s *sockets) accept(l net.Listener, serve func(net.Conn, *peer)) {
	for s.ctx.Err() == nil {
		conn, err := l.Accept()
		if err != nil {
			s.pause() // out of descriptors, most likely, or closed
			continue
		}
		s.serving.Go(func() { s.serve(conn, serve) })
	}
}

// connect connects to whoever listens for the engine, again and again.
func (s *sockets) connect() {
	var dialer net.Dialer
	for s.ctx.Err() == nil {
		conn, err := dialer.DialContext(s.ctx, s.live.network, s.live.address())
		if err == nil {
			s.serve(conn, s.serveSubscriber)
		}
		s.pause()
	}
}

func (s *sockets) pause() {
	select {
	case <-s.ctx.Done():
	case <-time.After(redialAfter):
	}
}

// serve has a connection served, and ends it.
func (s *sockets) serve(conn net.Conn, serve func(net.Conn, *peer)) {
	p := &peer{conn: conn, gone: make(chan struct{}), wake: make(chan struct{}, 1)}
	defer conn.Close()
	if !s.add(p) {
		return
	}
	defer s.remove(p)
	serve(conn, p)
}

func (s *sockets) add(p *peer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || len(s.peers) >= maxPeers {
		return false
	}
	s.peers[p] = struct{}{}
	return true
}

func (s *sockets) remove(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.peers, p)
	close(p.gone)
}

// subscribers is how many peers subscribe to the topic.
func (s *sockets) subscribers(topic string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.peers {
		if p.subscribes(topic) {
			n++
		}
	}
	return n
}

// publish queues a message for all who subscribe to its topic.
func (s *sockets) publish(topic string, message []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.peers {
		p.send(topic, message)
	}
}

// hangUp ends all connections.
func (s *sockets) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.peers {
		_ = p.conn.Close() // whoever serves it goes on from there
	}
}

func (s *sockets) close() {
	s.cancel()
	for _, l := range s.listeners {
		_ = l.Close()
	}
	s.hangUp()
	s.serving.Wait()
}

// serveSubscriber hears what a subscriber wants and sends it that.
func (s *sockets) serveSubscriber(conn net.Conn, p *peer) {
	heard, err := shakeHands(conn, zmq4.Pub)
	if err != nil {
		return
	}
	s.serving.Go(func() { p.write(s.ctx) })
	for {
		frames, err := heard.message()
		if err != nil {
			return
		}
		p.hear(frames)
	}
}

// serveReplay answers requests for a replay. Those that are not as engines want them
// get no answer.
func (s *sockets) serveReplay(conn net.Conn, _ *peer) {
	heard, err := shakeHands(conn, zmq4.Router)
	if err != nil {
		return
	}
	for {
		frames, err := heard.message()
		if err != nil {
			return
		}
		if len(frames) != 2 || len(frames[0]) != 0 {
			continue
		}
		for _, message := range s.publisher.replay(bigEndian(frames[1])) {
			if err := write(conn, message); err != nil {
				return
			}
		}
	}
}

// bigEndian is the number in b, which may have any length, or the largest there is.
func bigEndian(b []byte) (n uint64) {
	for len(b) > 8 {
		if b[0] != 0 {
			return ^uint64(0)
		}
		b = b[1:]
	}
	for _, c := range b {
		n = n<<8 | uint64(c)
	}
	return n
}

// hear takes a subscription, or takes one back.
func (p *peer) hear(frames [][]byte) {
	if len(frames) != 1 || len(frames[0]) == 0 || len(frames[0]) > maxTopic+1 {
		return
	}
	topic := string(frames[0][1:])
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.Index(p.topics, topic)
	switch {
	case frames[0][0] == 1 && at < 0 && len(p.topics) < maxPeers:
		p.topics = append(p.topics, topic)
	case frames[0][0] == 0 && at >= 0:
		p.topics = slices.Delete(p.topics, at, at+1)
	}
}

func (p *peer) subscribes(topic string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.topics, func(prefix string) bool { return strings.HasPrefix(topic, prefix) })
}

// send queues a message if the peer wants it and has room for it.
func (p *peer) send(topic string, message []byte) {
	if !p.subscribes(topic) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) >= highWater {
		return
	}
	p.queue = append(p.queue, message)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// write sends what is in the queue until the peer is gone.
func (p *peer) write(ctx context.Context) {
	for {
		select {
		case <-p.wake:
		case <-p.gone:
			return
		case <-ctx.Done():
			return
		}
		p.mu.Lock()
		queue := p.queue
		p.queue = nil
		p.mu.Unlock()
		for _, message := range queue {
			if write(p.conn, message) != nil {
				_ = p.conn.Close()
				return
			}
		}
	}
}

// write writes a whole message at once, so that nothing comes between its frames.
func write(conn net.Conn, message []byte) error {
	if err := conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := conn.Write(message)
	return err
}

// hearing is the side of a connection that reads.
type hearing struct {
	conn *zmq4.Conn
	held *heldWrites
}

// heldWrites keeps what the library writes. It answers a PING by itself, in two pieces,
// and a message of ours must not come between them.
type heldWrites struct {
	net.Conn
	hold bool
	buf  []byte
}

func (w *heldWrites) Write(b []byte) (int, error) {
	if !w.hold {
		return w.Conn.Write(b)
	}
	w.buf = append(w.buf, b...)
	return len(b), nil
}

// contain makes an error of a panic. The library panics on types of sockets and lengths
// that do not exist, but that a peer may send.
func contain(err *error) {
	if wrong := recover(); wrong != nil {
		*err = fmt.Errorf("the peer sent what is no ZMTP: %v", wrong)
	}
}

func shakeHands(conn net.Conn, kind zmq4.SocketType) (h *hearing, err error) {
	defer contain(&err)
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, err
	}
	held := &heldWrites{Conn: conn}
	opened, err := zmq4.Open(held, null.Security(), kind, nil, true, nil)
	if err != nil {
		return nil, err
	}
	held.hold = true
	return &hearing{opened, held}, conn.SetDeadline(time.Time{})
}

// message is the next message. Commands are answered, and are none.
func (h *hearing) message() (frames [][]byte, err error) {
	defer contain(&err)
	for {
		msg, err := h.conn.RecvMsg()
		if err != nil {
			return nil, err
		}
		if len(h.held.buf) > 0 {
			if err := write(h.held.Conn, h.held.buf); err != nil {
				return nil, err
			}
			h.held.buf = h.held.buf[:0]
		}
		if msg.Type == zmq4.UsrMsg {
			return msg.Frames, nil
		}
	}
}

// appendMessage appends the frames of a message as ZMTP 3 has them.
func appendMessage(b []byte, frames ...[]byte) []byte {
	const more, long = 1, 2
	for i, frame := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = more
		}
		if len(frame) > 255 {
			b = binary.BigEndian.AppendUint64(append(b, flags|long), uint64(len(frame)))
		} else {
			b = append(b, flags, byte(len(frame))) //nolint:gosec // below 256
		}
		b = append(b, frame...)
	}
	return b
}
