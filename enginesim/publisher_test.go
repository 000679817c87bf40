package enginesim

import (
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/require"
)

// replay is what a request for a replay is answered with.
type replay struct {
	batches []live
	ended   bool
}

func (r *replay) seqs() (seqs []uint64) {
	for _, b := range r.batches {
		seqs = append(seqs, b.seq)
	}
	return seqs
}

// replayed asks a rank for a replay, from the number in start on.
func replayed(t *testing.T, s *Server, rank int, start []byte) (r replay) {
	t.Helper()
	_, at := s.publishers[rank].endpoints()
	conn := dialSocket(t, at, zmq4.Dealer)
	require.NoError(t, conn.SendMsg(zmq4.NewMsgFrom(nil, start)))
	for !r.ended {
		msg, err := conn.RecvMsg()
		require.NoError(t, err)
		r.add(t, s.Events()[rank].Shape, msg.Frames)
	}
	return r
}

func (r *replay) add(t *testing.T, shape Shape, frames [][]byte) {
	t.Helper()
	require.Empty(t, frames[0])
	topic := "kv-events"
	if shape.maps() {
		topic = string(frames[1])
		frames = frames[1:]
	}
	require.Len(t, frames, 3)
	if seq := bigEndian(frames[1]); seq != math.MaxUint64 {
		require.Equal(t, "kv-events", topic)
		r.batches = append(r.batches, live{topic, seq, decodeBatch(t, frames[2])})
		return
	}
	if shape.maps() {
		require.Empty(t, topic)
	}
	require.Empty(t, frames[2])
	r.ended = true
}

// fillCache has n prompts stored that share nothing, each in a batch of its own.
func fillCache(t *testing.T, s *Server, from, n int) {
	t.Helper()
	for i := range n {
		ids := strings.Trim(strings.Repeat(strconv.Itoa(1000+from+i)+",", 16), ",")
		require.Equal(t, 200, post(s, "/v1/completions", `{"prompt":[`+ids+`],"max_tokens":1}`).Code)
	}
}

func TestReplayAnswersFromAnyNumber(t *testing.T) {
	for _, shape := range []Shape{ShapeVLLM, ShapeVLLMArray} {
		t.Run(string(shape), func(t *testing.T) {
			s := publishingServer(t, publishing(shape))
			fillCache(t, s, 0, 5)
			for _, test := range []struct {
				start []byte
				want  []uint64
			}{
				{number(0), []uint64{0, 1, 2, 3, 4}},
				{nil, []uint64{0, 1, 2, 3, 4}},
				{[]byte{0, 3}, []uint64{3, 4}},
				{append(make([]byte, 4), number(4)...), []uint64{4}},
				{number(5), nil},
				{number(math.MaxUint64), nil},
				{append([]byte{1}, number(0)...), nil},
			} {
				got := replayed(t, s, 0, test.start)
				require.Equal(t, test.want, got.seqs(), "%x", test.start)
			}
		})
	}
}

func TestReplayHoldsTheLastBatches(t *testing.T) {
	opts := publishing(ShapeVLLM)
	opts.Events.BufferSteps = 3
	s := publishingServer(t, opts)
	fillCache(t, s, 0, 8)
	require.Equal(t, 3, s.Events()[0].Kept)
	got := replayed(t, s, 0, number(0))
	require.Equal(t, []uint64{5, 6, 7}, got.seqs())
	require.Equal(t, uint32(1007), got.batches[2].batch.events[0].tokens[0])
}

func TestOddRequestsForAReplayGetNoAnswer(t *testing.T) {
	s := publishingServer(t, publishing(ShapeVLLM))
	_, at := s.publishers[0].endpoints()
	conn := dialSocket(t, at, zmq4.Dealer)
	for _, odd := range [][][]byte{{number(0)}, {[]byte("x"), number(0)}, {nil, number(0), nil}} {
		require.NoError(t, conn.SendMsg(zmq4.NewMsgFrom(odd...)))
	}
	fillCache(t, s, 0, 1) // what an odd request would be answered with
	require.NoError(t, conn.SendMsg(zmq4.NewMsgFrom(nil, number(9))))
	msg, err := conn.RecvMsg()
	require.NoError(t, err)
	require.Equal(t, [][]byte{{}, {}, number(math.MaxUint64), {}}, msg.Frames, "that of the one that is not odd")
}

