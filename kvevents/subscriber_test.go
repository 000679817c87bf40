package kvevents

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/kvevents/zmtp"
	"github.com/caddy-inference/caddy-inference/kvevents/zmtp/zmtptest"
)

// layout is how a release answers a request for replay.
type layout struct {
	name   string
	reply  func(number, payload []byte) [][]byte
	ending [][]byte
}

var (
	end     = bytes.Repeat([]byte{0xff}, 8)
	layouts = []layout{
		{"topicless", func(n, p []byte) [][]byte { return [][]byte{nil, n, p} }, [][]byte{nil, end, nil}},
		{"with topic", func(n, p []byte) [][]byte { return [][]byte{nil, []byte("kv"), n, p} }, [][]byte{nil, nil, end, nil}},
		{"empty end", func(n, p []byte) [][]byte { return [][]byte{nil, n, p} }, [][]byte{nil, nil}},
	}
)

// rank is an engine's rank in memory: a publisher and a replay socket.
type rank struct {
	t       *testing.T
	network *zmtptest.Network
	name    string
	layout  layout
	replay  func(p *zmtptest.Peer, from uint64) // nil is as an engine does

	mu        sync.Mutex
	batches   [][]byte
	links     []*zmtptest.Peer
	listeners []*zmtptest.Listener
	life      int
}

func newRank(t *testing.T, n *zmtptest.Network, name string) *rank {
	return &rank{t: t, network: n, name: name, layout: layouts[0]}
}

func (r *rank) start() {
	r.life++
	r.batches = nil
	r.listen(":5557", r.accept)
	r.listen(":5558", r.serveReplay)
}

func (r *rank) listen(port string, serve func(*zmtptest.Peer)) {
	l := r.network.Listen(r.name + port)
	r.listeners = append(r.listeners, l)
	go func() {
		for {
			p, err := l.Accept()
			if err != nil {
				return
			}
			go serve(p)
		}
	}()
}

// stop ends the engine as a kill does.
func (r *rank) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.listeners {
		l.Close()
	}
	for _, p := range r.links {
		p.Close()
	}
	r.listeners, r.links = nil, nil
}

// accept serves a subscriber.
func (r *rank) accept(p *zmtptest.Peer) {
	defer p.Close()
	if p.ShakeHands("PUB") != nil {
		return
	}
	if _, err := p.ReadMessage(); err != nil {
		return
	}
	r.mu.Lock()
	r.links = append(r.links, p)
	r.mu.Unlock()
	_, _ = p.ReadMessage() // PINGs until the end
}

func (r *rank) serveReplay(p *zmtptest.Peer) {
	defer p.Close()
	if p.ShakeHands("ROUTER") != nil {
		return
	}
	request, err := p.ReadMessage()
	if err != nil {
		return
	}
	if len(request) != 2 || len(request[0]) != 0 || len(request[1]) != 8 {
		r.t.Errorf("request %q", request)
		return
	}
	from := binary.BigEndian.Uint64(request[1])
	if r.replay != nil {
		r.replay(p, from)
		return
	}
	r.answer(p, from)
}

// answer sends what there is, and the end.
func (r *rank) answer(p *zmtptest.Peer, from uint64) {
	r.mu.Lock()
	batches := slices.Clone(r.batches)
	r.mu.Unlock()
	for seq := from; seq < uint64(len(batches)); seq++ {
		if p.Send(r.layout.reply(number(seq), batches[seq])...) != nil {
			return
		}
	}
	_ = p.Send(r.layout.ending...)
	<-p.Gone
}

