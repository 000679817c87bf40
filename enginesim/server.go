package enginesim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Version is what /version answers: the vLLM release whose answers are imitated.
const Version = "0.32.0"

// Server is a simulated engine's HTTP side. It answers every path: those it does
// not know with 404 in the engine's shape. Make one with NewServer; it may be
// used by many requests at once and needs no closing, since it runs nothing
// between requests, unless its options have Events.
type Server struct {
	opts   Options
	life   atomic.Pointer[life]
	faults faultList
	lastID atomic.Uint64
	watch  atomic.Pointer[func(Prefill)]

	publishers []*publisher // of each rank; empty without events
	restarting sync.Mutex   // held while one life follows another
}

// life is what a restart replaces.
type life struct {
	ranks     []*engine
	turn      atomic.Uint64 // of the rank that gets the next request
	open      atomic.Int64  // generating requests in flight
	received  atomic.Int64  // generating requests whose body was read
	cancelled atomic.Int64  // of those, how many clients left early

	mu       sync.Mutex // guards what follows
	lastSum  [sha256.Size]byte
	lastSize int
}

// Stats is what /sim/stats answers. All counts are since the engine's last start.
type Stats struct {
	Model            string `json:"model"`             // the first one
	Received         int64  `json:"received"`          // requests to generate
	Open             int64  `json:"open"`              // of those, not answered to the end yet
	Cancelled        int64  `json:"cancelled"`         // of those, whose client left early
	Running          int    `json:"running"`           // sequences in prefill and decode
	Waiting          int    `json:"waiting"`           // sequences waiting for prefill
	Finished         int    `json:"finished"`          // sequences that reached their last token
	PromptTokens     int    `json:"prompt_tokens"`     // of prefilled prompts
	CachedTokens     int    `json:"cached_tokens"`     // of those, found in the cache
	GenerationTokens int    `json:"generation_tokens"` // made
	UsedBlocks       int    `json:"used_blocks"`       // held by running sequences
	BlocksStored     int    `json:"blocks_stored"`     // put into the prefix cache
	BlocksRemoved    int    `json:"blocks_removed"`    // evicted from it
	LastBodySHA256   string `json:"last_body_sha256"`  // of the last request to generate
	LastBodyBytes    int    `json:"last_body_bytes"`
}

// NewServer returns an engine that has just started. The error names the first
// option that is wrong.
func NewServer(opts Options) (*Server, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	return newServer(opts), nil
}

func newServer(opts Options) *Server {
	s := &Server{opts: opts}
	if opts.Events != nil {
		for rank := range opts.Ranks {
			s.publishers = append(s.publishers, newPublisher(&s.opts, rank))
		}
	}
	s.life.Store(s.newLife())
	s.lastID.Store(uint64(time.Now().UnixNano())) // any bits will do
	return s
}

func (s *Server) newLife() *life {
	l := &life{}
	for range s.opts.Ranks {
		e := newEngine(s.opts)
		e.told = s.tell
		l.ranks = append(l.ranks, e)
	}
	for rank, p := range s.publishers {
		l.ranks[rank].publish(p)
	}
	return l
}

// Restart makes the engine what a new process would be: empty cache, counters
// at zero, a new start time. Requests in flight lose their connections. Faults
// that wait for requests stay.
func (s *Server) Restart() {
	s.restarting.Lock()
	defer s.restarting.Unlock()
	for _, e := range s.life.Load().ranks {
		e.silence()
	}
	for _, p := range s.publishers {
		p.restart()
	}
	old := s.life.Swap(s.newLife())
	for _, e := range old.ranks {
		e.close()
	}
}