func changeEvents(t *testing.T, s *Server, body string) {
	t.Helper()
	w := post(s, "/sim/events", body)
	require.Equal(t, 200, w.Code, w.Body)
}

func TestDroppedBatchesLeaveAGapThatReplayFills(t *testing.T) {
	s := publishingServer(t, publishing(ShapeVLLM))
	sub := subscribe(t, s, 0)
	changeEvents(t, s, `{"drop":2}`)
	fillCache(t, s, 0, 3)
	require.EqualValues(t, 2, sub.next().seq)
	require.Equal(t, []uint64{0, 1, 2}, new(replayed(t, s, 0, number(0))).seqs())
	require.Zero(t, s.Events()[0].Drop)
}

func TestStoppedPublisherTellsNobodyWhatHappens(t *testing.T) {
	s := publishingServer(t, publishing(ShapeVLLM))
	sub := subscribe(t, s, 0)
	changeEvents(t, s, `{"publish":false}`)
	fillCache(t, s, 0, 3)
	changeEvents(t, s, `{"publish":true}`)
	fillCache(t, s, 3, 1)
	got := sub.next()
	require.Zero(t, got.seq)
	require.Equal(t, uint32(1003), got.batch.events[0].tokens[0])
	require.Len(t, cached(s, 0), 4)
}

func TestReplayCanBeSilentOrLossy(t *testing.T) {
	s := publishingServer(t, publishing(ShapeVLLM))
	fillCache(t, s, 0, 6)
	changeEvents(t, s, `{"replay":"lossy"}`)
	require.Equal(t, []uint64{0, 2, 3, 5}, new(replayed(t, s, 0, number(0))).seqs())

	changeEvents(t, s, `{"replay":"silent"}`)
	require.Nil(t, s.publishers[0].replay(0))
	changeEvents(t, s, `{"replay":"answer"}`)
	require.Len(t, replayed(t, s, 0, number(0)).batches, 6)
}

func TestShapeChangesWhileTheEngineRuns(t *testing.T) {
	s := publishingServer(t, publishing(ShapeVLLM))
	sub := subscribe(t, s, 0)
	fillCache(t, s, 0, 1)
	changeEvents(t, s, `{"shape":"vllm-array"}`)
	fillCache(t, s, 1, 1)
	for range 2 {
		msg, err := sub.conn.RecvMsg()
		require.NoError(t, err)
		_, isMap := rawEvents(t, msg.Frames[2])[0].(map[string]any)
		require.Equal(t, bigEndian(msg.Frames[1]) == 0, isMap)
	}
}

func TestRestartedPublisherBeginsAnew(t *testing.T) {
	for _, test := range []struct {
		change string
		kept   int
	}{{`{"restart":"kept"}`, 3}, {`{"restart":"emptied"}`, 0}} {
		s := publishingServer(t, publishing(ShapeVLLM))
		sub := subscribe(t, s, 0)
		fillCache(t, s, 0, 3)
		sub.until(3)
		changeEvents(t, s, test.change)
		_, err := sub.conn.RecvMsg()
		require.Error(t, err, "the connection is gone")
		require.Eventually(t, func() bool { return s.Events()[0].Subscribers == 0 }, time.Minute, time.Millisecond)
		require.Len(t, cached(s, 0), test.kept, test.change)
		require.Empty(t, replayed(t, s, 0, number(0)).batches)
		sub = subscribe(t, s, 0)
		fillCache(t, s, 3, 1)
		require.Zero(t, sub.next().seq)
		again := replayed(t, s, 0, number(0))
		require.Equal(t, []uint64{0}, again.seqs())
		require.Equal(t, uint32(1003), again.batches[0].batch.events[0].tokens[0])
	}
}

