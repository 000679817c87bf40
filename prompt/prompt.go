package prompt

import (
	"bytes"
	"math"

	"github.com/zeebo/xxh3"
)

const (
	// maxBody is how much of a body is read. Offsets in segments have 32 bits.
	maxBody = math.MaxInt32

	// maxSegments is where a prompt is cut. The last element may run over it by a few.
	maxSegments = 1 << 16

	// keptSegments is how many segments' room a Prompt may keep for its next use.
	keptSegments = 1 << 13

	// maxDecoded is how much of a name with escapes is decoded, and how many bytes of
	// room for such names a Prompt may keep. A longer one is left as it stands in the body.
	maxDecoded = 1 << 14
)

// Session holds the fields by which clients say that requests belong together.
type Session struct {
	PromptCacheKey     []byte // prompt_cache_key
	User               []byte // user
	UserID             []byte // metadata.user_id
	SessionID          []byte // session_params.session_id, else session_params.id
	PreviousResponseID []byte // previous_response_id: the engine has what came before
	Conversation       []byte // conversation, or its id: the same
}

// Prompt is what Parse found in a body. Its slices point into the body, which must stay
// unchanged as long as they are used. A Prompt is meant to be pooled and used again; it
// is not safe for use by several goroutines at once.
//
// Where a body has a key twice the last one counts, as in the engines' parsers.
type Prompt struct {
	API          API
	Model        []byte // decoded; empty if there is none
	Stream       bool
	IncludeUsage bool   // stream_options.include_usage
	MaxTokens    int    // most output tokens asked for, -1 if not said; max_completion_tokens goes before max_tokens
	N            int    // choices asked for, 1 if not said
	Salt         []byte // cache_salt: engines keep the caches of different salts apart
	LoRA         []byte // lora_path or lora_name; the first of a list
	ExtraKey     []byte // extra_key: SGLang keeps the caches of different keys apart
	Session      Session

	// Segments is the prompt in the order in which a chat template puts it. If a request
	// has several prompts it is the first one.
	Segments  []Segment
	Prompts   int // how many there are, 1 of a conversation
	TextBytes int // bytes that are prefilled as text, of all prompts, frames not counted
	TokenIDs  int // prompt tokens given as ids, of all prompts
	Media     int // images, sounds, videos, files and parts of unknown type, of all prompts

	// OtherBytes is how long the key streams of all prompts but the first would be.
	OtherBytes int

	// Partial is set if the body was seen to be malformed, ended early, or held more
	// segments than are kept. What came before was read.
	Partial bool

	scan    scanner
	spare   []Segment // room for putting segments into order
	decoded []byte    // names that had escapes
	out     output
	hasher  xxh3.Hasher
}

// Reset empties the prompt and lets go of the body. Room for segments is kept unless the
// last prompt was unusually large.
func (p *Prompt) Reset() {
	segments, spare, decoded := p.Segments[:0], p.spare[:0], p.decoded[:0]
	if cap(segments) > keptSegments {
		segments = nil
	}
	if cap(spare) > keptSegments {
		spare = nil
	}
	if cap(decoded) > maxDecoded {
		decoded = nil
	}
	p.API, p.Model, p.Stream, p.IncludeUsage = Unknown, nil, false, false
	p.MaxTokens, p.N = -1, 1
	p.Salt, p.LoRA, p.ExtraKey, p.Session = nil, nil, nil, Session{}
	p.Segments, p.Prompts, p.OtherBytes = segments, 1, 0
	p.TextBytes, p.TokenIDs, p.Media, p.Partial = 0, 0, 0, false
	p.scan, p.spare, p.decoded = scanner{}, spare, decoded
}

// Parse fills p from the body, or the first part of the body, of a request to path. What
// was in p before is gone. It reads malformed bodies as far as it can, takes time linear
// in the body's length, and allocates nothing once p has been used for a prompt as large.
func Parse(p *Prompt, path string, body []byte) {
	p.Reset()
	p.API = APIOf(path)
	s := &p.scan
	if len(body) > maxBody {
		body = body[:maxBody]
		s.partial = true
	}
	s.body = body
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
		s.pos = 3
	}
	s.space()
	if !s.at('{') {
		p.Partial = true
		return
	}
	p.request()
	s.space()
	p.Partial = s.partial || s.pos < len(s.body)
}

// Empty reports whether there is nothing in the prompt to route on.
func (p *Prompt) Empty() bool {
	return p.TextBytes == 0 && p.TokenIDs == 0 && p.Media == 0
}

// Raw returns the segment's bytes as they stand in the body. Strings are without their
// quotes, unless the segment's kind is one that holds JSON.
func (p *Prompt) Raw(s Segment) []byte {
	return p.scan.raw(s.span)
}
