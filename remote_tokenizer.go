package inference

import (
	"bytes"
	"context"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/zeebo/xxh3"
	"go.uber.org/zap"
)

const (
	// maxTokenizeCalls bounds the calls of one pool that are under way.
	maxTokenizeCalls = 64

	// tokenizeCallTimeout bounds one call, its answer included, however long requests wait
	// for it: 200,000 tokens were seen to take 0.3 s.
	tokenizeCallTimeout = 5 * time.Second

	// maxTokenizeAnswer bounds an answer, in bytes: [maxIDs] ids of seven digits.
	maxTokenizeAnswer = 8*maxIDs + 1<<10

	// maxCountDigits is more than any count of ids has.
	maxCountDigits = 16

	// maxTokenizeError is how much of a refusal is read to tell what it is about.
	maxTokenizeError = 4 << 10
)

// remoteTokenizer has the engines of a pool make token ids of prompts: one of them for each
// prompt, and another only if that one fails. What they answered is remembered.
type remoteTokenizer struct {
	router  *router
	timeout time.Duration
	outages [forms]outages

	mu    sync.Mutex
	calls map[xxh3.Uint128]*tokenizeCall // under way, by prompt
}

func newRemoteTokenizer(rt *router, timeout time.Duration) *remoteTokenizer {
	return &remoteTokenizer{router: rt, timeout: timeout, calls: make(map[xxh3.Uint128]*tokenizeCall)}
}

// tokenizeCall is a prompt on its way to its ids. Whoever has the same prompt waits for the
// one call. It goes on when nobody waits any more, as the next may.
type tokenizeCall struct {
	key    xxh3.Uint128
	form   form
	path   string
	header http.Header
	body   *lentBytes

	done  chan struct{} // closed once what follows is there
	ids   []uint32
	cause string
}

// ended is what calls have that are over.
var ended = func() chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}()

// ids returns the token ids of the request's prompt, or why they are not known. It waits for
// them, unless it did so before.
func (z *remoteTokenizer) ids(t *ticket, r *http.Request, again bool) (ids []uint32, cause string) {
	n := &t.scratch.tokens
	workers := z.router.current.Load().workers
	if ids := t.state.tokenMemo.get(n.question.key, workers); ids != nil {
		t.state.metrics.ids(t.owner.name, idsOfMemo, "")
		return ids, ""
	}
	if again {
		return nil, n.cause
	}
	ids, cause = z.ask(t, r, workers)
	t.state.metrics.ids(t.owner.name, idsOfTokenizer, cause)
	return ids, cause
}

// ask asks for the ids of a prompt that is not remembered.
func (z *remoteTokenizer) ask(t *ticket, r *http.Request, workers []*worker) (ids []uint32, cause string) {
	q := &t.scratch.tokens.question
	if cause := z.outages[q.form].now(t.state.clock.now()); cause != "" {
		return nil, cause
	}
	call, cause := z.call(t, r, workers)
	if call == nil {
		return nil, cause
	}
	timer := time.NewTimer(z.timeout)
	defer timer.Stop()
	select {
	case <-call.done:
		return call.ids, call.cause
	case <-timer.C:
	case <-r.Context().Done():
	}
	return nil, tokenizerSlow
}

// call returns the call that is under way for a prompt, begun if need be, or why there is
// none.
func (z *remoteTokenizer) call(t *ticket, r *http.Request, workers []*worker) (c *tokenizeCall, cause string) {
	q := &t.scratch.tokens.question
	z.mu.Lock()
	if c := z.calls[q.key]; c != nil {
		z.mu.Unlock()
		return c, ""
	}
	if ids := t.state.tokenMemo.get(q.key, workers); ids != nil { // a call has just ended
		z.mu.Unlock()
		return &tokenizeCall{done: ended, ids: ids}, ""
	}
	if len(z.calls) >= maxTokenizeCalls {
		z.mu.Unlock()
		return nil, tokenizerBusy
	}
	c = &tokenizeCall{key: q.key, form: q.form, path: q.prefix + "/tokenize", done: make(chan struct{})}
	z.calls[q.key] = c
	z.mu.Unlock()
	if cause := z.begin(t, r, c, tokenizers(workers)); cause != "" {
		z.end(c, nil, cause)
	}
	return c, ""
}