func number(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// batch adds a batch that nobody is sent.
func (r *rank) batch(blocks ...int) (seq uint64, payload []byte) {
	var hashes array
	for _, b := range blocks {
		hashes = append(hashes, b)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	seq = uint64(len(r.batches))
	at := r.life*1_000_000 + len(r.batches)
	payload = pack(r.t, array{at, array{array{"BlockStored", hashes, nil, array{1}, 1}}})
	r.batches = append(r.batches, payload)
	return seq, payload
}

// publish publishes a batch that stores blocks.
func (r *rank) publish(blocks ...int) {
	seq, payload := r.batch(blocks...)
	r.send([]byte("kv"), number(seq), payload)
}

func (r *rank) send(frames ...[]byte) {
	r.mu.Lock()
	links := slices.Clone(r.links)
	r.mu.Unlock()
	for _, p := range links {
		_ = p.Send(frames...)
	}
}

// held is an index that tests may look into at any time.
type held struct {
	mu     sync.Mutex
	index  index
	states []string
	gate   chan struct{} // if not nil, Apply waits for it
}

func (h *held) Apply(b *Batch) {
	if h.gate != nil {
		<-h.gate
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.index.Apply(b)
}

func (h *held) Clear(why Reason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.index.Clear(why)
}

func (h *held) State(s Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.states = append(h.states, fmt.Sprint(s.State, " ", s.Reason))
}

func (h *held) blocks() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []int
	for _, b := range slices.Sorted(maps.Keys(h.index.held)) {
		out = append(out, int(b))
	}
	return out
}

// follow subscribes to a rank.
func (r *rank) follow(change func(c *Config)) (*Subscriber, *held) {
	h := &held{index: index{held: map[Hash]int{}}}
	c := Config{
		Endpoint: "tcp://" + r.name + ":5557",
		Topic:    "kv",
		Replay:   "tcp://" + r.name + ":5558",
		Replays:  NewReplays(DefaultReplays), // channels of another bubble cannot be used
		Link:     zmtp.Options{Dial: r.network.Dial},
		Handler:  h,
	}
	if change != nil {
		change(&c)
	}
	s, err := Subscribe(c)
	require.NoError(r.t, err)
	return s, h
}

func TestSubscriberComesLateAndStaysCurrent(t *testing.T) {
	for _, layout := range layouts {
		t.Run(layout.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRank(t, &zmtptest.Network{}, "engine")
				r.layout = layout
				r.start()
				defer r.stop()
				r.publish(1)
				r.publish(2, 3)
				s, h := r.follow(nil)
				defer s.Close()
				synctest.Wait()
				require.Equal(t, []int{1, 2, 3}, h.blocks())
				r.publish(4)
				synctest.Wait()
				require.Equal(t, []int{1, 2, 3, 4}, h.blocks())
				require.Equal(t, Synced, s.Status().State)
				require.Equal(t, uint64(3), s.Stats().Batches)
				require.Equal(t, uint64(2), s.Stats().Replayed)
			})
		})
	}
}

func TestSubscriberFollowsAnEngineThroughItsLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRank(t, &zmtptest.Network{}, "engine")
		s, h := r.follow(nil)
		defer s.Close()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, Status{Blind, Unreachable, s.Status().Since}, s.Status())

		r.start()
		time.Sleep(zmtp.DefaultBackoffMax)
		r.publish(1)
		synctest.Wait()
		require.Equal(t, []int{1}, h.blocks())

		for life := 2; life < 10; life++ {
			r.stop()
			time.Sleep(time.Duration(life) * time.Second)
			r.start()
			for block := range life { // while nobody listens
				r.publish(10*life + block)
			}
			time.Sleep(zmtp.DefaultBackoffMax)
			synctest.Wait()
			want := []int{10 * life}
			for block := 1; block < life; block++ {
				want = append(want, 10*life+block)
			}
			require.Equal(t, want, h.blocks())
			require.Equal(t, Synced, s.Status().State)
		}
		r.stop()
		require.Equal(t, uint64(8), s.Stats().Restarts)
		require.Positive(t, s.Stats().Links[LinkLost])
		require.Positive(t, s.Stats().Links[Unreachable])
	})
}