func TestEndedLifePublishesNothing(t *testing.T) {
	s := publishingServer(t, publishing(ShapeVLLM))
	old := s.life.Load().ranks[0]
	running, err := old.submit(prompt{ids: numbered(1, 64)}, namespace{}, 1, 0)
	require.NoError(t, err)
	s.Restart()
	require.Error(t, running.run(t.Context(), func(delta) error { return nil }))
	require.Zero(t, s.Events()[0].Next)
}

func TestWrongChangesAreRefusedWithTheReason(t *testing.T) {
	s := publishingServer(t, publishing(ShapeVLLM))
	for body, want := range map[string]string{
		`{"rank":1}`:                     "rank is 1: there are 0 to 0",
		`{"drop":-1}`:                    "drop is -1",
		`{"restart":"now"}`:              "use kept or emptied",
		`{"restart":"emptied","rank":0}`: "leave rank out",
		`{"replay":"slow"}`:              "use answer, silent or lossy",
		`{"shape":"tgi"}`:                "use vllm, vllm-array, sglang or sglang-array",
		`{"surprise":1}`:                 "events: ",
		`{"shape":"vllm"`:                "events: ",
	} {
		w := post(s, "/sim/events", body)
		require.Equal(t, 400, w.Code, body)
		require.Contains(t, w.Body.String(), want, body)
	}
	require.Contains(t, post(instantServer(t), "/sim/events", `{"drop":1}`).Body.String(), "publishes no events")
	require.JSONEq(t, `[]`, do(instantServer(t), "GET", "/sim/events", "").Body.String())
}

func TestChangesAreForOneRankOrForAll(t *testing.T) {
	opts := publishing(ShapeVLLM)
	opts.Ranks = 2
	s := publishingServer(t, opts)
	changeEvents(t, s, `{"rank":1,"drop":5}`)
	states := s.Events()
	require.Equal(t, []int{0, 5}, []int{states[0].Drop, states[1].Drop})
	changeEvents(t, s, `{"drop":1}`)
	states = s.Events()
	require.Equal(t, []int{1, 1}, []int{states[0].Drop, states[1].Drop})
}

func TestSubscriberIsSentItsTopicOnly(t *testing.T) {
	s := publishingServer(t, publishing(ShapeVLLM))
	sub := subscribe(t, s, 0)
	at, _ := s.publishers[0].endpoints()
	other := &subscriber{t, dialSocket(t, at, zmq4.Sub)}
	require.NoError(t, other.conn.SendMsg(zmq4.NewMsgString("\x01other")))
	fillCache(t, s, 0, 1)
	sub.next()
	require.NoError(t, other.conn.SendMsg(zmq4.NewMsgString("\x01")))
	require.Eventually(t, func() bool { return s.Events()[0].Subscribers == 2 }, time.Minute, time.Millisecond)
	require.NoError(t, sub.conn.SendMsg(zmq4.NewMsgString("\x00kv")))
	require.Eventually(t, func() bool { return s.Events()[0].Subscribers == 1 }, time.Minute, time.Millisecond)
	fillCache(t, s, 1, 1)
	require.EqualValues(t, 1, other.next().seq)
}

func TestPingIsAnsweredBetweenMessages(t *testing.T) {
	s := publishingServer(t, publishing(ShapeVLLM))
	sub := subscribe(t, s, 0)
	const rounds = 50
	go func() {
		for range rounds {
			_ = sub.conn.SendCmd(zmq4.CmdPing, []byte{0, 0})
		}
	}()
	fillCache(t, s, 0, rounds)
	pongs := 0
	for seq := uint64(0); seq < rounds || pongs < rounds; {
		msg, err := sub.conn.RecvMsg()
		require.NoError(t, err)
		if msg.Type == zmq4.CmdMsg {
			pongs++
			continue
		}
		require.Len(t, msg.Frames, 3)
		require.Equal(t, number(seq), msg.Frames[1])
		seq++
	}
}

// writeLog notes what is written at once.
type writeLog struct {
	net.Conn
	writes []string
}

