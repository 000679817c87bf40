package inference

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/zeebo/xxh3"

	"github.com/caddy-inference/caddy-inference/prompt"
)

// Tokenizing holds the options of policies that go by token ids: how those of a prompt
// are found that comes as text.
type Tokenizing struct {
	// Who makes token ids of prompts that come as text. `remote`: one of the engines,
	// the least busy one; what it answered is remembered. `none`: nobody, so that only
	// requests which carry token ids are routed on them. Default: `remote`.
	Tokenizer string `json:"tokenizer,omitempty"`

	// How long a request waits for its token ids before it is routed without them. What
	// the engine answers later is remembered for the next request. Default: 20ms.
	TokenizeTimeout caddy.Duration `json:"tokenize_timeout,omitempty"`

	remote *remoteTokenizer // nil: nobody
}

const (
	remoteTokenizing = "remote"
	noTokenizing     = "none"

	defaultTokenizeTimeout = 20 * time.Millisecond

	// A request that waits longer for its ids has lost more than they can give it.
	maxTokenizeTimeout = 10 * time.Second
)

// Why the token ids of a prompt are not known.
const (
	noTokenizer      = "no_tokenizer"      // and the request has none itself
	apiNotTokenized  = "api_not_tokenized" // engines do not tokenize what this API sends
	extraKey         = "extra_key"         // SGLang keeps caches apart by it, and events do not tell
	truncatedPrompt  = "truncated_prompt"  // the engine leaves some of it off
	badIDs           = "bad_token_ids"     // the request has something else in their place
	cutBody          = "cut_body"          // more was sent than was read
	tokenizerSlow    = "tokenizer_slow"    //nolint:gosec // no credential: it did not answer in time
	tokenizerBusy    = "tokenizer_busy"    //nolint:gosec // no credential: it is asked enough already
	tokenizerMissing = "tokenizer_missing" // no engine has such an endpoint
	tokenizerRefused = "tokenizer_refused" // the engine will refuse the request as well
	tokenizerFailed  = "tokenizer_failed"  // or what it said made no sense
)

// Where the token ids of a prompt come from.
const (
	idsOfRequest   = "request"
	idsOfMemo      = "memo"
	idsOfTokenizer = "tokenizer"
)

const (
	// maxIDs bounds the ids of one prompt. A longer one is known to there.
	maxIDs = 1 << 20

	// keptIDs is the room for ids that is kept for the next request.
	keptIDs = 1 << 17
)

// provision sets up the tokenizer for a policy, which is set up already.
func (z *Tokenizing) provision(p *Policy) {
	z.Tokenizer = cmp.Or(z.Tokenizer, remoteTokenizing)
	z.TokenizeTimeout = cmp.Or(z.TokenizeTimeout, caddy.Duration(defaultTokenizeTimeout))
	if z.Tokenizer == remoteTokenizing {
		z.remote = newRemoteTokenizer(p.router, time.Duration(z.TokenizeTimeout))
	}
}

// validate checks the options, for the module of that name.
func (z *Tokenizing) validate(name string) error {
	if z.Tokenizer != remoteTokenizing && z.Tokenizer != noTokenizing {
		return fmt.Errorf("%s: tokenizer '%s': must be %s or %s", name, z.Tokenizer, remoteTokenizing, noTokenizing)
	}
	if d := time.Duration(z.TokenizeTimeout); d <= 0 || d > maxTokenizeTimeout {
		return fmt.Errorf("%s: tokenize_timeout %s: must be above 0 and at most %s", name, d, maxTokenizeTimeout)
	}
	return nil
}

// tokens is a prompt as engines cache it. It is part of a request's scratch, and so of use
// until the answer begins.
//
// Of media in the prompt the ids have the placeholders, as they stand in the text. An engine
// puts as many in their place as the medium needs, and keys them by its content; so nothing
// that it holds is found from the first medium on.
type tokens struct {
	ids      []uint32 // not to be changed
	cause    string   // why they are not known; empty if they are
	adapter  string   // with the ids, these tell caches apart
	salt     string
	question question // what a tokenizer is asked, if the request has no ids itself

	asked  bool     // for the ids, before
	own    []uint32 // room for ids that the request has itself
	hasher xxh3.Hasher
}

