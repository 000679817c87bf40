package inference

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/stretchr/testify/require"
)

// rankPage is vLLM's page for one rank.
const rankPage = `{"%s": {"enable_kv_cache_events": %t, "publisher": "%s", "endpoint": "%s", "replay_endpoint": %s, "buffer_steps": 10000, "topic": "kv-events"}}`

func TestThePagesOfEnginesTellWhereTheirEventsAre(t *testing.T) {
	const host = "gpu1"
	vllm := func(rank string, enabled bool, publisher, endpoint, replay string) string {
		return fmt.Sprintf(rankPage, rank, enabled, publisher, endpoint, replay)
	}
	one := source{endpoint: "tcp://gpu1:5557", replay: "tcp://gpu1:5558", topic: "kv-events"}
	tests := map[string]struct {
		read     func([]byte, string) ([]source, error)
		page     string
		expected []source
		err      string
	}{
		"one rank":             {vllmSources, vllm("0", true, "zmq", "tcp://*:5557", `"tcp://*:5558"`), []source{one}, ""},
		"no replay":            {vllmSources, vllm("0", true, "zmq", "tcp://*:5557", `null`), []source{{endpoint: one.endpoint, topic: one.topic}}, ""},
		"IPv6":                 {vllmSources, vllm("0", true, "zmq", "tcp://[::]:5557", `"tcp://[::]:5558"`), []source{one}, ""},
		"a host of its own":    {vllmSources, vllm("0", true, "zmq", "tcp://10.0.0.7:5557", `"tcp://10.0.0.7:5558"`), []source{one}, ""},
		"a host of others":     {vllmSources, vllm("0", true, "zmq", "tcp://metadata.internal:5557", `"tcp://metadata.internal:5558"`), []source{one}, ""},
		"another rank":         {vllmSources, vllm("3", true, "zmq", "tcp://*:5557", `"tcp://*:5558"`), []source{{3, one.endpoint, one.replay, one.topic}}, ""},
		"off":                  {vllmSources, vllm("0", false, "zmq", "tcp://*:5557", `null`), nil, errNoEvents.Error()},
		"another publisher":    {vllmSources, vllm("0", true, "null", "tcp://*:5557", `null`), nil, errNoEvents.Error()},
		"no rank":              {vllmSources, `{}`, nil, errNoEvents.Error()},
		"a file":               {vllmSources, vllm("0", true, "zmq", "ipc:///tmp/events", `null`), nil, "no endpoint"},
		"a port beyond":        {vllmSources, vllm("0", true, "zmq", "tcp://*:70000", `null`), nil, "port 70000"},
		"no number of a rank":  {vllmSources, vllm("x", true, "zmq", "tcp://*:5557", `null`), nil, "rank 'x'"},
		"a rank twice":         {vllmSources, strings.TrimSuffix(vllm("1", true, "zmq", "tcp://*:1", `null`), "}") + "," + vllm("01", true, "zmq", "tcp://*:1", `null`)[1:], nil, "twice"},
		"no page":              {vllmSources, `<html>`, nil, "invalid"},
		"too many ranks":       {vllmSources, "{" + strings.TrimSuffix(manyRanks(65), ",") + "}", nil, "65 ranks"},
		"SGLang":               {sglangSources, `{"tp_size":1,"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"kv-events","block_size":64,"dp_size":1,"replay_endpoint_port_base":5558}}`, []source{one}, ""},
		"SGLang's ranks":       {sglangSources, `{"kv_events":{"publisher":"zmq","endpoint_host":"0.0.0.0","endpoint_port_base":5557,"dp_size":2}}`, []source{{endpoint: "tcp://gpu1:5557"}, {rank: 1, endpoint: "tcp://gpu1:5558"}}, ""},
		"SGLang without":       {sglangSources, `{"kv_events":null}`, nil, errNoEvents.Error()},
		"SGLang off":           {sglangSources, `{"kv_events":{"publisher":"null"}}`, nil, errNoEvents.Error()},
		"SGLang's last ports":  {sglangSources, `{"kv_events":{"publisher":"zmq","endpoint_port_base":65535,"dp_size":2}}`, nil, "port 65536"},
		"SGLang has too many":  {sglangSources, `{"kv_events":{"publisher":"zmq","endpoint_port_base":1,"dp_size":1000000000}}`, nil, "ranks"},
		"SGLang says nonsense": {sglangSources, `{"kv_events":7}`, nil, "json"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			sources, err := test.read([]byte(test.page), host)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.expected, sources)
		})
	}
}

func manyRanks(n int) string {
	var b strings.Builder
	for i := range n {
		page := fmt.Sprintf(rankPage, fmt.Sprint(i), true, "zmq", "tcp://*:5557", "null")
		b.WriteString(page[1:len(page)-1] + ",")
	}
	return b.String()
}

