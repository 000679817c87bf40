package enginesim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"net/http"
	"strconv"
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
// between requests.
type Server struct {
	opts   Options
	life   atomic.Pointer[life]
	faults faultList
	lastID atomic.Uint64
}

// life is what a restart replaces.
type life struct {
	engine    *engine
	open      atomic.Int64 // generating requests in flight
	received  atomic.Int64 // generating requests whose body was read
	cancelled atomic.Int64 // of those, how many clients left early

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
	s.life.Store(&life{engine: newEngine(opts)})
	s.lastID.Store(uint64(time.Now().UnixNano())) // #nosec G115 -- any bits will do
	return s
}

// Restart makes the engine what a new process would be: empty cache, counters
// at zero, a new start time. Requests in flight lose their connections. Faults
// that wait for requests stay.
func (s *Server) Restart() {
	old := s.life.Swap(&life{engine: newEngine(s.opts)})
	old.engine.close()
}

// Stats returns what the engine has counted since its last start.
func (s *Server) Stats() Stats {
	l := s.life.Load()
	g := l.engine.gauges()
	stats := Stats{
		Model:            s.opts.Models[0],
		Received:         l.received.Load(),
		Open:             l.open.Load(),
		Cancelled:        l.cancelled.Load(),
		Running:          g.running,
		Waiting:          g.waiting,
		Finished:         g.counts.finished,
		PromptTokens:     g.counts.promptTokens,
		CachedTokens:     g.counts.cachedTokens,
		GenerationTokens: g.counts.generationTokens,
		UsedBlocks:       g.usedBlocks,
		BlocksStored:     g.counts.blocksStored,
		BlocksRemoved:    g.counts.blocksRemoved,
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if stats.Received > 0 {
		stats.LastBodySHA256 = hex.EncodeToString(l.lastSum[:])
		stats.LastBodyBytes = l.lastSize
	}
	return stats
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
	"/v1/messages":              {parse: (*Server).parseMessages, fail: writeAnthropicError},
	"/v1/messages/count_tokens": {post: (*Server).countTokens, fail: writeAnthropicError},
	"/tokenize":                 {post: (*Server).tokenize},
	"/v1/models":                {get: (*Server).models},
	"/health":                   {get: empty},
	"/ping":                     {get: empty, post: empty},
	"/version":                  {get: version},
	"/load":                     {get: (*Server).load},
	"/metrics":                  {get: (*Server).metrics},
	"/reset_prefix_cache":       {post: (*Server).resetPrefixCache},
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
		rt.fail(w, &apiError{status: http.StatusNotFound, kind: "Not Found", message: "Not Found"})
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

// bodies are reused between requests: a prompt of many thousand tokens is read
// into memory that is there already.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxKeptBody is the largest buffer worth keeping, in bytes.
const maxKeptBody = 1 << 20

func keepBody(body *bytes.Buffer) {
	if body.Cap() <= maxKeptBody {
		bodies.Put(body)
	}
}

// readBody reads the whole body of a request. The buffer must go back by
// keepBody, whether there is an error or not.
func readBody(w http.ResponseWriter, r *http.Request) (*bytes.Buffer, *apiError) {
	body := bodies.Get().(*bytes.Buffer)
	body.Reset()
	if r.ContentLength > 0 && r.ContentLength <= maxBody {
		body.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return body, &apiError{
			status:  http.StatusRequestEntityTooLarge,
			kind:    "Request Entity Too Large",
			message: fmt.Sprintf("The body is larger than %d bytes.", tooLarge.Limit),
		}
	}
	if err != nil {
		return body, badRequest("The body could not be read to its end.", "")
	}
	return body, nil
}

// serveGeneration reads, counts and parses a request to generate, and has it done.
func (s *Server) serveGeneration(w http.ResponseWriter, r *http.Request, rt route) {
	l := s.life.Load()
	l.open.Add(1)
	defer l.open.Add(-1)
	body, apiErr := readBody(w, r)
	defer keepBody(body)
	if apiErr != nil {
		rt.fail(w, apiErr)
		return
	}
	l.note(body.Bytes())
	out := &output{
		w:       w,
		flusher: http.NewResponseController(w),
		fault:   s.faults.next(r.URL.Path, true),
		gone:    r.Context().Done(),
		stopped: l.engine.stopped,
	}
	switch err := s.generate(r, rt, l.engine, body.Bytes(), out); {
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
func (s *Server) generate(r *http.Request, rt route, e *engine, body []byte, out *output) error {
	if err := out.fault.before(out.w, r, rt.fail); err != nil {
		return err
	}
	j, apiErr := rt.parse(s, r, body)
	if apiErr != nil {
		rt.fail(out.w, apiErr)
		return nil
	}
	return j.run(r.Context(), e, out)
}

func (l *life) note(body []byte) {
	l.received.Add(1)
	sum := sha256.Sum256(body)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastSum, l.lastSize = sum, len(body)
}

// lenient accepts what Python's parser accepts: of members of the same name the
// last one counts.
var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), json.FormatNilSliceAsNull(true), json.FormatNilMapAsNull(true))

// decode parses a request's body. What it says about errors holds where and
// what kind, never what the client wrote.
func decode(body []byte, into any) *apiError {
	err := json.Unmarshal(body, into, lenient)
	if err == nil {
		return nil
	}
	if semantic, ok := errors.AsType[*json.SemanticError](err); ok {
		return &apiError{
			status:  http.StatusBadRequest,
			kind:    "Bad Request",
			message: fmt.Sprintf("Input should be a valid %s at %s (byte %d).", jsonName(semantic), semantic.JSONPointer, semantic.ByteOffset),
		}
	}
	offset := int64(len(body))
	if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		offset = syntactic.ByteOffset
	}
	return &apiError{status: http.StatusBadRequest, kind: "Bad Request", message: fmt.Sprintf("JSON decode error at byte %d.", offset)}
}

func jsonName(err *json.SemanticError) string {
	if err.GoType == nil {
		return "value"
	}
	switch kind := err.GoType.Kind().String(); kind {
	case "struct", "map":
		return "object"
	case "slice":
		return "list"
	case "bool", "string":
		return kind
	default:
		return "number"
	}
}

// apiError is an error in the words of the API it is answered by.
type apiError struct {
	status  int
	kind    string
	message string
	param   string
}

func badRequest(message, param string) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: "BadRequestError", message: message, param: param}
}