func TestSubscriberGoesOnWithoutAReplayThatDoesNotAnswer(t *testing.T) {
	for _, test := range []struct {
		name   string
		replay func(p *zmtptest.Peer, from uint64)
		change func(r *rank)
		lies   bool
	}{
		{name: "silent", replay: func(p *zmtptest.Peer, _ uint64) { <-p.Gone }},
		{name: "closes", replay: func(*zmtptest.Peer, uint64) {}},
		{name: "answers nonsense", replay: func(p *zmtptest.Peer, _ uint64) { _ = p.Send([]byte("what?")) }},
		{name: "dribbles", lies: true, replay: func(p *zmtptest.Peer, from uint64) { // one batch, again and again
			for p.Send(nil, number(from), []byte{0x92, 0x01, 0x90}) == nil {
				time.Sleep(time.Second)
			}
		}},
		{name: "is not there", change: func(r *rank) { r.listeners[1].Close() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRank(t, &zmtptest.Network{}, "engine")
				r.replay = test.replay
				r.start()
				defer r.stop()
				if test.change != nil {
					test.change(r)
				}
				r.publish(1)
				s, h := r.follow(nil)
				defer s.Close()
				synctest.Wait()
				r.publish(2)
				time.Sleep(2 * repairTotal)
				r.publish(3)
				synctest.Wait()
				want := Degraded
				if test.lies { // what it sent was in order
					want = Synced
				}
				require.Equal(t, want, s.Status().State)
				require.Subset(t, h.blocks(), []int{3})
				require.Positive(t, s.Stats().ReplayErrors)
			})
		})
	}
}

func TestSubscriberFetchesAGapWhileLiveBatchesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRank(t, &zmtptest.Network{}, "engine")
		r.start()
		defer r.stop()
		s, h := r.follow(nil)
		defer s.Close()
		r.publish(1)
		synctest.Wait()
		hold := make(chan struct{})
		r.replay = func(p *zmtptest.Peer, from uint64) {
			<-hold
			r.answer(p, from)
		}
		r.batch(2)
		r.publish(3)
		r.publish(4)
		synctest.Wait()
		require.Equal(t, []int{1}, h.blocks())
		require.Equal(t, Replaying, s.Status().State)
		close(hold)
		synctest.Wait()
		require.Equal(t, []int{1, 2, 3, 4}, h.blocks())
		require.Equal(t, Synced, s.Status().State)
		require.Equal(t, uint64(1), s.Stats().Gaps)
	})
}

func TestReplayEndsWithTheLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRank(t, &zmtptest.Network{}, "engine")
		r.replay = func(p *zmtptest.Peer, _ uint64) { <-p.Gone }
		r.start()
		s, h := r.follow(nil)
		defer s.Close()
		synctest.Wait()
		require.Equal(t, Replaying, s.Status().State)
		r.stop()
		synctest.Wait()
		require.Equal(t, Connecting, s.Status().State)
		r.replay = nil
		r.start()
		defer r.stop()
		r.publish(7)
		time.Sleep(zmtp.DefaultBackoffMax)
		synctest.Wait()
		require.Equal(t, []int{7}, h.blocks())
		require.Zero(t, s.Stats().ReplayErrors)
	})
}

func TestWaitingBatchesHaveALimitAndAreFetchedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRank(t, &zmtptest.Network{}, "engine")
		r.start()
		defer r.stop()
		const limit = 2000
		s, h := r.follow(func(c *Config) { c.QueueBytes = limit })
		defer s.Close()
		synctest.Wait()
		h.gate = make(chan struct{})
		var want []int
		for block := range 1000 {
			r.publish(block) // never waits for the handler
			want = append(want, block)
			synctest.Wait()
			s.inbox.mu.Lock()
			waiting := s.inbox.leaving + s.inbox.arriving.bytes()
			s.inbox.mu.Unlock()
			require.LessOrEqual(t, waiting, limit+2*entryBytes+100)
		}
		close(h.gate)
		synctest.Wait()
		require.Equal(t, want, h.blocks())
		require.Equal(t, Synced, s.Status().State)
		require.Positive(t, s.Stats().Overflows)
		require.Zero(t, s.Stats().Lost)
	})
}

func TestReplaysAtOnceHaveALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const at, all = 2, 20
		var mu sync.Mutex
		running, most := 0, 0
		limit := NewReplays(at)
		n := &zmtptest.Network{}
		var subscribers []*Subscriber
		for i := range all {
			r := newRank(t, n, fmt.Sprint("engine", i))
			r.replay = func(p *zmtptest.Peer, from uint64) {
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				running--
				mu.Unlock()
				r.answer(p, from)
			}
			r.start()
			defer r.stop()
			s, _ := r.follow(func(c *Config) { c.Replays = limit })
			defer s.Close()
			subscribers = append(subscribers, s)
		}
		time.Sleep(all / at * time.Second)
		synctest.Wait()
		for _, s := range subscribers {
			require.Equal(t, Synced, s.Status().State)
		}
		require.Equal(t, at, most)
	})
}

func TestMessagesThatAreNoBatchesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRank(t, &zmtptest.Network{}, "engine")
		r.start()
		defer r.stop()
		s, h := r.follow(nil)
		defer s.Close()
		synctest.Wait()
		r.publish(1)
		topic := []byte("kv")
		r.send(topic)
		r.send(topic, number(2))
		r.send(topic, number(2)[:4], []byte{0x92, 0x01, 0x90})
		r.send(topic, number(2), []byte{0x92, 0x01, 0x90}, nil)
		synctest.Wait()
		require.Equal(t, uint64(4), s.Stats().Malformed)
		require.Equal(t, []int{1}, h.blocks())

		// A payload that cannot be read voids what is applied; the next counts again.
		seq, _ := r.batch(2)
		r.send(topic, number(seq), nil)
		synctest.Wait()
		require.Equal(t, uint64(1), s.Stats().DecodeErrors)
		require.Empty(t, h.blocks())
		require.Equal(t, Undecodable, s.Status().Reason)
		r.publish(3)
		synctest.Wait()
		require.Equal(t, []int{3}, h.blocks())

		// One that is too large costs the link; replay brings what else was missed.
		r.send(topic, number(9), make([]byte, zmtp.DefaultMaxMessage+1))
		r.publish(4)
		time.Sleep(zmtp.DefaultBackoffMax)
		synctest.Wait()
		require.Equal(t, uint64(1), s.Stats().Links[TooLarge])
		require.Contains(t, h.blocks(), 4)
	})
}

func TestCloseEndsAtOnceWhateverIsGoingOn(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(r *rank)
		limit  *Replays
	}{
		{name: "connecting", change: func(r *rank) { r.stop() }},
		{name: "synced"},
		{name: "in a replay", change: func(r *rank) { r.replay = func(p *zmtptest.Peer, _ uint64) { <-p.Gone } }},
		{name: "between replays", change: func(r *rank) { r.listeners[1].Close() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRank(t, &zmtptest.Network{}, "engine")
				r.start()
				if test.change != nil {
					test.change(r)
				}
				s, _ := r.follow(nil)
				synctest.Wait()
				before := time.Now()
				s.Close()
				s.Close()
				require.Equal(t, before, time.Now())
				r.stop()
			})
		})
	}
	t.Run("waiting for its turn", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRank(t, &zmtptest.Network{}, "engine")
			r.start()
			defer r.stop()
			limit := NewReplays(1)
			require.NoError(t, limit.enter(t.Context()))
			s, _ := r.follow(func(c *Config) { c.Replays = limit })
			synctest.Wait()
			require.Equal(t, Replaying, s.Status().State)
			s.Close()
		})
	})
}

func TestSubscribeSaysWhatIsWrongWithItsConfig(t *testing.T) {
	for want, c := range map[string]Config{
		`endpoint "engine": want tcp://`:          {Endpoint: "engine", Handler: &held{}},
		`replay endpoint "tcp://engine": no port`: {Endpoint: "tcp://engine:1", Replay: "tcp://engine", Handler: &held{}},
		"needs a handler":                         {Endpoint: "tcp://engine:1"},
	} {
		_, err := Subscribe(c)
		require.ErrorContains(t, err, want)
	}
}
