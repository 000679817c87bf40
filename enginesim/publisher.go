package enginesim

import (
	"encoding/binary"
	"math"
	"net"
	"sync"
	"time"
)

// ReplayMode is how requests for a replay are met.
type ReplayMode string

const (
	ReplayAnswer ReplayMode = "answer" // with all batches that are kept
	ReplaySilent ReplayMode = "silent" // not at all
	ReplayLossy  ReplayMode = "lossy"  // without every third one, as from an engine at its high-water mark
)

// keptBatch is a batch that can be replayed.
type keptBatch struct {
	seq     uint64
	payload []byte
}

// publisher publishes the events of one rank. It outlives the lives of the engine, as
// the address of a process outlives the process.
type publisher struct {
	options   *EventOptions
	rank      int
	blockSize int

	mu      sync.Mutex // guards all below
	shape   Shape
	seq     uint64      // of the next batch
	kept    []keptBatch // the last ones, each at its seq modulo BufferSteps
	drop    int         // how many batches to come are not sent
	stopped bool        // nothing is numbered, sent or kept
	replays ReplayMode
	sockets *sockets // nil while they are closed
}

func newPublisher(opts *Options, rank int) *publisher {
	return &publisher{
		options:   opts.Events,
		rank:      rank,
		blockSize: opts.BlockSize,
		shape:     opts.Events.Shape,
		replays:   ReplayAnswer,
	}
}

// publish numbers a batch, keeps it for replay and sends it to whoever subscribes.
func (p *publisher) publish(events []event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	payload := encodeBatch(p.shape, p.options.Hashes, p.blockSize, p.rank, time.Now(), events)
	seq := p.seq
	p.seq++
	p.keep(keptBatch{seq, payload})
	if p.drop > 0 {
		p.drop--
		return
	}
	if p.sockets != nil {
		p.sockets.publish(p.options.Topic, appendMessage(nil, []byte(p.options.Topic), number(seq), payload))
	}
}

func (p *publisher) keep(b keptBatch) {
	if len(p.kept) < p.options.BufferSteps {
		p.kept = append(p.kept, b)
		return
	}
	p.kept[b.seq%uint64(len(p.kept))] = b
}

// replay returns the messages that answer a request for all batches from one on. There
// are none if it is not to be answered.
func (p *publisher) replay(from uint64) [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.replays == ReplaySilent {
		return nil
	}
	var messages [][]byte
	oldest := p.seq - uint64(len(p.kept))
	for seq := max(from, oldest); seq < p.seq; seq++ {
		if p.replays == ReplayLossy && seq%3 == 1 {
			continue
		}
		messages = append(messages, p.replayed(p.options.Topic, seq, p.kept[seq%uint64(len(p.kept))].payload))
	}
	return append(messages, p.replayed("", math.MaxUint64, nil))
}

// replayed is one message of a replay. Since engines write events as maps, they name
// the topic in it.
func (p *publisher) replayed(topic string, seq uint64, payload []byte) []byte {
	if p.shape.maps() {
		return appendMessage(nil, nil, []byte(topic), number(seq), payload)
	}
	return appendMessage(nil, nil, number(seq), payload)
}

// restart begins anew, as a new process does: from 0, with nothing to replay, and
// without those that were connected.
func (p *publisher) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seq, p.kept = 0, nil
	if p.sockets != nil {
		p.sockets.hangUp()
	}
}

// open opens the sockets, unless they are open.
func (p *publisher) open(listen ListenFunc) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sockets != nil {
		return nil
	}
	opened, err := openSockets(p, listen)
	if err != nil {
		return err
	}
	p.sockets = opened
	return nil
}

// close closes the sockets and waits for what serves them.
func (p *publisher) close() {
	p.mu.Lock()
	open := p.sockets
	p.sockets = nil
	p.mu.Unlock()
	if open != nil {
		open.close()
	}
}

// number is a sequence number as engines send it.
func number(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// ListenFunc opens an address as net.Listen does.
type ListenFunc func(network, address string) (net.Listener, error)