func TestWhatIsConfiguredNamesTheUpstreamsHostAndTheRanksPorts(t *testing.T) {
	o := eventOptions{sources: []EventSource{
		{Endpoint: "tcp://*:5557", Replay: "tcp://*:5567"},
		{Upstream: "gpu2:8000", Endpoint: "tcp://node2:30557"},
		{Upstream: "gpu3:8000", Endpoint: "ipc:///run/events"},
	}}
	ranked := func(address string, ranks int) []source {
		sources, err := o.of(address).ranked(address, ranks)
		require.NoError(t, err)
		return sources
	}
	require.Equal(t, []source{{0, "tcp://gpu1:5557", "tcp://gpu1:5567", ""}}, ranked("gpu1:8000", 0))
	require.Equal(t, []source{{0, "tcp://[::1]:5557", "tcp://[::1]:5567", ""}, {1, "tcp://[::1]:5558", "tcp://[::1]:5568", ""}}, ranked("[::1]:8000", 2))
	require.Equal(t, []source{{0, "tcp://node2:30557", "", ""}}, ranked("gpu2:8000", 1))
	require.Equal(t, []source{{0, "ipc:///run/events", "", ""}}, ranked("gpu3:8000", 1))

	last := EventSource{Endpoint: "tcp://*:65535"}
	_, err := last.ranked("gpu1:8000", 2)
	require.ErrorContains(t, err, "port 65536")
	none := eventOptions{}
	require.Nil(t, none.of("gpu1:8000"))
	require.True(t, none.equal(&eventOptions{}, "gpu1:8000"))
	require.False(t, none.equal(&o, "gpu1:8000"))
	require.True(t, o.equal(&eventOptions{sources: o.sources[:1]}, "gpu1:8000"))
	require.False(t, o.equal(&eventOptions{sources: o.sources[:1]}, "gpu2:8000"))
}

// TestAnEngineIsAskedByTheNameItIsKnownBy asks servers that have one page, the other, none,
// or trouble.
func TestAnEngineIsAskedByTheNameItIsKnownBy(t *testing.T) {
	vllmPage := fmt.Sprintf(rankPage, "0", true, "zmq", "tcp://*:5557", "null")
	const sglangPage = `{"kv_events":{"publisher":"zmq","endpoint_port_base":6557}}`
	tests := map[string]struct {
		pages  map[string]string
		engine string
		port   string
		err    error
	}{
		"vLLM":                       {map[string]string{"/kv_event_sources": vllmPage}, anyEngine, ":5557", nil},
		"SGLang":                     {map[string]string{"/server_info": sglangPage}, anyEngine, ":6557", nil},
		"SGLang, asked for nothing":  {map[string]string{"/server_info": sglangPage}, vllm, "", errNoPage},
		"vLLM, said to be SGLang":    {map[string]string{"/kv_event_sources": vllmPage}, sglang, "", errNoPage},
		"neither":                    {nil, anyEngine, "", errNoPage},
		"a page of something else":   {map[string]string{"/kv_event_sources": "<html>", "/server_info": "<html>"}, anyEngine, "", errNoPage},
		"a page that never ends":     {map[string]string{"/kv_event_sources": strings.Repeat(" ", 2*maxPage) + vllmPage}, vllm, "", errNoPage},
		"events that are turned off": {map[string]string{"/kv_event_sources": "{}"}, anyEngine, "", errNoEvents},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				page, ok := test.pages[r.URL.Path]
				if !ok {
					w.WriteHeader(http.StatusNotFound)
				}
				fmt.Fprint(w, page)
			}))
			defer server.Close()
			sources, err := askSources(t.Context(), reachable(server), test.engine)
			if test.err != nil {
				require.ErrorIs(t, err, test.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, "tcp://127.0.0.1"+test.port, sources[0].endpoint)
		})
	}
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))
	defer busy.Close()
	_, err := askSources(t.Context(), reachable(busy), anyEngine)
	require.ErrorContains(t, err, "answered 502")
	require.NotErrorIs(t, err, errNoPage, "it is to be asked again")
	ended, end := context.WithCancel(t.Context())
	end()
	_, err = askSources(ended, reachable(busy), anyEngine)
	require.ErrorIs(t, err, context.Canceled)
}

// reachable returns a worker whose engine is a server.
func reachable(server *httptest.Server) *worker {
	w := newWorker(newState().fleet.Join(server.Listener.Addr().String()))
	w.transport.Store(&reverseproxy.HTTPTransport{Transport: http.DefaultTransport.(*http.Transport)})
	return w
}
