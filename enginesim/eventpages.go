package enginesim

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
)

// OpenEvents opens the sockets on which the engine publishes its events, of all ranks or
// none. listen is net.Listen if nil. Once they are open, and without events, it does nothing.
func (s *Server) OpenEvents(listen ListenFunc) error {
	if listen == nil {
		listen = listenTCP
	}
	for _, p := range s.publishers {
		if err := p.open(listen); err != nil {
			s.CloseEvents()
			return err
		}
	}
	return nil
}

// CloseEvents closes the sockets, if they are open, and waits for what serves them.
func (s *Server) CloseEvents() {
	for _, p := range s.publishers {
		p.close()
	}
}

// eventSource is where vLLM says that the events of a rank are.
type eventSource struct {
	Enabled     bool    `json:"enable_kv_cache_events"`
	Publisher   string  `json:"publisher"`
	Endpoint    string  `json:"endpoint"`
	Replay      *string `json:"replay_endpoint"`
	BufferSteps int     `json:"buffer_steps"`
	HighWater   int     `json:"hwm"`
	QueueSize   int     `json:"max_queue_size"`
	Topic       string  `json:"topic"`
}

// eventSources is vLLM's page: the sockets by rank. Releases that write arrays have none.
func (s *Server) eventSources(w http.ResponseWriter, _ *http.Request) {
	if s.opts.Events != nil && s.opts.Events.Shape != ShapeVLLM {
		writeError(w, errNotFound)
		return
	}
	sources := make(map[string]eventSource, len(s.publishers))
	for _, p := range s.publishers {
		live, replay := p.endpoints()
		source := eventSource{
			Enabled: true, Publisher: "zmq", Endpoint: live.String(),
			BufferSteps: s.opts.Events.BufferSteps, HighWater: highWater, QueueSize: highWater, Topic: s.opts.Events.Topic,
		}
		if s.opts.Events.Replay != "" {
			source.Replay = new(replay.String())
		}
		sources[strconv.Itoa(p.rank)] = source
	}
	writeJSON(w, http.StatusOK, sources)
}

// endpoints are those of the rank, with the ports they have got if they are open.
func (p *publisher) endpoints() (live, replay endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sockets != nil {
		return p.sockets.live, p.sockets.replay
	}
	live, _ = parseEndpoint(p.options.Endpoint) // both were validated
	replay, _ = parseEndpoint(p.options.Replay)
	return live.of(p.rank), replay.of(p.rank)
}

// eventInfo is where SGLang says that its events are.
type eventInfo struct {
	Publisher string `json:"publisher"`
	Host      string `json:"endpoint_host"`
	Port      int    `json:"endpoint_port_base"`
	Topic     string `json:"topic"`
	BlockSize int    `json:"block_size"`
	Ranks     int    `json:"dp_size"`
	Replay    *int   `json:"replay_endpoint_port_base,omitempty"`
}

// serverInfo is SGLang's page, as far as a router reads it.
func (s *Server) serverInfo(w http.ResponseWriter, _ *http.Request) {
	if !s.opts.radix() {
		writeError(w, errNotFound)
		return
	}
	live, replay := s.publishers[0].endpoints()
	info := &eventInfo{
		Publisher: "zmq", Host: live.host, Port: live.port, Topic: s.opts.Events.Topic,
		BlockSize: s.opts.BlockSize, Ranks: s.opts.Ranks,
	}
	if s.opts.Events.Replay != "" && replay.network == "tcp" {
		info.Replay = &replay.port
	}
	if live.network != "tcp" {
		info = nil
	}
	writeJSON(w, http.StatusOK, struct {
		Model       string     `json:"served_model_name"`
		PageSize    int        `json:"page_size"`
		Ranks       int        `json:"dp_size"`
		Capacity    int        `json:"max_total_num_tokens"`
		ContextLen  int        `json:"context_length"`
		Mode        string     `json:"disaggregation_mode"`
		Speculative *string    `json:"speculative_algorithm"`
		Events      *eventInfo `json:"kv_events"`
	}{s.opts.Models[0], s.opts.BlockSize, s.opts.Ranks, s.opts.blocks() * s.opts.BlockSize, s.opts.MaxModelLen, "null", nil, info})
}