// question is what a tokenizer is asked about a prompt.
type question struct {
	form   form
	key    xxh3.Uint128 // of the prompt, to remember the answer by
	prefix string       // of the request's path, before what tells the API
	text   []byte       // inside of the JSON string that is the prompt; nil of a chat
	extra  []byte       // add_special_tokens as JSON, if it was said
}

// form is what a tokenizer is sent.
type form uint8

const (
	noForm   form = iota // nothing
	chatForm             // a chat, as it came
	textForm             // a text
	forms
)

// reset forgets the request and keeps the memory.
func (n *tokens) reset() {
	n.ids, n.cause, n.adapter, n.salt, n.question, n.asked = nil, "", "", "", question{}, false
	n.own = n.own[:0]
	if cap(n.own) > keptIDs {
		n.own = nil
	}
}

// promptIDs implements tokenSource. Ids that came too late for an attempt are there for the
// next one.
func (z *Tokenizing) promptIDs(t *ticket, r *http.Request) (ids []uint32, cause string) {
	n := &t.scratch.tokens
	again := n.asked
	n.asked = true
	switch {
	case n.question.form == noForm && !again:
		t.state.metrics.ids(t.owner.name, idsOfRequest, n.cause)
	case n.question.form == noForm:
	case z.remote == nil:
		n.cause = noTokenizer
	case !again || n.cause != "":
		n.ids, n.cause = z.remote.ids(t, r, again)
	}
	return n.ids, n.cause
}

// readTokens finds the token ids in the prompt of a request to path, or what it takes to
// ask for them.
func (t *ticket) readTokens(p *prompt.Prompt, path string) {
	n := &t.scratch.tokens
	n.reset()
	n.adapter, n.salt = t.state.adapters.of(p), string(p.Salt)
	special, truncates := controls(p)
	list := slices.IndexFunc(p.Segments, func(s prompt.Segment) bool { return s.Kind == prompt.KindTokenIDs })
	switch {
	case len(p.ExtraKey) > 0:
		n.cause = extraKey
	case truncates:
		n.cause = truncatedPrompt
	case list >= 0:
		n.readIDs(p, p.Raw(p.Segments[list]))
	case p.Partial || !t.body.whole || !t.text().whole:
		n.cause = cutBody
	default:
		n.cause = t.ask(p, path, special)
	}
}

// controls returns the fields of a request that say how its prompt is made into tokens.
func controls(p *prompt.Prompt) (special []byte, truncates bool) {
	for i, s := range p.Segments {
		if s.Kind != prompt.KindControl || i+1 == len(p.Segments) {
			continue
		}
		switch string(p.Raw(s)) {
		case "truncate_prompt_tokens":
			truncates = true
		case "add_special_tokens":
			special = p.Raw(p.Segments[i+1])
		}
	}
	return special, truncates
}

// readIDs reads the list of ids that is the prompt.
func (n *tokens) readIDs(p *prompt.Prompt, list []byte) {
	if p.Partial { // the last one may be cut in two
		list = list[:max(bytes.LastIndexByte(list, ','), 0)]
	}
	n.own = slices.Grow(n.own, min(p.TokenIDs, len(list)/2+1, maxIDs))
	ids, ok := appendIDs(n.own, list, maxIDs)
	if !ok {
		n.cause = badIDs
		return
	}
	n.own, n.ids = ids, ids
}

// endpoint is how an API is asked for token ids.
type endpoint struct {
	path string
	form form
}

// endpoints are the APIs whose requests engines tokenize.
var endpoints = map[prompt.API]endpoint{
	prompt.Chat:        {"/v1/chat/completions", chatForm},
	prompt.Completions: {"/v1/completions", textForm},
	prompt.Generate:    {"/generate", textForm},
}

