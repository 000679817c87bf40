package kvevents

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-inference/caddy-inference/kvevents/zmtp"
)

// DefaultQueueBytes is how many bytes of live batches may wait, for each subscriber.
const DefaultQueueBytes = 8 << 20

// replayPatience is how long a replay may be silent. Engines answer between two steps.
const replayPatience = 2 * time.Second

// Config says what a [Subscriber] follows.
type Config struct {
	// Endpoint is the socket on which the engine publishes, as ZeroMQ writes it:
	// tcp://host:port or ipc://path. Each data parallel rank has its own.
	Endpoint string

	// Bind listens on Endpoint for an engine that connects to it.
	Bind bool

	// Topic is what the topics of the messages begin with; empty is all.
	Topic string

	// Replay is the socket on which the engine replays batches. If it is empty, what
	// is missed is lost.
	Replay string

	// QueueBytes is how many bytes of live batches may wait while a replay runs or the
	// handler is busy. 0 means DefaultQueueBytes. If more come, those that wait are let
	// go and fetched again.
	QueueBytes int

	// Replays limits the replays that run at once. Nil means a limit of DefaultReplays
	// that all subscribers of the process share.
	Replays *Replays

	// Link are the limits of the links. Zero values mean the defaults.
	Link zmtp.Options

	// Handler is told what the engine publishes, by one goroutine.
	Handler Handler
}

func (c *Config) check() error {
	if _, _, err := zmtp.ParseEndpoint(c.Endpoint); err != nil {
		return err
	}
	if c.Replay != "" {
		if _, _, err := zmtp.ParseEndpoint(c.Replay); err != nil {
			return fmt.Errorf("replay %w", err)
		}
	}
	if c.Handler == nil {
		return errors.New("a subscriber needs a handler")
	}
	return nil
}

// Subscriber follows one publisher: one data parallel rank of one engine. Its methods may
// be called from any goroutine.
type Subscriber struct {
	config Config
	inbox  *inbox
	count  counters
	status atomic.Pointer[Status]

	// Of the goroutine that applies.
	stream *stream
	queue  queue
	cut    bool // batches up to the loss of the link are dropped

	cancel context.CancelFunc
	done   sync.WaitGroup
}

// Subscribe begins to follow a publisher. The caller calls Close.
func Subscribe(c Config) (*Subscriber, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.QueueBytes = cmp.Or(c.QueueBytes, DefaultQueueBytes)
	c.Replays = cmp.Or(c.Replays, shared)
	ctx, cancel := context.WithCancel(context.Background())
	s := &Subscriber{config: c, inbox: newInbox(c.QueueBytes), cancel: cancel}
	s.stream = newStream(&told{s}, &s.count, c.Replay != "", time.Now())
	s.status.Store(&Status{Since: time.Now()})
	sub := &zmtp.Sub{Topic: c.Topic, Handler: s.inbox, Options: c.Link}
	follow := sub.Connect
	if c.Bind {
		follow = sub.Bind
	}
	s.done.Go(func() { _ = follow(ctx, c.Endpoint) }) // it ends with ctx
	s.done.Go(func() { s.run(ctx) })
	return s, nil
}

// Close ends the subscription. The handler is not called any more once it returns.
func (s *Subscriber) Close() {
	s.cancel()
	s.done.Wait()
}

// Status returns the state of the stream.
func (s *Subscriber) Status() Status { return *s.status.Load() }

// Stats returns what the stream has counted.
func (s *Subscriber) Stats() Stats { return s.count.stats() }

// told is the handler of the stream.
type told struct{ s *Subscriber }

func (t *told) Apply(b *Batch)   { t.s.config.Handler.Apply(b) }
func (t *told) Clear(why Reason) { t.s.config.Handler.Clear(why) }
func (t *told) State(status Status) {
	t.s.status.Store(&status)
	t.s.config.Handler.State(status)
}

// run applies what comes until ctx ends.
func (s *Subscriber) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		s.drain(ctx)
		now := time.Now()
		s.stream.tick(now)
		if s.stream.repair.on && !now.Before(s.stream.repair.notBefore) {
			s.replay(ctx)
			continue
		}
		timer.Reset(untilDue(s.stream.deadline(), now))
		select {
		case <-ctx.Done():
		case <-s.inbox.wake:
		case <-timer.C:
		}
	}
}

// untilDue is how long to sleep until a time; zero is never.
func untilDue(due, now time.Time) time.Duration {
	if due.IsZero() {
		return time.Hour
	}
	return max(due.Sub(now), 0)
}

// drain applies what has come until all is applied or a replay has to come first.
func (s *Subscriber) drain(ctx context.Context) {
	for ctx.Err() == nil {
		if s.queue.empty() {
			s.inbox.take(&s.queue)
			if s.queue.empty() {
				return
			}
		}
		e := &s.queue.entries[s.queue.next]
		if !s.entry(time.Now(), e) {
			return
		}
		s.queue.next++
	}
}

// entry does what an entry says; false says that a replay has to come first.
func (s *Subscriber) entry(now time.Time, e *entry) bool {
	switch e.kind {
	case entryUp:
		s.stream.connected(now)
	case entryDown:
		s.cut = false
		s.stream.disconnected(now, e.err)
	case entryMalformed:
		s.stream.malformed()
	case entryOverflow:
		return s.cut || s.stream.overflowed(now)
	default:
		return s.cut || s.stream.live(now, e.seq, s.queue.payload(e))
	}
	return true
}

// replay makes one request for replay and applies what comes, while live batches wait.
func (s *Subscriber) replay(ctx context.Context) {
	linked, done := s.inbox.replaying(ctx)
	defer done()
	limited, cancel := context.WithTimeout(linked, repairTotal)
	defer cancel()
	err := s.fetch(limited)
	if linked.Err() != nil { // the next link asks for all that comes until then
		s.stream.interrupt()
		s.cut = true
		return
	}
	s.stream.ended(time.Now(), err)
}

// fetch speaks with the replay socket, over a link of its own so that no reply to an
// earlier request is taken for one to this.
func (s *Subscriber) fetch(ctx context.Context) error {
	from := s.stream.request()
	d, err := zmtp.DialDealer(ctx, s.config.Replay, s.config.Link)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := s.config.Replays.enter(ctx); err != nil {
		return err
	}
	defer s.config.Replays.leave()
	if err := d.Send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return err
	}
	for {
		frames, err := d.Receive(replayPatience)
		if err != nil {
			return err
		}
		seq, payload, err := parseReply(frames)
		if errors.Is(err, errEnd) {
			return nil
		}
		if err == nil {
			err = s.stream.reply(seq, payload)
		}
		if err != nil {
			return err
		}
	}
}