func (r *writeLog) Write(b []byte) (int, error) {
	r.writes = append(r.writes, string(b))
	return r.Conn.Write(b)
}

func TestPingIsAnsweredInOnePiece(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	far, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	near, err := listener.Accept()
	require.NoError(t, err)
	defer near.Close()
	recorded := &writeLog{Conn: near}
	heard := make(chan error, 1)
	go func() {
		h, err := shakeHands(recorded, zmq4.Pub)
		if err == nil {
			recorded.writes = nil
			_, err = h.message()
		}
		heard <- err
	}()
	conn := openSocket(t, far, zmq4.Sub)
	require.NoError(t, conn.SendCmd(zmq4.CmdPing, []byte{0, 0}))
	_, err = conn.RecvMsg()
	require.NoError(t, err)
	require.NoError(t, conn.SendMsg(zmq4.NewMsgString("\x01")))
	require.NoError(t, <-heard)
	require.Equal(t, []string{"\x04\x05\x04PONG"}, recorded.writes)
}

func TestQueueOfASubscriberWhoDoesNotReadIsBounded(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	p := &peer{conn: near, gone: make(chan struct{}), wake: make(chan struct{}, 1), topics: []string{""}}
	message := []byte{0, 0}
	for range highWater + 10 {
		p.send("", message)
	}
	require.Len(t, p.queue, highWater)
	for i := range 2 * maxPeers {
		p.hear([][]byte{fmt.Appendf([]byte{1}, "topic%d", i)})
	}
	require.Len(t, p.topics, maxPeers)
}

func TestNumberOfConnectionsIsBounded(t *testing.T) {
	s := publishingServer(t, publishing(ShapeVLLM))
	open := s.publishers[0].sockets
	var peers []*peer
	for range maxPeers {
		near, _ := net.Pipe()
		p := &peer{conn: near, gone: make(chan struct{})}
		require.True(t, open.add(p))
		peers = append(peers, p)
	}
	require.False(t, open.add(&peer{}))
	for _, p := range peers {
		open.remove(p)
	}
	subscribe(t, s, 0)
}

func TestConnectionsThatAreNoneEndAlone(t *testing.T) {
	s := publishingServer(t, publishing(ShapeVLLM))
	sub := subscribe(t, s, 0)
	at, _ := s.publishers[0].endpoints()
	greeting := "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL" + strings.Repeat("\x00", 48)
	for _, bytes := range []string{
		"GET / HTTP/1.1\r\n\r\n" + strings.Repeat("x", 64),
		greeting + "\x04\x06\x05READY", // no type of socket
		greeting + "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB\x02\x7f\xff\xff\xff\xff\xff\xff\xff", // a frame without end
	} {
		conn, err := net.Dial(at.network, at.address())
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		_, err = conn.Write([]byte(bytes))
		require.NoError(t, err)
		for err == nil {
			_, err = conn.Read(make([]byte, 1024))
		}
		require.NotErrorIs(t, err, net.ErrClosed)
		require.NoError(t, conn.Close())
	}
	fillCache(t, s, 0, 1)
	require.Zero(t, sub.next().seq)
}

func TestEngineConnectsToAnEndpointWithoutAStar(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	opts := publishing(ShapeVLLM)
	opts.Events.Endpoint = "tcp://" + listener.Addr().String()
	s := publishingServer(t, opts)
	for range 2 { // it comes again
		nc, err := listener.Accept()
		require.NoError(t, err)
		conn := openSocket(t, nc, zmq4.Sub)
		require.NoError(t, conn.SendMsg(zmq4.NewMsgString("\x01")))
		require.Eventually(t, func() bool { return s.Events()[0].Subscribers == 1 }, time.Minute, time.Millisecond)
		fillCache(t, s, int(s.Events()[0].Next), 1)
		msg, err := conn.RecvMsg()
		require.NoError(t, err)
		require.Len(t, msg.Frames, 3)
		require.NoError(t, nc.Close())
		require.Eventually(t, func() bool { return s.Events()[0].Subscribers == 0 }, time.Minute, time.Millisecond)
	}
}