// Stats returns what the engine has counted since its last start.
func (s *Server) Stats() Stats {
	l := s.life.Load()
	stats := Stats{
		Model:     s.opts.Models[0],
		Received:  l.received.Load(),
		Open:      l.open.Load(),
		Cancelled: l.cancelled.Load(),
	}
	for _, e := range l.ranks {
		stats.add(e.gauges())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if stats.Received > 0 {
		stats.LastBodySHA256 = hex.EncodeToString(l.lastSum[:])
		stats.LastBodyBytes = l.lastSize
	}
	return stats
}

// add adds what a rank has counted.
func (s *Stats) add(g gauges) {
	s.Running += g.running
	s.Waiting += g.waiting
	s.Finished += g.counts.finished
	s.PromptTokens += g.counts.promptTokens
	s.CachedTokens += g.counts.cachedTokens
	s.GenerationTokens += g.counts.generationTokens
	s.UsedBlocks += g.usedBlocks
	s.BlocksStored += g.counts.blocksStored
	s.BlocksRemoved += g.counts.blocksRemoved
}

// route is one page: what answers which method, and how it words its errors.
type route struct {
	get, post, del func(*Server, http.ResponseWriter, *http.Request)

	// parse makes the page one that generates, by POST.
	parse func(*Server, *http.Request, []byte) (*job, *apiError)
	fail  func(http.ResponseWriter, *apiError)
}

var routes = map[string]route{
	"/v1/chat/completions":      {parse: (*Server).parseChat},
	"/v1/completions":           {parse: (*Server).parseCompletion},
	"/v1/responses":             {parse: (*Server).parseResponses},
	"/v1/embeddings":            {parse: (*Server).parseEmbeddings},
	"/score":                    {parse: (*Server).parseScore},
	"/v1/score":                 {parse: (*Server).parseScore},
	"/rerank":                   {parse: (*Server).parseRerank},
	"/v1/rerank":                {parse: (*Server).parseRerank},
	"/v2/rerank":                {parse: (*Server).parseRerank},
	"/generate":                 {parse: (*Server).parseNative},
	"/v1/messages":              {parse: (*Server).parseMessages, fail: writeAnthropicError},
	"/v1/messages/count_tokens": {post: (*Server).countTokens, fail: writeAnthropicError},
	"/tokenize":                 {post: (*Server).tokenize},
	"/v1/tokenize":              {post: (*Server).tokenizeAll},
	"/v1/models":                {get: (*Server).models},
	"/health":                   {get: empty},
	"/ping":                     {get: empty, post: empty},
	"/version":                  {get: version},
	"/load":                     {get: (*Server).load},
	"/metrics":                  {get: (*Server).metrics},
	"/reset_prefix_cache":       {post: (*Server).resetPrefixCache},
	"/flush_cache":              {get: (*Server).flushCache, post: (*Server).flushCache},
	"/kv_event_sources":         {get: (*Server).eventSources},
	"/server_info":              {get: (*Server).serverInfo},
	"/get_server_info":          {get: (*Server).serverInfo},
	"/sim/events":               {get: (*Server).listEvents, post: (*Server).changeEvents},
	"/sim/faults":               {get: (*Server).listFaults, post: (*Server).addFault, del: (*Server).clearFaults},
	"/sim/stats":                {get: (*Server).stats},
	"/sim/restart":              {post: (*Server).restart},
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rt, ok := routes[r.URL.Path]
	if rt.fail == nil {
		rt.fail = writeError
	}
	if !ok {
		rt.fail(w, errNotFound)
		return
	}
	if rt.parse != nil && r.Method == http.MethodPost {
		s.serveGeneration(w, r, rt)
		return
	}
	answer := rt.answer(r.Method)
	if answer == nil {
		rt.fail(w, &apiError{status: http.StatusMethodNotAllowed, kind: "Method Not Allowed", message: "Method Not Allowed"})
		return
	}
	if !strings.HasPrefix(r.URL.Path, "/sim/") {
		fault := s.faults.next(r.URL.Path, false)
		err := fault.before(w, r, rt.fail)
		if err == nil {
			err = fault.delay(r.Context().Done(), nil)
		}
		if errors.Is(err, errDie) {
			fault.breakConnection(w)
		}
		if err != nil {
			return
		}
	}
	answer(s, w, r)
}

func (rt *route) answer(method string) func(*Server, http.ResponseWriter, *http.Request) {
	switch method {
	case http.MethodGet, http.MethodHead:
		return rt.get
	case http.MethodPost:
		return rt.post
	case http.MethodDelete:
		return rt.del
	}
	return nil
}

// serveGeneration reads, counts and parses a request to generate, and has it done.
func (s *Server) serveGeneration(w http.ResponseWriter, r *http.Request, rt route) {
	l := s.life.Load()
	l.open.Add(1)
	defer l.open.Add(-1)
	body, apiErr := readBody(w, r)
	if apiErr != nil {
		keepBody(body)
		rt.fail(w, apiErr)
		return
	}
	l.note(body.Bytes())
	out := &output{
		w:       w,
		flusher: http.NewResponseController(w),
		fault:   s.faults.next(r.URL.Path, true),
		gone:    r.Context().Done(),
		stopped: l.ranks[0].stopped, // all of them stop together
	}
	switch err := s.generate(r, rt, l, body, out); {
	case err == nil, errors.Is(err, errAnswered):
	case errors.Is(err, errGone):
		l.cancelled.Add(1)
	case errors.Is(err, errQueueFull) && !out.begun:
		rt.fail(w, &apiError{status: http.StatusServiceUnavailable, kind: "Service Unavailable", message: "The engine's queue is full."})
	default:
		out.fault.breakConnection(w)
	}
}

// generate answers a request to generate, or lets its fault do so. The error
// says why there is no whole answer.
func (s *Server) generate(r *http.Request, rt route, l *life, body *bytes.Buffer, out *output) error {
	j, err := s.parse(r, rt, body, out)
	if err != nil {
		return err
	}
	return j.run(r.Context(), l.rank(j.rank), out)
}

// parse makes a job of a request to generate, and gives its body back: a job
// keeps nothing of it, however long it lasts. The error is errAnswered if there is
// no such job.
func (s *Server) parse(r *http.Request, rt route, body *bytes.Buffer, out *output) (*job, error) {
	defer keepBody(body)
	if err := out.fault.before(out.w, r, rt.fail); err != nil {
		return nil, err
	}
	j, apiErr := rt.parse(s, r, body.Bytes())
	if apiErr != nil {
		rt.fail(out.w, apiErr)
		return nil, errAnswered
	}
	return j, nil
}

func (l *life) note(body []byte) {
	l.received.Add(1)
	sum := sha256.Sum256(body)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastSum, l.lastSize = sum, len(body)
}

// modelFor checks the model of a request; none is the first one.
func (s *Server) modelFor(name string) (string, *apiError) {
	if name == "" {
		return s.opts.Models[0], nil
	}
	for _, known := range s.opts.Models {
		if name == known {
			return known, nil
		}
	}
	return "", &apiError{
		status:  http.StatusNotFound,
		kind:    "NotFoundError",
		message: "The model `" + name + "` does not exist.",
		param:   "model",
	}
}

// maxGivenID is how much of a client's request id is kept, in bytes.
const maxGivenID = 128

// requestID is the client's id for a request, else a new one.
func (s *Server) requestID(r *http.Request) string {
	if given := r.Header.Get("X-Request-Id"); given != "" {
		return given[:min(len(given), maxGivenID)]
	}
	return fmt.Sprintf("%016x", mix(s.lastID.Add(1), 0))
}
