package inference

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-inference/caddy-inference/kvevents/zmtp"
)

// EventSource is where engines publish what their KV caches store and let go.
type EventSource struct {
	// The upstream whose engine it is, as written in the reverse_proxy. Default: all that
	// have no entry of their own.
	Upstream string `json:"upstream,omitempty"`

	// The endpoint on which the engine publishes, as in its own `--kv-events-config`:
	// `tcp://*:5557`, where `*` is the upstream's host. The port is that of the first data
	// parallel rank; each further one has the next.
	Endpoint string `json:"endpoint"`

	// The endpoint on which it replays what was missed, in the same form. Default: none;
	// then all is known only of engines that were started, or cleared their cache, since.
	Replay string `json:"replay,omitempty"`
}

const (
	// maxRanks bounds the data parallel ranks of an engine, each with a link of its own.
	maxRanks = 64

	// maxPage bounds what is read of the pages on which engines say where their events are, in
	// bytes. SGLang's has all of its options.
	maxPage = 1 << 20

	maxPort = 1<<16 - 1
)

// validate checks what is configured, after some others.
func (e *EventSource) validate(others []EventSource) error {
	if e.Endpoint == "" {
		return errors.New("has no endpoint; add one, as events tcp://*:5557")
	}
	if _, _, err := zmtp.ParseEndpoint(e.Endpoint); err != nil {
		return fmt.Errorf("%w; write it as in the engine's own --kv-events-config, such as tcp://*:5557", err)
	}
	if e.Replay != "" {
		if _, _, err := zmtp.ParseEndpoint(e.Replay); err != nil {
			return fmt.Errorf("replay %w; write it as in the engine's own --kv-events-config, such as tcp://*:5558", err)
		}
	}
	for _, other := range others {
		if other.Upstream == e.Upstream {
			return fmt.Errorf("upstream '%s' is there twice; keep one", e.Upstream)
		}
	}
	return nil
}

// eventOptions are what one policy says of where events are.
type eventOptions struct {
	engine  string
	sources []EventSource
}

// of returns what is configured for the upstream at address, nil if that is nothing.
func (o *eventOptions) of(address string) *EventSource {
	var others *EventSource
	for i := range o.sources {
		switch o.sources[i].Upstream {
		case address:
			return &o.sources[i]
		case "":
			others = &o.sources[i]
		}
	}
	return others
}

// equal reports whether both say the same of the upstream at address.
func (o *eventOptions) equal(other *eventOptions, address string) bool {
	a, b := o.of(address), other.of(address)
	return o.engine == other.engine && (a == b || a != nil && b != nil && *a == *b)
}

// source is where one data parallel rank publishes, as it can be connected to.
type source struct {
	rank     int
	endpoint string
	replay   string // empty if there is none
	topic    string
}

var errNoEvents = errors.New("events are not enabled")

// ranked returns the sources of so many ranks of the engine at address.
func (e *EventSource) ranked(address string, ranks int) ([]source, error) {
	if network, _, _ := zmtp.ParseEndpoint(e.Endpoint); network == "unix" {
		return []source{{endpoint: e.Endpoint, replay: e.Replay}}, nil
	}
	sources := make([]source, max(ranks, 1))
	for i := range sources {
		s := &sources[i]
		s.rank = i
		var err error
		if s.endpoint, err = e.endpoint(e.Endpoint, address, i); err != nil {
			return nil, err
		}
		if s.replay, err = e.endpoint(e.Replay, address, i); err != nil {
			return nil, err
		}
	}
	return sources, nil
}

// endpoint returns the endpoint of a rank, where configured is that of the first.
func (e *EventSource) endpoint(configured, address string, rank int) (string, error) {
	network, first, err := zmtp.ParseEndpoint(configured)
	if configured == "" || network == "unix" {
		return configured, nil
	}
	host, port, _ := net.SplitHostPort(first)
	if host == "" {
		host = hostOf(address)
	}
	n, _ := strconv.Atoi(port)
	return tcpEndpoint(host, n+rank, err)
}

// hostOf returns the host of an upstream's address, nothing if it has none.
func hostOf(address string) string {
	a, err := caddy.ParseNetworkAddress(address)
	if err != nil || a.Network != "tcp" {
		return ""
	}
	return cmp.Or(a.Host, "localhost")
}

// tcpEndpoint returns an endpoint if there can be one, and there was no error before.
func tcpEndpoint(host string, port int, err error) (string, error) {
	if err == nil && (host == "" || port < 1 || port > maxPort) {
		err = fmt.Errorf("no endpoint at port %d of '%s'", port, host)
	}
	if err != nil {
		return "", err
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port)), nil
}

