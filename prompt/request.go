package prompt

// The parts of a request that enter the prompt, in the order in which templates put them.
// What steers the template comes first, as it may change everything after it.
const (
	partTemplate = iota
	partArguments
	partEffort
	partReasoning
	partDocuments
	partSpecialTokens
	partTruncation
	partProcessor
	partMediaIO
	partTools
	partFunctions
	partSystem
	partBody // messages or bare prompts
	partEmbeds
	partSuffix
	parts
)

// request is what is gathered while the top level of a body is read.
type request struct {
	parts                   [parts]run
	maxTokens               int
	maxCompletionTokens     int
	loraPath, loraName      span
	model, salt, extraKey   span
	cacheKey, user          span
	metadataUser, sessionID span
}

// request reads the object that is the body.
func (p *Prompt) request() {
	s := &p.scan
	r := request{maxTokens: -1, maxCompletionTokens: -1}
	for s.enter(); s.nextKey(); {
		if !p.field(&r) && (p.full() || !p.promptField(&r)) {
			s.skip()
		}
	}
	p.MaxTokens = r.maxTokens
	if r.maxCompletionTokens >= 0 && p.API != Completions {
		p.MaxTokens = r.maxCompletionTokens
	}
	p.Model = p.name(r.model)
	p.Salt = p.name(r.salt)
	p.ExtraKey = p.name(r.extraKey)
	p.LoRA = p.name(r.loraPath)
	if len(p.LoRA) == 0 {
		p.LoRA = p.name(r.loraName)
	}
	p.Session = Session{
		PromptCacheKey: p.name(r.cacheKey),
		User:           p.name(r.user),
		UserID:         p.name(r.metadataUser),
		SessionID:      p.name(r.sessionID),
	}
	p.arrange(&r)
	p.count()
}

// field reads a member that is not of the prompt, and reports whether it was one.
func (p *Prompt) field(r *request) bool {
	s := &p.scan
	switch string(s.key) {
	case "model":
		r.model = s.str()
	case "stream":
		p.Stream = s.boolean()
	case "stream_options":
		p.streamOptions()
	case "max_tokens":
		r.maxTokens = s.integer(0, -1)
	case "max_completion_tokens":
		r.maxCompletionTokens = s.integer(0, -1)
	case "n":
		p.N = s.integer(1, 1)
	case "cache_salt":
		r.salt = s.str()
	case "extra_key":
		r.extraKey = s.str()
	case "lora_path":
		r.loraPath = s.str()
	case "lora_name":
		r.loraName = s.str()
	case "prompt_cache_key":
		r.cacheKey = s.str()
	case "user":
		r.user = s.str()
	case "metadata":
		r.metadataUser = s.member("user_id")
	case "session_params":
		r.sessionID = s.member("session_id")
	default:
		return false
	}
	return true
}

func (p *Prompt) streamOptions() {
	s := &p.scan
	p.IncludeUsage = false
	if !s.at('{') {
		s.skip()
		return
	}
	for s.enter(); s.nextKey(); {
		if string(s.key) == "include_usage" {
			p.IncludeUsage = s.boolean()
		} else {
			s.skip()
		}
	}
}

// promptField reads a member that enters the prompt, and reports whether it was one.
func (p *Prompt) promptField(r *request) bool {
	switch p.API {
	case Chat:
		return p.control(r) || p.chatField(r)
	case Completions:
		return p.control(r) || p.completionsField(r)
	case Messages:
		return p.control(r) || p.messagesField(r)
	default:
		return false
	}
}

// control reads a member that steers how the prompt is made.
func (p *Prompt) control(r *request) bool {
	s := &p.scan
	lo := len(p.Segments)
	var part int
	switch string(s.key) {
	case "chat_template":
		part = partTemplate
	case "chat_template_kwargs":
		p.arguments()
		r.parts[partArguments] = p.since(lo)
		return true
	case "reasoning_effort":
		part = partEffort
	case "reasoning":
		part = partReasoning
	case "documents":
		part = partDocuments
	case "truncate_prompt_tokens":
		part = partTruncation
	case "mm_processor_kwargs":
		part = partProcessor
	case "media_io_kwargs":
		part = partMediaIO
	case "add_special_tokens":
		part = partSpecialTokens
	default:
		return false
	}
	name := s.keySpan
	v := s.json()
	if part == partSpecialTokens && string(s.raw(v)) == p.specialTokens() || s.isEmpty(v) {
		v = span{}
	}
	if v.form != absent {
		p.open(KindControl, name)
		p.open(KindValue, v)
	}
	r.parts[part] = p.since(lo)
	return true
}

// specialTokens is what add_special_tokens is when it is not said: chat templates bring
// their own.
func (p *Prompt) specialTokens() string {
	if p.API == Completions {
		return "true"
	}
	return "false"
}

// isEmpty reports whether v is an object or array without anything in it.
func (s *scanner) isEmpty(v span) bool {
	return v.size == 2 && v.form != scalar && v.form != absent && s.body[v.start] != '"'
}

// arguments reads an object of chat template arguments. The template sees them by name,
// so their order means nothing.
func (p *Prompt) arguments() {
	s := &p.scan
	lo := len(p.Segments)
	if !s.at('{') {
		s.skip()
		return
	}
	for s.enter(); s.nextKey(); {
		if p.full() {
			s.skip()
			continue
		}
		name := s.keySpan
		v := s.value()
		if v.form == plain || v.form == escaped {
			v = s.quoted(v)
		}
		if v.form != absent {
			p.open(KindArgument, name)
			p.open(KindValue, v)
		}
	}
	if s.ended() {
		// The arguments not read might have come first.
		p.Segments = p.Segments[:lo]
		return
	}
	p.sortPairs(lo)
}

// count sums up what the segments are.
func (p *Prompt) count() {
	for i := range p.Segments {
		seg := &p.Segments[i]
		switch {
		case seg.Kind.text():
			p.TextBytes += int(seg.size)
		case seg.Kind == KindMedia:
			p.Media++
		case seg.Kind == KindTokenIDs:
			p.TokenIDs += countIDs(p.Raw(*seg))
		}
	}
}

// name returns the text of a string.
func (p *Prompt) name(v span) []byte {
	if v.form == absent {
		return nil
	}
	raw := p.scan.raw(v)
	if v.form == plain && !hasBackslash(raw) || len(raw) > maxDecoded-len(p.decoded) {
		return raw
	}
	lo := len(p.decoded)
	p.decoded = appendUnescaped(p.decoded, raw)
	return p.decoded[lo:len(p.decoded):len(p.decoded)]
}