// EventChange is what goes wrong on purpose with the events. Members that are left out
// change nothing.
type EventChange struct {
	// Rank is the rank it is for. Without it, it is for all.
	Rank *int `json:"rank,omitempty"`

	// Drop is how many batches to come are not sent. They have their numbers and can be
	// replayed, so that subscribers see a gap.
	Drop *int `json:"drop,omitempty"`

	// Restart begins anew, as another process does: numbers from 0, nothing to replay, no
	// connection left. `kept` leaves the cache as it is, `emptied` restarts the engine.
	Restart string `json:"restart,omitempty"`

	// Shape is what events are written as from now on. That engines of one family keep
	// their caches alike does not change with it.
	Shape Shape `json:"shape,omitempty"`

	// Publish stops publishing or resumes it. What happens to the cache in between is
	// told to nobody, and nobody can see that something is missing.
	Publish *bool `json:"publish,omitempty"`

	// Replay is how requests for a replay are met: `answer`, `silent`, or `lossy`, which
	// leaves out every third batch.
	Replay ReplayMode `json:"replay,omitempty"`
}

func (c *EventChange) validate(ranks int) error {
	switch {
	case ranks == 0:
		return errors.New("the engine publishes no events: configure them")
	case c.Rank != nil && (*c.Rank < 0 || *c.Rank >= ranks):
		return fmt.Errorf("rank is %d: there are 0 to %d", *c.Rank, ranks-1)
	case c.Drop != nil && *c.Drop < 0:
		return fmt.Errorf("drop is %d: it must not be negative", *c.Drop)
	case !slices.Contains([]string{"", "kept", "emptied"}, c.Restart):
		return fmt.Errorf("restart is %q: use kept or emptied", c.Restart)
	case c.Restart == "emptied" && c.Rank != nil:
		return errors.New("restart is emptied: the ranks of an engine restart together, leave rank out")
	case !slices.Contains([]ReplayMode{"", ReplayAnswer, ReplaySilent, ReplayLossy}, c.Replay):
		return fmt.Errorf("replay is %q: use answer, silent or lossy", string(c.Replay))
	case c.Shape != "":
		return c.Shape.validate()
	}
	return nil
}

// ChangeEvents has something go wrong, or go right again. It lasts over restarts.
func (s *Server) ChangeEvents(c EventChange) error {
	if err := c.validate(len(s.publishers)); err != nil {
		return err
	}
	if c.Restart == "emptied" {
		s.Restart()
	}
	for _, p := range s.publishers {
		if c.Rank == nil || *c.Rank == p.rank {
			p.change(&c)
		}
	}
	return nil
}

func (p *publisher) change(c *EventChange) {
	if c.Restart == "kept" {
		p.restart()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Drop != nil {
		p.drop = *c.Drop
	}
	if c.Publish != nil {
		p.stopped = !*c.Publish
	}
	p.shape = cmp.Or(c.Shape, p.shape)
	p.replays = cmp.Or(c.Replay, p.replays)
}

// EventState is how it stands with the events of a rank.
type EventState struct {
	Rank        int        `json:"rank"`
	Endpoint    string     `json:"endpoint"`
	Open        bool       `json:"open"` // the sockets are
	Subscribers int        `json:"subscribers"`
	Shape       Shape      `json:"shape"`
	Next        uint64     `json:"next"` // the number of the next batch
	Kept        int        `json:"kept"` // batches that can be replayed
	Drop        int        `json:"drop"` // batches to come that are not sent
	Publish     bool       `json:"publish"`
	Replay      ReplayMode `json:"replay"`
}

// Events tells how it stands with the events, rank by rank.
func (s *Server) Events() []EventState {
	states := make([]EventState, 0, len(s.publishers))
	for _, p := range s.publishers {
		states = append(states, p.state())
	}
	return states
}

func (p *publisher) state() EventState {
	live, _ := p.endpoints()
	p.mu.Lock()
	defer p.mu.Unlock()
	state := EventState{
		Rank: p.rank, Endpoint: live.String(), Open: p.sockets != nil, Shape: p.shape, Next: p.seq,
		Kept: len(p.kept), Drop: p.drop, Publish: !p.stopped, Replay: p.replays,
	}
	if p.sockets != nil {
		state.Subscribers = p.sockets.subscribers(p.options.Topic)
	}
	return state
}

func (s *Server) listEvents(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.Events())
}

func (s *Server) changeEvents(w http.ResponseWriter, r *http.Request) {
	var c EventChange
	err := readRequest(r, &c)
	if err == nil {
		err = s.ChangeEvents(c)
	}
	if err != nil {
		writeError(w, badRequest("events: "+err.Error(), ""))
		return
	}
	writeJSON(w, http.StatusOK, s.Events())
}