// askSources asks the engine of w where its events are.
func askSources(ctx context.Context, w *worker, engine string) ([]source, error) {
	if engine != sglang {
		sources, err := askPage(ctx, w, "/kv_event_sources", vllmSources)
		if engine == vllm || !errors.Is(err, errNoPage) {
			return sources, err
		}
	}
	return askPage(ctx, w, "/server_info", sglangSources)
}

// errNoPage says that the engine answers, but has no such page.
var errNoPage = errors.New("no such page")

// askPage reads the sources off a page of w's engine.
func askPage(ctx context.Context, w *worker, path string, read func(page []byte, host string) ([]source, error)) ([]source, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	response, err := get(ctx, w, path)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode >= http.StatusInternalServerError {
		return nil, fmt.Errorf("%s answered %d", path, response.StatusCode)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: %s answered %d", errNoPage, path, response.StatusCode)
	}
	page, err := io.ReadAll(io.LimitReader(response.Body, maxPage))
	if err != nil {
		return nil, err
	}
	sources, err := read(page, hostOf(w.Address()))
	if err != nil && !errors.Is(err, errNoEvents) {
		err = fmt.Errorf("%w: %s: %w", errNoPage, path, err)
	}
	return sources, err
}

// vllmSources reads vLLM's page, which has an entry for each rank.
//
// Of an endpoint only the port is taken. The host is the upstream's, whatever the page
// says: an engine must not have the router connect to others.
func vllmSources(page []byte, host string) ([]source, error) {
	var ranks map[string]struct {
		Enabled   bool   `json:"enable_kv_cache_events"`
		Publisher string `json:"publisher"`
		Endpoint  string `json:"endpoint"`
		Replay    string `json:"replay_endpoint"`
		Topic     string `json:"topic"`
	}
	if err := json.Unmarshal(page, &ranks); err != nil {
		return nil, err
	}
	if len(ranks) > maxRanks {
		return nil, fmt.Errorf("%d ranks", len(ranks))
	}
	var sources []source
	for _, name := range slices.Sorted(maps.Keys(ranks)) {
		said := ranks[name]
		rank, err := strconv.Atoi(name)
		if err != nil || rank < 0 {
			return nil, fmt.Errorf("rank '%.20s'", name)
		}
		if !said.Enabled || said.Publisher != "zmq" {
			return nil, errNoEvents
		}
		s := source{rank: rank, topic: said.Topic}
		if s.endpoint, err = tcpEndpoint(host, portOf(said.Endpoint), nil); err != nil {
			return nil, err
		}
		if port := portOf(said.Replay); port > 0 {
			s.replay, err = tcpEndpoint(host, port, nil)
		}
		if err != nil {
			return nil, err
		}
		sources = append(sources, s)
	}
	if len(sources) == 0 {
		return nil, errNoEvents
	}
	slices.SortFunc(sources, func(a, b source) int { return cmp.Compare(a.rank, b.rank) })
	for i := range sources[1:] {
		if sources[i].rank == sources[i+1].rank {
			return nil, fmt.Errorf("rank %d is there twice", sources[i].rank)
		}
	}
	return sources, nil
}

// portOf returns the port of a TCP endpoint, 0 if it has none.
func portOf(endpoint string) int {
	rest, isTCP := strings.CutPrefix(endpoint, "tcp://")
	port, err := strconv.Atoi(rest[strings.LastIndexByte(rest, ':')+1:])
	if !isTCP || err != nil {
		return 0
	}
	return port
}

// sglangSources reads SGLang's page, which has the ports of the first rank.
func sglangSources(page []byte, host string) ([]source, error) {
	var info struct {
		Events *struct {
			Publisher string `json:"publisher"`
			Port      int    `json:"endpoint_port_base"`
			Replay    int    `json:"replay_endpoint_port_base"`
			Topic     string `json:"topic"`
			Ranks     int    `json:"dp_size"`
		} `json:"kv_events"`
	}
	if err := json.Unmarshal(page, &info); err != nil {
		return nil, err
	}
	said := info.Events
	if said == nil || said.Publisher != "zmq" {
		return nil, errNoEvents
	}
	if said.Ranks > maxRanks {
		return nil, fmt.Errorf("%d ranks", said.Ranks)
	}
	sources := make([]source, max(said.Ranks, 1))
	for i := range sources {
		s := &sources[i]
		s.rank, s.topic = i, said.Topic
		var err error
		if s.endpoint, err = tcpEndpoint(host, said.Port+i, nil); err != nil {
			return nil, err
		}
		if said.Replay == 0 {
			continue
		}
		if s.replay, err = tcpEndpoint(host, said.Replay+i, nil); err != nil {
			return nil, err
		}
	}
	return sources, nil
}