// begin begins a call, or returns why it cannot.
func (z *remoteTokenizer) begin(t *ticket, r *http.Request, c *tokenizeCall, engines []*worker) (cause string) {
	if len(engines) == 0 {
		return tokenizerMissing
	}
	c.header = tokenizeHeader(r, c.form)
	c.body = t.tokenizeBody()
	if c.body == nil {
		return tokenizerBusy
	}
	if !t.state.inBackground(func(ctx context.Context) { z.run(ctx, t.state, c, engines) }) {
		c.body.giveBack()
		return tokenizerMissing
	}
	return ""
}

// end leaves what came of a call for those who wait.
func (z *remoteTokenizer) end(c *tokenizeCall, ids []uint32, cause string) {
	c.ids, c.cause = ids, cause
	z.mu.Lock()
	delete(z.calls, c.key)
	z.mu.Unlock()
	close(c.done)
}

// tokenizers returns who is asked, the least busy worker, and who is asked if that one
// fails.
func tokenizers(workers []*worker) []*worker {
	var first, second *worker
	for _, w := range workers {
		w = w.base
		if w == first || w == second {
			continue
		}
		if w.transport.Load() == nil || w.suspected() || w.sick.Load() {
			continue
		}
		switch {
		case first == nil || w.business() < first.business():
			first, second = w, first
		case second == nil || w.business() < second.business():
			second = w
		}
	}
	switch {
	case first == nil:
		return nil
	case second == nil:
		return []*worker{first}
	}
	return []*worker{first, second}
}

// business is how much w's engine has to do for whoever asks it for token ids. That costs
// its front end more than a request that it computes.
func (w *worker) business() int {
	const asTokenizing = 8
	n := int(w.tokenizing.Load()) * asTokenizing
	for _, part := range w.parts() {
		n += part.Load().InFlight()
	}
	return n
}

// tokenizeHeader returns the header of a question about r's prompt: what r says of its
// body, and who asks.
func tokenizeHeader(r *http.Request, f form) http.Header {
	header := http.Header{
		"Content-Type":    {"application/json"},
		"User-Agent":      {"caddy-inference"},
		"Idempotency-Key": {}, // is not sent, and tells net/http that it may try again
	}
	if values := r.Header["Authorization"]; len(values) > 0 {
		header["Authorization"] = values
	}
	if values := r.Header["Content-Encoding"]; len(values) > 0 && f == chatForm {
		header["Content-Encoding"] = values
	}
	return header
}

// run makes a call.
func (z *remoteTokenizer) run(ctx context.Context, s *state, c *tokenizeCall, engines []*worker) {
	ending := ctx
	ctx, cancel := context.WithTimeout(ctx, tokenizeCallTimeout)
	defer cancel()
	said := askEngines(ctx, s, c, engines)
	c.body.giveBack()
	if ending.Err() == nil { // else it may have failed for that alone
		z.outages[c.form].took(s, said)
	}
	z.end(c, said.ids, said.cause)
}

// askEngines asks the first engine, and the second if the first fails.
func askEngines(ctx context.Context, s *state, c *tokenizeCall, engines []*worker) (said tokenized) {
	for _, w := range engines {
		began, handle := time.Now(), w.prefix.Load()
		w.tokenizing.Add(1)
		said = askToTokenize(ctx, w, c)
		w.tokenizing.Add(-1)
		said.engine = w
		s.metrics.tokenized(said.outcome(), time.Since(began))
		if said.cause == "" {
			s.tokenMemo.put(c.key, said.ids, w, handle)
		}
		if said.cause == "" || said.cause == tokenizerRefused || ctx.Err() != nil {
			break
		}
	}
	return said
}

// tokenized is what an engine said.
type tokenized struct {
	engine *worker
	ids    []uint32
	cause  string
	err    error // what it said in place of ids
}

