package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
)

// entryBytes is what an entry weighs besides its payload.
const entryBytes = 64

// entryKind is what came over a link.
type entryKind uint8

const (
	entryBatch entryKind = iota
	entryMalformed
	entryUp
	entryDown
	entryOverflow // batches were let go here
)

type entry struct {
	kind     entryKind
	seq      uint64
	from, to int   // of the payload in queue.data
	err      error // of entryDown
}

// queue is entries in order, and their payloads.
type queue struct {
	entries []entry
	data    []byte
	next    int // entries before it are done with
}

func (q *queue) bytes() int { return len(q.data) + entryBytes*len(q.entries) }

func (q *queue) empty() bool { return q.next == len(q.entries) }

func (q *queue) payload(e *entry) []byte { return q.data[e.from:e.to] }

// reset empties the queue and lets memory go that only a burst has needed.
func (q *queue) reset() {
	const keep = 1 << 20
	if cap(q.data) > keep {
		q.data = nil
	}
	if cap(q.entries) > keep/entryBytes {
		q.entries = nil
	}
	clear(q.entries)
	q.entries, q.data, q.next = q.entries[:0], q.data[:0], 0
}

// inbox is where what comes over a link waits for the goroutine that applies it. The
// goroutine of the link never waits: if there is no room, what waits is let go.
type inbox struct {
	limit int           // bytes that may wait
	wake  chan struct{} // something has come

	mu       sync.Mutex
	arriving queue
	leaving  int // bytes in the queue that was taken last
	down     bool
	cancel   context.CancelFunc // of the replay that runs; nil if none
}

func newInbox(limit int) *inbox {
	return &inbox{limit: limit, wake: make(chan struct{}, 1), down: true}
}

// Up implements zmtp.Handler.
func (b *inbox) Up() { b.put(entry{kind: entryUp}, nil) }

// Down implements zmtp.Handler. It ends a replay that runs, as that makes no sense any more.
func (b *inbox) Down(err error) { b.put(entry{kind: entryDown, err: err}, nil) }

// Message implements zmtp.Handler: a topic, a number and a payload.
func (b *inbox) Message(frames [][]byte) {
	if len(frames) != 3 || len(frames[1]) != 8 {
		b.put(entry{kind: entryMalformed}, nil)
		return
	}
	b.put(entry{kind: entryBatch, seq: binary.BigEndian.Uint64(frames[1])}, frames[2])
}

func (b *inbox) put(e entry, payload []byte) {
	b.mu.Lock()
	b.link(e.kind)
	if b.leaving+b.arriving.bytes()+len(payload)+entryBytes > b.limit {
		b.overflow()
	}
	q := &b.arriving
	e.from = len(q.data)
	q.data = append(q.data, payload...)
	e.to = len(q.data)
	q.entries = append(q.entries, e)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// link notes whether there is a link.
func (b *inbox) link(k entryKind) {
	switch k {
	case entryUp:
		b.down = false
	case entryDown:
		b.down = true
		if b.cancel != nil {
			b.cancel()
		}
	}
}

// overflow lets all batches go that have arrived. What happened to the link is kept, the
// last of it if there is much.
func (b *inbox) overflow() {
	q := &b.arriving
	kept := q.entries[:0]
	for _, e := range q.entries {
		if e.kind == entryUp || e.kind == entryDown {
			e.from, e.to = 0, 0
			kept = append(kept, e)
		}
	}
	const links = 64
	if len(kept) > links {
		kept = append(kept[:0], kept[len(kept)-links:]...)
	}
	dropped := len(kept) < len(q.entries)
	clear(q.entries[len(kept):])
	q.entries, q.data = kept, q.data[:0]
	if dropped {
		q.entries = append(q.entries, entry{kind: entryOverflow})
	}
}

// take exchanges a queue that is done with for what has arrived since.
func (b *inbox) take(done *queue) {
	done.reset()
	b.mu.Lock()
	defer b.mu.Unlock()
	*done, b.arriving = b.arriving, *done
	b.leaving = done.bytes()
}

// replaying makes a context for a replay, which ends when the link does.
func (b *inbox) replaying(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cancel = cancel
	if b.down {
		cancel()
	}
	return ctx, func() {
		b.mu.Lock()
		b.cancel = nil
		b.mu.Unlock()
		cancel()
	}
}

// errEnd is the mark that ends a replay.
var errEnd = errors.New("end of replay")

// parseReply takes a reply to a request for replay apart. Releases differ in whether a
// topic comes before the number and in the form of the end.
func parseReply(frames [][]byte) (seq uint64, payload []byte, err error) {
	if len(frames) < 2 || len(frames) > 4 {
		return 0, nil, errors.New("a reply has an unexpected number of frames")
	}
	number, payload := frames[len(frames)-2], frames[len(frames)-1]
	if len(payload) == 0 {
		return 0, nil, errEnd
	}
	if len(number) != 8 {
		return 0, nil, errors.New("a reply has no sequence number")
	}
	seq = binary.BigEndian.Uint64(number)
	if seq == endOfReplay {
		return 0, nil, errEnd
	}
	return seq, payload, nil
}
