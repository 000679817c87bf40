package kvevents

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// recorded is a line of a recording of an engine.
type recorded struct {
	Kind    string
	Rank    int
	Seq     uint64
	Socket  string
	Frames  []string
	Replies [][]string
	Ended   bool
}

func recording(t *testing.T, name string, f func(r recorded)) {
	lines(t, name, func(line []byte) {
		var r recorded
		require.NoError(t, json.Unmarshal(line, &r))
		f(r)
	})
}

func frames(t *testing.T, hexes []string) [][]byte {
	out := make([][]byte, len(hexes))
	for i, h := range hexes {
		out[i] = unhex(t, h)
	}
	return out
}

// answer answers a request with what an engine has answered once, as far as it had it
// published.
func answer(t *testing.T, s *stream, now time.Time, replies [][]string, before uint64) {
	s.request()
	for _, hexes := range replies {
		seq, payload, err := parseReply(frames(t, hexes))
		if errors.Is(err, errEnd) {
			break
		}
		require.NoError(t, err)
		if seq < before {
			require.NoError(t, s.reply(seq, payload))
		}
	}
	s.ended(now, nil)
}

// TestRecordedRestart follows an engine that is killed and started again. The recorder
// came late: the first event it saw was not the engine's first.
func TestRecordedRestart(t *testing.T) {
	now := time.Unix(1e9, 0)
	x := &index{held: map[Hash]int{}}
	var c counters
	s := newStream(x, &c, true, now)
	var whole [][]string // the first replay from 0
	recording(t, "vllm-0.32.0-restart-replay", func(r recorded) {
		if r.Kind == "replay" && r.Socket == "DEALER" && r.Ended && whole == nil {
			whole = r.Replies
		}
	})
	s.connected(now)
	empty := [][]string{{"", "", "ffffffffffffffff", ""}}
	marks := 0
	recording(t, "vllm-0.32.0-restart-replay", func(r recorded) {
		switch r.Kind {
		case "mark": // the kill, and that it is ready again
			marks++
			if marks == 1 {
				require.Equal(t, Synced, s.status.State)
				require.Equal(t, uint64(33), c.batches.Load())
				require.NotEmpty(t, x.held)
				s.disconnected(now, errors.New("closed"))
				return
			}
			s.connected(now)
			answer(t, s, now, empty, 0)
			require.Empty(t, x.held)
			answer(t, s, now, empty, 0)
			require.Equal(t, Synced, s.status.State)
		case "event":
			f := frames(t, r.Frames)
			if !s.live(now, r.Seq, f[2]) {
				answer(t, s, now, whole, r.Seq+1)
				require.True(t, s.live(now, r.Seq, f[2]))
			}
		}
	})
	require.Equal(t, 2, marks)
	require.Equal(t, Synced, s.status.State)
	require.Equal(t, uint64(36), c.batches.Load())
	require.Equal(t, uint64(1), c.restarts.Load())
	require.Zero(t, c.decodeErrors.Load()+c.gaps.Load()+c.lost.Load()+c.skipped.Load())
}

func TestRecordedLateSubscriber(t *testing.T) {
	now := time.Unix(1e9, 0)
	x := &index{held: map[Hash]int{}}
	var c counters
	s := newStream(x, &c, true, now)
	s.connected(now)
	replays := 0
	recording(t, "vllm-0.32.0-late-subscriber", func(r recorded) {
		switch r.Kind {
		case "replay":
			if replays++; replays == 1 {
				answer(t, s, now, r.Replies, endOfReplay)
				return
			}
			// All of it again, after a link that broke, changes nothing.
			s.disconnected(now, errors.New("closed"))
			s.connected(now)
			before := len(x.held)
			answer(t, s, now, r.Replies, endOfReplay)
			require.Len(t, x.held, before)
		case "event":
			require.True(t, s.live(now, r.Seq, frames(t, r.Frames)[2]))
		}
	})
	require.Equal(t, Synced, s.status.State)
	require.Equal(t, uint64(9), c.batches.Load())
	require.Zero(t, c.restarts.Load())
}

func TestRecordedRanksAreStreamsOfTheirOwn(t *testing.T) {
	now := time.Unix(1e9, 0)
	var streams [2]*stream
	var counts [2]counters
	for i := range streams {
		streams[i] = newStream(&index{held: map[Hash]int{}}, &counts[i], false, now)
		streams[i].connected(now)
	}
	recording(t, "vllm-0.32.0-data-parallel-2", func(r recorded) {
		if r.Kind == "event" {
			s := streams[r.Rank]
			require.True(t, s.live(now, r.Seq, frames(t, r.Frames)[2]))
			require.Equal(t, r.Rank, s.batch.Rank)
		}
	})
	for i, s := range streams {
		require.Equal(t, Synced, s.status.State)
		require.Equal(t, []uint64{5, 6}[i], counts[i].batches.Load())
		require.Zero(t, counts[i].gaps.Load())
	}
}

func TestRepliesOfAllReleases(t *testing.T) {
	number, end := unhex(t, "0000000000000007"), unhex(t, "ffffffffffffffff")
	payload := []byte("payload")
	for name, f := range map[string][][]byte{
		"before vLLM 0.26, SGLang 0.5.22": {nil, number, payload},
		"since":                           {nil, []byte("kv-events"), number, payload},
		"with an empty topic":             {nil, nil, number, payload},
		"to a REQ socket, before":         {number, payload},
		"to a REQ socket, since":          {[]byte("kv-events"), number, payload},
	} {
		seq, got, err := parseReply(f)
		require.NoError(t, err, name)
		require.Equal(t, uint64(7), seq, name)
		require.Equal(t, payload, got, name)
	}
	for name, f := range map[string][][]byte{
		"before vLLM 0.26, SGLang 0.5.22": {nil, end, nil},
		"since":                           {nil, nil, end, nil},
		"with a topic":                    {nil, []byte("kv-events"), end, nil},
		"with an empty payload":           {nil, number, nil},
		"with a payload":                  {nil, end, payload},
		"the draft":                       {nil, nil},
	} {
		_, _, err := parseReply(f)
		require.ErrorIs(t, err, errEnd, name)
	}
	for name, f := range map[string][][]byte{
		"one frame":      {payload},
		"five frames":    {nil, nil, nil, number, payload},
		"a short number": {nil, number[:4], payload},
	} {
		_, _, err := parseReply(f)
		require.Error(t, err, name)
		require.NotErrorIs(t, err, errEnd, name)
	}
	for _, engine := range []string{"vllm", "sglang"} {
		layouts := 0
		lines(t, "encodings-"+engine, func(line []byte) {
			var layout struct {
				Kind   string
				Replay struct {
					Last   [][]string `json:"dealer_last_two"`
					Beyond [][]string `json:"dealer_beyond"`
				}
			}
			require.NoError(t, json.Unmarshal(line, &layout))
			if layout.Kind != "layout" {
				return
			}
			layouts++
			var b Batch
			for i, reply := range layout.Replay.Last {
				_, payload, err := parseReply(frames(t, reply))
				if i == len(layout.Replay.Last)-1 {
					require.ErrorIs(t, err, errEnd)
					continue
				}
				require.NoError(t, err)
				require.NoError(t, b.Decode(payload))
			}
			_, _, err := parseReply(frames(t, layout.Replay.Beyond[0]))
			require.ErrorIs(t, err, errEnd)
		})
		require.Greater(t, layouts, 3)
	}
}
