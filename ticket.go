package inference

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/zeebo/xxh3"

	"github.com/caddy-inference/caddy-inference/coding"
	"github.com/caddy-inference/caddy-inference/fleet"
	"github.com/caddy-inference/caddy-inference/kvindex"
	"github.com/caddy-inference/caddy-inference/prompt"
	"github.com/caddy-inference/caddy-inference/radix"
	"github.com/caddy-inference/caddy-inference/selection"
)

// ticketVar is the request variable that holds the ticket.
const ticketVar = "inference.ticket"

// mediaTokens is what a picture or other medium counts for in a prompt until the
// engine has counted it: about a picture of a megapixel.
const mediaTokens = 1024

// ticket follows one request through one policy: what it asks for, where it was
// placed, what came of it. It belongs to the goroutine that serves the request;
// only end is called from another one.
type ticket struct {
	state *state
	owner *Policy // as handlers that run after each other have their own

	body    *body
	decoded *decoded // its text, if it came encoded, while that is read
	sending *sending // what the transport sends of the body
	scratch *scratch // given back when the response begins

	cause       string // why there is nothing to route on; empty if there is
	api         prompt.API
	model       *fleet.Model
	modelName   string // of a model not known yet
	textBytes   int    // that tokens is an estimate of; 0 if it is not
	storedBytes int    // that textBytes count as in the tree
	keyBytes    int    // of all of the prompt, or prompts, estimated if the body was cut
	several     bool   // prompts, of which the first is routed on
	tokens      int
	cut         string // the limit beyond which the body was not read; empty if it was

	key       radix.Key
	prefix    uint64 // key of the prompt's opening; 0 if nobody asks for it
	longer    uint64 // key of a longer one
	session   uint64 // key of the session that the request says it belongs to; 0 if it says none
	tried     []attempt
	notSent   bool        // the last attempt could not connect
	conn      net.Conn    // that the last attempt was sent on; nil if it was not
	tlsFailed atomic.Bool // no connection of the last attempt got beyond the handshake of TLS
	attempts  int
	worker    *worker
	handle    radix.Worker // the worker's, when it was chosen: later it may have lost its cache
	keep      int          // bytes of the key that the worker held before
	taken     uint64       // how often the tree had been told to take something back
	retracted bool         // what the attempt left behind was taken back
	decision  decision
	usage     usageScanner

	exact exactness
	rank  int // the data parallel rank that the client wants; -1 if it does not say

	reservation atomic.Pointer[fleet.Reservation]
	ended       atomic.Bool
}

// attempt is a worker that has failed the request.
type attempt struct {
	*worker
	notSent bool // it could not be connected to, so nothing can be running on it
}

// scratch is the memory that reading and placing a request needs, used again by
// the next one.
type scratch struct {
	prompt     prompt.Prompt
	chunker    *radix.Chunker
	openings   openings
	matches    radix.Matches
	blocks     kvindex.Matches
	tokens     tokens
	candidates []selection.Candidate
}

// ticketOf returns the ticket of a request, nil if it has none.
func ticketOf(ctx context.Context) *ticket {
	vars, _ := ctx.Value(caddyhttp.VarsCtxKey).(map[string]any)
	t, _ := vars[ticketVar].(*ticket)
	return t
}

// newTicket reads the request and works out what its prompt is. An earlier
// ticket of the same request lends its body.
func (s *state) newTicket(r *http.Request, owner *Policy) *ticket {
	ctx := r.Context()
	t := &ticket{state: s, owner: owner, model: s.models.Get(nil), rank: wantedRank(r)}
	t.decision = decision{policy: owner.name, cached: -1}
	earlier := ticketOf(ctx)
	if earlier != nil {
		t.body = earlier.body.lend(r)
	}
	t.cause = t.read(r)
	if t.body == nil {
		t.body = leaveBody(r, &s.buffered)
	}
	t.session = owner.session(r, t.parsed())
	t.forgetText()
	caddyhttp.SetVar(ctx, ticketVar, t)
	context.AfterFunc(ctx, t.end)
	if repl, ok := ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok && earlier == nil {
		repl.Map(func(key string) (any, bool) { return ticketOf(ctx).decision.placeholder(key) })
	}
	if extra, ok := ctx.Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok {
		extra.Set(t.decision.logField())
	}
	return t
}