// outcome is a short name for metrics.
func (a *tokenized) outcome() string {
	if a.cause == "" {
		return "ok"
	}
	return strings.TrimPrefix(a.cause, "tokenizer_")
}

// askToTokenize asks w's engine.
func askToTokenize(ctx context.Context, w *worker, c *tokenizeCall) tokenized {
	transport := w.transport.Load()
	if transport == nil {
		return tokenized{cause: tokenizerFailed, err: errNotHTTP}
	}
	response, err := transport.RoundTrip(tokenizeRequest(ctx, w, c))
	if err != nil {
		return tokenized{cause: tokenizerFailed, err: err}
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return refusal(response)
	}
	ids, err := readTokenized(io.LimitReader(response.Body, maxTokenizeAnswer))
	if err != nil {
		return tokenized{cause: tokenizerFailed, err: err}
	}
	return tokenized{ids: ids}
}

// tokenizeRequest returns the question as w's engine is asked it.
func tokenizeRequest(ctx context.Context, w *worker, c *tokenizeCall) *http.Request {
	ctx = context.WithValue(ctx, caddy.ReplacerCtxKey, caddy.NewReplacer())
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: c.body.wrote})
	return (&http.Request{
		Method: http.MethodPost,
		URL:    &url.URL{Host: w.Address(), Path: c.path},
		Host:   w.Address(),
		Header: c.header.Clone(),
		Body:   c.body.open(), ContentLength: int64(len(c.body.data)),
		GetBody: func() (io.ReadCloser, error) { return c.body.open(), nil },
		Proto:   "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
}

// refusal tells what an answer without ids is about. That there is no such endpoint is told
// by the same status as that there is no such model.
func refusal(response *http.Response) tokenized {
	said := tokenized{cause: tokenizerRefused, err: fmt.Errorf("answered %d", response.StatusCode)}
	switch status := response.StatusCode; {
	case status == http.StatusNotFound:
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxTokenizeError))
		if !bytes.Contains(text, []byte("model")) {
			said.cause = tokenizerMissing
		}
	case status == http.StatusForbidden, status == http.StatusMethodNotAllowed, status == http.StatusNotImplemented:
		said.cause = tokenizerMissing
	case status < http.StatusBadRequest, status >= http.StatusInternalServerError, status == http.StatusTooManyRequests:
		said.cause = tokenizerFailed
	}
	return said
}

var (
	errNotJSON     = errors.New("answer is no JSON object, or too long, or broke off")
	errNoTokens    = errors.New("answer has no token ids")
	errWrongTokens = errors.New("answer has something else among its token ids, or not as many as it says")
)

// readTokenized reads an answer up to its ids: {"count":2,"max_model_len":4096,"tokens":[1,2]}.
// Errors are its own words, as an answer may repeat what it was asked.
func readTokenized(from io.Reader) ([]uint32, error) {
	d := jsontext.NewDecoder(from)
	if token, err := d.ReadToken(); err != nil || token.Kind() != '{' {
		return nil, errNotJSON
	}
	for count := ""; ; {
		name, err := d.ReadToken()
		switch {
		case err != nil:
			return nil, errNotJSON
		case name.Kind() != '"':
			return nil, errNoTokens
		}
		field := name.String()
		value, err := d.ReadValue()
		if err != nil {
			return nil, errNotJSON
		}
		switch field {
		case "count":
			count = string(value[:min(len(value), maxCountDigits)])
		case "tokens":
			return idsOf(value, count)
		}
	}
}

// idsOf reads a list of ids, of which there should be so many if it was said.
func idsOf(list jsontext.Value, count string) ([]uint32, error) {
	if list.Kind() != '[' {
		return nil, errWrongTokens
	}
	inside := bytes.TrimSpace(list[1 : len(list)-1])
	if len(inside) == 0 {
		return nil, errNoTokens
	}
	n := bytes.Count(inside, []byte{','}) + 1
	ids, ok := appendIDs(make([]uint32, 0, min(n, maxIDs)), inside, maxIDs)
	if !ok || count != "" && count != strconv.Itoa(n) {
		return nil, errWrongTokens
	}
	return ids, nil
}