// writeError answers in the shape of vLLM's OpenAI pages.
func writeError(w http.ResponseWriter, e *apiError) {
	type shape struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	body := shape{Message: e.message, Type: e.kind, Code: e.status}
	if e.param != "" {
		body.Param = &e.param
	}
	writeJSON(w, e.status, map[string]shape{"error": body})
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value, lenient, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that left is noticed elsewhere
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

func empty(_ *Server, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

func version(_ *Server, w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"version": Version})
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	type card struct {
		ID          string  `json:"id"`
		Object      string  `json:"object"`
		Created     int64   `json:"created"`
		OwnedBy     string  `json:"owned_by"`
		Root        string  `json:"root"`
		Parent      *string `json:"parent"`
		MaxModelLen int     `json:"max_model_len"`
	}
	cards := make([]card, 0, len(s.opts.Models))
	for _, name := range s.opts.Models {
		cards = append(cards, card{ID: name, Object: "model", Created: s.life.Load().engine.started.Unix(), OwnedBy: "enginesim", Root: name, MaxModelLen: s.opts.MaxModelLen})
	}
	writeJSON(w, http.StatusOK, struct {
		Object string `json:"object"`
		Data   []card `json:"data"`
	}{"list", cards})
}

func (s *Server) load(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]int64{"server_load": s.life.Load().open.Load()})
}

func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(s.life.Load().engine.appendMetrics(nil)) // a scraper that left needs no answer
}

// resetPrefixCache answers 200 whether there was something in use or not, as
// vLLM does.
func (s *Server) resetPrefixCache(w http.ResponseWriter, _ *http.Request) {
	s.life.Load().engine.resetCache()
	w.WriteHeader(http.StatusOK)
}

func (s *Server) stats(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.Stats())
}

func (s *Server) restart(w http.ResponseWriter, _ *http.Request) {
	s.Restart()
	w.WriteHeader(http.StatusNoContent)
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

// tokenize answers with the ids of a text or a conversation.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Model  string  `json:"model"`
		Prompt *string `json:"prompt"`
		conversation
	}
	body, apiErr := readBody(w, r)
	defer keepBody(body)
	if apiErr == nil {
		apiErr = decode(body.Bytes(), &req)
	}
	if apiErr == nil {
		_, apiErr = s.modelFor(req.Model)
	}
	if apiErr != nil {
		writeError(w, apiErr)
		return
	}
	var p prompt
	if req.Prompt != nil {
		p.ids = appendTokens(nil, *req.Prompt)
	} else {
		var err error
		if p, err = req.render(); err != nil {
			writeError(w, badRequest(err.Error(), "messages"))
			return
		}
	}
	if p.ids == nil {
		p.ids = []uint32{}
	}
	writeJSON(w, http.StatusOK, struct {
		Count       int      `json:"count"`
		MaxModelLen int      `json:"max_model_len"`
		Tokens      []uint32 `json:"tokens"`
		TokenStrs   []string `json:"token_strs"`
	}{len(p.ids), s.opts.MaxModelLen, p.ids, nil})
}