// read reads the body and fingerprints the prompt in it. It returns why there is
// nothing to route on, or nothing.
func (t *ticket) read(r *http.Request) (cause string) {
	if r.Method == http.MethodPost {
		t.api = prompt.APIOf(r.URL.Path)
	}
	codings, known := coding.Parse(r.Header["Content-Encoding"])
	switch {
	case t.api == prompt.Unknown:
		t.guess(r)
		return "unknown_endpoint"
	case t.api == prompt.Tokenize:
		return "no_prefill"
	case t.body == nil && (r.Body == nil || r.Body == http.NoBody):
		return "no_body"
	case !known:
		return "encoded_body"
	case caddyhttp.IsIncremental(r.Header): // the client wants it sent as it comes
		t.guess(r)
		return "incremental_body"
	}
	if t.body == nil {
		t.body = readBody(r, t.owner.MaxBody, &t.state.buffered)
	}
	if codings.None() {
		return t.parse(r.URL.Path, r.ContentLength)
	}
	t.decoded = decode(t.body, codings, t.owner.MaxBody)
	cause = t.parse(r.URL.Path, r.ContentLength)
	if cause == "unreadable_body" && t.decoded.broken() {
		t.cut = t.decoded.cut
		return "encoded_body"
	}
	return cause
}

// parsed is what was parsed of the request, nil if its body was not read.
func (t *ticket) parsed() *prompt.Prompt {
	if t.scratch == nil {
		return nil
	}
	return &t.scratch.prompt
}

// text is what there is to parse.
func (t *ticket) text() *held {
	if t.decoded != nil {
		return &t.decoded.held
	}
	return &t.body.held
}

// forgetText lets go of text that was decoded, once it is keyed. Nothing may point into it
// any more, so of the prompt only what does not is kept.
func (t *ticket) forgetText() {
	if t.decoded == nil {
		return
	}
	p := &t.scratch.prompt
	stream := p.Stream
	p.Reset()
	p.Stream = stream
	t.decoded.letGo()
	t.decoded = nil
}

// guess estimates the tokens of a body that is not looked into, if it may be text.
func (t *ticket) guess(r *http.Request) {
	const most = 1 << 20
	if isPlain(r.Header) && strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		t.tokens = t.model.Tokens(int(min(max(r.ContentLength, 0), most)))
	}
}

// parse finds the prompt in the body of a request to path, which was declared to
// be that long.
func (t *ticket) parse(path string, length int64) (cause string) {
	t.scratch = t.state.takeScratch()
	p, text := &t.scratch.prompt, t.text()
	prompt.Parse(p, path, text.data)
	t.model = t.state.models.Get(p.Model)
	if !t.model.Known() && len(p.Model) > 0 {
		t.modelName = string(p.Model)
	}
	if p.Empty() {
		if p.Partial {
			return "unreadable_body"
		}
		return "empty_prompt"
	}
	chunker := t.scratch.chunker
	chunker.Reset()
	t.keyBytes, t.several = t.writeKey(p, chunker)+p.OtherBytes, p.Prompts > 1
	t.key = chunker.Key(space(t.state.seed, p))
	t.tokens = t.model.Tokens(p.TextBytes) + p.TokenIDs + p.Media*mediaTokens
	if t.owner.source != nil {
		t.readTokens(p, path)
	}
	t.cut = text.cut
	if t.cut != "" {
		t.state.metrics.cut.WithLabelValues(t.owner.name, t.cut).Inc()
		t.reckonUnread(length)
		return ""
	}
	if p.TokenIDs == 0 && p.Media == 0 && p.N <= 1 && !t.several && text.whole {
		t.textBytes, t.storedBytes = p.TextBytes, len(t.key.Chunks)*radix.ChunkBytes
	}
	return ""
}

// reckonUnread adds to the prompt what was not read of a body of that length, as
// text. Of a body without a declared length nothing is known.
func (t *ticket) reckonUnread(length int64) {
	unread := int(length) - len(t.body.data)
	if t.decoded != nil {
		unread = t.decoded.unread(max(length, int64(len(t.body.data))), t.owner.MaxBody)
	}
	if unread > 0 {
		t.keyBytes += unread
		t.tokens += t.model.Tokens(unread)
	}
}