// tokenizeBody returns what a tokenizer is sent: a chat as the client sent it, or a text in
// the client's own spelling, as it may stand under another name or in a list. It is nil if
// there is no room to hold it.
func (t *ticket) tokenizeBody() *lentBytes {
	q, model := &t.scratch.tokens.question, t.scratch.prompt.Model
	if q.form == chatForm {
		return lend(t.body, t.body.data)
	}
	data := append(make([]byte, 0, len(q.text)+len(q.extra)+len(model)+64), '{')
	if len(model) > 0 {
		if quoted, err := jsontext.AppendQuote(nil, model); err == nil {
			data = append(append(append(data, `"model":`...), quoted...), ',')
		}
	}
	data = append(append(append(data, `"prompt":"`...), q.text...), '"')
	if len(q.extra) > 0 {
		data = append(append(data, `,"add_special_tokens":`...), q.extra...)
	}
	return lend(t.body, append(data, '}'))
}

// lentBytes are bytes that a call sends, which may be those of a request's body. They are
// counted as held a second time, as they may be held longer than the request.
type lentBytes struct {
	data  []byte
	owner *body // that data is of; nil if it is not
	held  *budget

	opened, written atomic.Int32 // times
}

// lend returns data to be sent, nil if the budget that the body is of has no room for it.
func lend(of *body, data []byte) *lentBytes {
	if !of.budget.take(int64(len(data))) {
		return nil
	}
	b := &lentBytes{data: data, held: of.budget}
	if len(of.data) > 0 && &data[0] == &of.data[0] {
		b.owner = of
		of.unsent.Add(1)
	}
	return b
}

func (b *lentBytes) open() io.ReadCloser {
	b.opened.Add(1)
	return io.NopCloser(bytes.NewReader(b.data))
}

func (b *lentBytes) wrote(info httptrace.WroteRequestInfo) {
	if info.Err == nil {
		b.written.Add(1)
	}
}

// giveBack says that the call is over. A buffer that net/http may still be reading is not
// used again.
func (b *lentBytes) giveBack() {
	b.held.give(int64(len(b.data)))
	if b.owner != nil && b.opened.Load() == b.written.Load() {
		b.owner.unsent.Add(-1)
	}
}

const (
	// outageFor is for how long engines are left alone that cannot tokenize.
	outageFor = time.Minute

	// enoughFailures is how many calls in a row have to fail for that.
	enoughFailures = 8
)

// outages are the times when no engine of a pool makes token ids of one form of prompts.
type outages struct {
	current  atomic.Pointer[outage]
	failures atomic.Int32 // in a row
	answered atomic.Bool  // ever
}

type outage struct {
	until time.Time
	cause string
}

// now returns why nobody is to be asked, or nothing.
func (o *outages) now(now time.Time) string {
	if current := o.current.Load(); current != nil && now.Before(current.until) {
		return current.cause
	}
	return ""
}

// took takes in what came of a call. A prompt that is refused is no failure where others
// were not. An endpoint that was there is not taken for missing at the first word.
func (o *outages) took(s *state, said tokenized) {
	answered := o.answered.Load()
	switch {
	case said.cause == "":
		o.failures.Store(0)
		o.answered.Store(true)
		o.current.Store(nil)
		return
	case said.cause == tokenizerRefused && answered:
		return
	}
	n := o.failures.Add(1)
	if n < enoughFailures && (said.cause != tokenizerMissing || answered) {
		return
	}
	o.failures.Store(0)
	cause := said.cause
	if cause == tokenizerRefused {
		cause = tokenizerMissing // for prompts of this form
	}
	o.current.Store(&outage{s.clock.now().Add(outageFor), cause})
	s.logger.Load().Warn("engines do not make token ids of prompts; requests without ids are routed on what was sent where",
		zap.String("upstream", said.engine.Address()), zap.String("cause", cause), zap.Error(said.err),
		zap.Duration("for", outageFor),
		zap.String("hint", "POST /tokenize must be reachable at the engine, for chats as for texts; SGLang does not tokenize chats"))
}