// ask makes up the question for a tokenizer, or says why there is none.
func (t *ticket) ask(p *prompt.Prompt, path string, special []byte) (cause string) {
	n := &t.scratch.tokens
	api, ok := endpoints[p.API]
	if !ok {
		return apiNotTokenized
	}
	q := question{form: api.form, prefix: strings.TrimSuffix(path, api.path)}
	if api.form == textForm {
		text := slices.IndexFunc(p.Segments, func(s prompt.Segment) bool { return s.Kind == prompt.KindText })
		if text < 0 || t.decoded != nil { // of decoded text nothing is kept
			return apiNotTokenized
		}
		q.text, q.extra = p.Raw(p.Segments[text]), special
	}
	n.hasher.ResetSeed(space(t.state.seed, p))
	p.WriteTo(&n.hasher) //nolint:errcheck // a hash takes all
	if api.form == chatForm && steered(t.text().data) {
		n.hasher.Write(t.text().data) //nolint:errcheck // a hash takes all
	}
	q.key = n.hasher.Sum128()
	n.question = q
	return ""
}

// steering are the ends of names of fields that change the ids of a chat and are not in
// its key stream: what stands after the last message does not matter there, nor does what
// only the tokenizer's endpoint knows. They begin with what is rare in text, which makes
// them quick to look for.
var steering = [][]byte{[]byte(`"prompt"`), []byte(`_prompt"`), []byte(`_message"`)}

// steered reports whether a chat may have such a field.
func steered(chat []byte) bool {
	return slices.ContainsFunc(steering, func(name []byte) bool { return bytes.Contains(chat, name) })
}

// appendIDs appends the ids in a list without its brackets, up to most in all. It reports
// whether all that it read are ids.
func appendIDs(ids []uint32, list []byte, most int) ([]uint32, bool) {
	for len(list) > 0 && len(ids) < most {
		// Nearly all have fewer than eight digits and a comma after them.
		if len(list) > 8 {
			digits := binary.LittleEndian.Uint64(list) ^ 0x3030303030303030
			others := (digits + 0x7676767676767676 | digits) & 0x8080808080808080
			n := uint(bits.TrailingZeros64(others)) &^ 7 // of bits before the first that is none
			if n > 0 && n < 64 && digits>>n&0xff == ','^'0' {
				ids = append(ids, eightDigits(digits<<(64-n)))
				list = list[n/8+1:]
				continue
			}
		}
		id, n := parseID(list)
		if n == 0 {
			return ids, false
		}
		ids = append(ids, id)
		list = list[n:]
	}
	return ids, true
}

// eightDigits returns the number of eight decimal digits, the first in the lowest byte.
func eightDigits(digits uint64) uint32 {
	digits = digits * (10<<8 + 1) >> 8
	digits = digits & 0x00ff00ff00ff00ff * (100<<16 + 1) >> 16
	return uint32(digits & 0x0000ffff0000ffff * (10000<<32 + 1) >> 32)
}

// parseID returns the id that a list begins with, and how many bytes it takes with the
// comma after it: 0 if it is none.
func parseID(list []byte) (id uint32, n int) {
	n = skipBlanks(list, 0)
	var v uint64
	first := n
	for n < len(list) && '0' <= list[n] && list[n] <= '9' {
		v = v*10 + uint64(list[n]-'0')
		if v > math.MaxUint32 {
			return 0, 0
		}
		n++
	}
	if n == first {
		return 0, 0
	}
	n = skipBlanks(list, n)
	switch {
	case n == len(list):
		return uint32(v), n
	case list[n] == ',' && n+1 < len(list):
		return uint32(v), n + 1
	}
	return 0, 0
}

func skipBlanks(list []byte, i int) int {
	for i < len(list) && (list[i] == ' ' || list[i] == '\n' || list[i] == '\r' || list[i] == '\t') {
		i++
	}
	return i
}