// space is the fingerprint of what keeps one engine cache apart from another.
func space(seed uint64, p *prompt.Prompt) uint64 {
	for _, part := range [][]byte{p.Model, p.LoRA, p.Salt, p.ExtraKey} {
		seed = xxh3.HashSeed(part, seed)
	}
	return seed
}

// again takes note that the worker of the attempt before did not do, if there
// was one.
func (t *ticket) again(pool reverseproxy.UpstreamPool) {
	if t.worker == nil {
		return
	}
	if len(pool) > 1 { // else whether to try it again is for Caddy's settings to say
		t.tried = append(t.tried, attempt{t.worker, t.notSent})
	}
	t.withdraw()
	t.worker, t.notSent = nil, false
}

// withdraw takes back what was written down for the current attempt.
func (t *ticket) withdraw() {
	t.release()
	t.retract()
}

// release ends the request's entry in the ledger of its worker.
func (t *ticket) release() {
	if r := t.reservation.Load(); r != nil {
		r.Release(t.state.clock.now())
	}
}

// retract says that the worker did not serve the request: it was no work for it,
// and it holds no more of the prompt than before.
func (t *ticket) retract() {
	if t.retracted {
		return
	}
	t.retracted = true
	if r := t.reservation.Load(); r != nil {
		r.Void(t.state.clock.now())
	}
	if t.worker != nil && t.scratch != nil && t.cause == "" {
		t.state.tree.Retract(t.handle, t.key, t.keep)
	}
}

// candidates looks at every worker in the light of this request.
func (t *ticket) candidates(rt *router, pool reverseproxy.UpstreamPool, m *membership) []selection.Candidate {
	if t.scratch == nil {
		t.scratch = t.state.takeScratch()
	}
	s := t.scratch
	if t.cause == "" {
		t.state.tree.Match(t.key, &s.matches)
	}
	s.candidates = slices.Grow(s.candidates[:0], len(m.workers))[:len(m.workers)]
	forgive := rt.forgives(t, pool, m)
	bytes, tokens, now := 0, 0, t.state.clock.now() // of the one before: many hold the same
	t.exact.informed = false
	for i, w := range m.workers {
		c := &s.candidates[i]
		c.Worker, c.Standing = w.Worker, standing(t, pool[m.upstreams[i]], w, forgive)
		c.Held, c.Doubt, c.Private = 0, 0, false
		t.state.seen(w, c.Standing)
		if t.cause != "" {
			continue
		}
		handle := *w.prefix.Load()
		if held := s.matches.Bytes(handle); held != bytes {
			bytes, tokens = held, t.heldTokens(held)
		}
		t.hold(c, w, tokens, s.matches.Shared(handle), now)
	}
	pardon(s.candidates)
	return s.candidates
}

// heldTokens turns matched bytes of the key into tokens of the prompt.
func (t *ticket) heldTokens(matched int) int {
	if t.keyBytes == 0 {
		return 0
	}
	bytes := t.scratch.chunker.Length(matched)
	return int(int64(t.tokens) * int64(min(bytes, t.keyBytes)) / int64(t.keyBytes))
}

// placed writes down the worker that was chosen and charged.
func (t *ticket) placed(rt *router, m *membership, r *fleet.Reservation, choice selection.Choice) {
	w := m.workers[choice.Index]
	t.worker, t.retracted = w, false
	t.attempts++
	w.placed()
	if !t.body.isArriving() {
		r.Expect(t.answer(), r.Charged())
	}
	t.reservation.Store(r)
	if t.ended.Load() { // the client left while the choice was made
		t.release()
	}
	t.keep = 0
	if t.cause == "" {
		t.handle = *w.prefix.Load()
		t.keep = t.scratch.matches.Bytes(t.handle)
		t.taken = t.state.tree.Retractions()
		t.state.tree.Insert(t.handle, t.key)
		t.settle(w, t.state.clock.now())
	}
	why := t.reason(choice)
	queued := max(w.Load().Queued()-r.Tokens(), 0)
	t.decision.choose(t, choice, why, queued)
	if best := choice.Best; t.cause == "" && best >= 0 && best != choice.Index {
		t.decision.holder = m.workers[best].Address()
		t.decision.holderQueued = t.scratch.candidates[best].Terms.Load.Queued()
	}
	m.choices[choice.Index][why].Inc()
	rt.queue.Observe(float64(queued))
	if t.cause != "" {
		t.state.metrics.fallbacks.WithLabelValues(t.owner.name, t.cause).Inc()
	}
}

