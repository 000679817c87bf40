package enginesim

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVLLMTellsWhereItsEventsAre(t *testing.T) {
	opts := publishing(ShapeVLLM)
	opts.Ranks = 2
	opts.Events.Endpoint, opts.Events.Replay = "tcp://*:5557", "tcp://*:5657"
	s, err := NewServer(opts)
	require.NoError(t, err)
	source := func(port, replay int) string {
		return fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d",
			"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv-events"}`, port, replay)
	}
	require.JSONEq(t, `{"0":`+source(5557, 5657)+`,"1":`+source(5558, 5658)+`}`, do(s, "GET", "/kv_event_sources", "").Body.String())
	require.Equal(t, 404, do(s, "GET", "/server_info", "").Code)

	opts = publishing(ShapeVLLM)
	opts.Events.Replay = ""
	s = publishingServer(t, opts)
	at, _ := s.publishers[0].endpoints()
	require.NotZero(t, at.port)
	body := do(s, "GET", "/kv_event_sources", "").Body.String()
	require.Contains(t, body, fmt.Sprintf(`"endpoint":"tcp://127.0.0.1:%d","replay_endpoint":null`, at.port), "the port that is open")

	old, err := NewServer(publishing(ShapeVLLMArray))
	require.NoError(t, err)
	require.Equal(t, 404, do(old, "GET", "/kv_event_sources", "").Code, "that release had no such page")
	require.JSONEq(t, `{}`, do(instantServer(t), "GET", "/kv_event_sources", "").Body.String())
}

func TestSGLangTellsWhereItsEventsAre(t *testing.T) {
	opts := publishing(ShapeSGLang)
	opts.Ranks, opts.BlockSize = 2, 64
	opts.Events.Endpoint, opts.Events.Replay = "tcp://*:5557", ""
	s, err := NewServer(opts)
	require.NoError(t, err)
	require.JSONEq(t, `{"served_model_name":"sim","page_size":64,"dp_size":2,"max_total_num_tokens":524288,"context_length":131072,
		"disaggregation_mode":"null","speculative_algorithm":null,
		"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"kv-events","block_size":64,"dp_size":2}}`,
		do(s, "GET", "/server_info", "").Body.String())
	opts.Events.Replay = "tcp://*:5657"
	s, err = NewServer(opts)
	require.NoError(t, err)
	require.Contains(t, do(s, "GET", "/get_server_info", "").Body.String(), `"replay_endpoint_port_base":5657`)
	require.Equal(t, 404, do(s, "GET", "/kv_event_sources", "").Code)

	opts.Ranks, opts.Events.Endpoint, opts.Events.Replay = 1, "ipc:///tmp/x", ""
	s, err = NewServer(opts)
	require.NoError(t, err)
	require.Contains(t, do(s, "GET", "/server_info", "").Body.String(), `"kv_events":null`, "as for all but tcp")
}

func TestWrongEventOptionsAreRefusedWithTheReason(t *testing.T) {
	for want, change := range map[string]func(o *Options){
		`shape is "tgi"`:                       func(o *Options) { o.Events.Shape = "tgi" },
		`hashes is "long"`:                     func(o *Options) { o.Events.Hashes = "long" },
		"SGLang has none but int":              func(o *Options) { o.Events.Shape, o.Events.Hashes = ShapeSGLang, HashBytes },
		"buffer_steps is -1":                   func(o *Options) { o.Events.BufferSteps = -1 },
		"buffer_steps is 1048577":              func(o *Options) { o.Events.BufferSteps = 1<<20 + 1 },
		"topic has 255 bytes":                  func(o *Options) { o.Events.Topic = strings.Repeat("x", 255) },
		`endpoint is "5557"`:                   func(o *Options) { o.Events.Endpoint = "5557" },
		"it must have a host":                  func(o *Options) { o.Events.Endpoint = "tcp://:5557" },
		"a number from 0 to 65535":             func(o *Options) { o.Events.Endpoint = "tcp://*:99999" },
		"no ports above it for 3 ranks":        func(o *Options) { o.Ranks, o.Events.Endpoint = 3, "tcp://*:65534" },
		"is for one rank, there are 2":         func(o *Options) { o.Ranks, o.Events.Endpoint = 2, "ipc:///tmp/x" },
		`replay: endpoint is "udp://*:1"`:      func(o *Options) { o.Events.Replay = "udp://*:1" },
		"replay: endpoint tcp://*:65535 has":   func(o *Options) { o.Ranks, o.Events.Endpoint, o.Events.Replay = 2, "tcp://*:1", "tcp://*:65535" },
		"endpoint and replay share ports":      func(o *Options) { o.Ranks, o.Events.Endpoint, o.Events.Replay = 2, "tcp://*:10", "tcp://*:11" },
		"endpoint and replay share ports, as ": func(o *Options) { o.Events.Endpoint, o.Events.Replay = "ipc://x", "ipc://x" },
		"so the ports must be in a row":        func(o *Options) { o.Ranks, o.Events.Shape = 2, ShapeSGLang },
		"ranks is 257":                         func(o *Options) { o.Ranks = 257 },
	} {
		opts := publishing(ShapeVLLM)
		change(&opts)
		_, err := NewServer(opts)
		require.ErrorContains(t, err, want)
	}
}

func TestEventsCanBePublishedOnASocketFile(t *testing.T) {
	opts := publishing(ShapeVLLM)
	opts.Events.Endpoint = "ipc://" + t.TempDir() + "/events"
	s := publishingServer(t, opts)
	sub := subscribe(t, s, 0)
	fillCache(t, s, 0, 1)
	require.Zero(t, sub.next().seq)
}

func TestSocketsOpenAllOrNone(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	opts := publishing(ShapeVLLM)
	opts.Events.Replay = fmt.Sprintf("tcp://127.0.0.1:%d", taken.Addr().(*net.TCPAddr).Port)
	s, err := NewServer(opts)
	require.NoError(t, err)
	require.ErrorContains(t, s.OpenEvents(nil), "events at "+opts.Events.Replay)
	require.False(t, s.Events()[0].Open)
	require.NoError(t, taken.Close())
	require.NoError(t, s.OpenEvents(nil))
	require.NoError(t, s.OpenEvents(nil), "twice does no harm")
	require.True(t, s.Events()[0].Open)
	s.CloseEvents()
	s.CloseEvents()
	require.False(t, s.Events()[0].Open)
}