// answer is the form in which the engine will answer. Nobody knows how long requests
// without a prompt take.
func (t *ticket) answer() fleet.Answer {
	switch {
	case t.cause != "":
		return fleet.Unforeseen
	case t.scratch.prompt.Stream:
		return fleet.Streamed
	}
	return fleet.Whole
}

// nowhere writes down that no upstream can be chosen.
func (t *ticket) nowhere(choice selection.Choice) {
	t.decision.choose(t, choice, reason(selection.None), 0)
	t.state.metrics.unplaced.WithLabelValues(t.owner.name).Inc()
}

// reason is why a choice was made, or that it was left to the fallback policy.
func (t *ticket) reason(choice selection.Choice) reason {
	if t.cause != "" && t.session == 0 || choice.Reason == selection.None {
		return fallback
	}
	return reason(choice.Reason)
}

// restore gives the request its body to send.
func (t *ticket) restore(r *http.Request) { t.sending = t.body.restore(r) }

// insertAgain notes once more what an engine was sent that takes the request on, if
// anything was taken back since: that may have been an equal prompt.
func (t *ticket) insertAgain() {
	if t.scratch != nil && t.cause == "" && t.taken != t.state.tree.Retractions() {
		t.state.tree.Insert(t.handle, t.key)
	}
}

// begun says that the response begins: nothing will be sent again, so what was
// held for that is let go.
func (t *ticket) begun() {
	if t.scratch != nil {
		t.keepIDs()
		t.state.putScratch(t.scratch)
		t.scratch = nil
		t.key = radix.Key{}
	}
	t.body.letGo()
}

// end ends the request, whichever way it ended. It is the last word, said by the
// request's context in a goroutine of its own; most requests have released all
// before.
func (t *ticket) end() {
	t.ended.Store(true)
	t.release()
	t.body.giveBack()
	t.forgetIDs()
}

// firstToken says that the first piece of a streamed answer has come.
func (t *ticket) firstToken(now time.Time) {
	r := t.reservation.Load()
	r.FirstToken(now)
	took := now.Sub(r.Charged())
	t.decision.firstToken = took
	t.state.metrics.firstToken(t.worker, took.Seconds())
}

// answered takes in a whole answer: what the engine counted against what was
// believed.
func (t *ticket) answered(said usage) {
	t.release()
	if said.one && t.several {
		said = usage{}
	}
	t.compare(said)
	t.decision.answered(t, said)
	counts := t.decision.tokenCounts
	if said.seen && said.cached >= 0 && t.cause == "" && !t.exact.holds() && forgotten(counts) {
		t.state.check(t.worker)
	}
	if said.seen && said.prompt > 0 && t.textBytes > 0 {
		t.state.learn(t.model, t.textBytes, t.storedBytes, said.prompt)
	}
	uncached := counts.prompt - counts.held
	if counts.cached >= 0 {
		uncached = counts.prompt - counts.cached
	}
	t.reservation.Load().Learn(uncached)
	if t.cause == "" || said.seen {
		t.state.metrics.tokens(t.worker, t.model, counts)
	}
}

// forgotten reports whether an engine found so little of what it was believed to
// hold that it may have been restarted.
func forgotten(n tokenCounts) bool {
	const enough = 512 // tokens, below which it may be the last blocks
	return n.held >= enough && n.cached < n.held/4
}

// accepted says that the engine answers for the model by this name.
func (t *ticket) accepted() {
	if t.modelName != "" {
		t.model = t.state.models.Admit(t.modelName)
		t.modelName = ""
		t.decision.model = t.model
	}
}
