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
	partInstruction
	partHistory // what stands for messages that the engine has
	partImages
	partVideos
	partSounds
	partBody   // messages or bare prompts
	partSecond // what else a prompt is given as, or what it is paired with
	partEmbeds
	partSuffix
	parts
)

// request is what is gathered while the top level of a body is read.
type request struct {
	parts                  [parts]run
	first, second          batch // of partBody and partSecond
	maxTokens              int
	maxCompletionTokens    int
	maxOutputTokens        int
	noTools                bool // the tools are left out of the prompt
	loraPath, loraName     span
	model, salt, extraKey  span
	cacheKey, user         span
	metadataUser           span
	sessionID, session     span
	previous, conversation span
}

// request reads the object that is the body.
func (p *Prompt) request() {
	s := &p.scan
	r := request{maxTokens: -1, maxCompletionTokens: -1, maxOutputTokens: -1}
	for s.enter(); s.nextKey(); {
		if !p.field(&r) && (p.full() || !p.promptField(&r)) {
			s.skip()
		}
	}
	p.MaxTokens = p.limit(&r)
	p.Model = p.name(r.model)
	p.Salt = p.name(r.salt)
	p.ExtraKey = p.name(r.extraKey)
	p.LoRA = p.name(r.loraPath)
	if len(p.LoRA) == 0 {
		p.LoRA = p.name(r.loraName)
	}
	p.Session = Session{
		PromptCacheKey:     p.name(r.cacheKey),
		User:               p.name(r.user),
		UserID:             p.name(r.metadataUser),
		SessionID:          p.name(firstOf(r.sessionID, r.session)),
		PreviousResponseID: p.name(r.previous),
		Conversation:       p.name(r.conversation),
	}
	p.settle(&r)
	p.arrange(&r)
	p.count(&r)
}

// limit is the most tokens that were asked for, -1 if none were.
func (p *Prompt) limit(r *request) int {
	switch {
	case p.API == Responses:
		return r.maxOutputTokens
	case p.API != Completions && r.maxCompletionTokens >= 0:
		return r.maxCompletionTokens
	default:
		return r.maxTokens
	}
}

// settle leaves out what other fields say is not in the prompt.
func (p *Prompt) settle(r *request) {
	if p.API == Generate || p.API == Classify {
		p.oneText(r)
	}
	p.Prompts = max(1, r.first.prompts, r.second.prompts)
	p.oneMedium(r)
	if r.noTools {
		r.parts[partTools] = run{}
	}
	p.dropUsual(r)
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
	case "max_output_tokens":
		r.maxOutputTokens = s.integer(0, -1)
	case "n":
		p.N = s.integer(1, 1)
	case "cache_salt":
		r.salt = s.oneStr()
	case "extra_key":
		r.extraKey = s.oneStr()
	case "lora_path":
		r.loraPath = s.oneStr()
	case "lora_name":
		r.loraName = s.str()
	case "prompt_cache_key":
		r.cacheKey = s.str()
	case "user":
		r.user = s.str()
	case "metadata":
		r.metadataUser = s.member("user_id")
	case "session_params":
		r.sessionID, r.session = span{}, span{}
		s.one(func() { p.sessionParams(r) })
	case "sampling_params":
		s.one(func() { p.sampling(r) })
	default:
		return false
	}
	return true
}

func (p *Prompt) sessionParams(r *request) {
	s := &p.scan
	if !s.at('{') {
		s.skip()
		return
	}
	for s.enter(); s.nextKey(); {
		switch string(s.key) {
		case "session_id":
			r.sessionID = s.str()
		case "id":
			r.session = s.str()
		default:
			s.skip()
		}
	}
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
	case Responses:
		return p.responsesField(r) || p.control(r)
	case Generate:
		return p.generateField(r)
	case TokenGenerate:
		return p.tokenField(r)
	case Embeddings, Pooling, Classify:
		return p.control(r) || p.poolingField(r)
	case Score, Rerank:
		return p.pairField(r) || p.control(r)
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
	if v := s.json(); v.form != absent && !s.isEmpty(v) {
		p.open(KindControl, name)
		p.open(KindValue, v)
	}
	r.parts[part] = p.since(lo)
	return true
}

// dropUsual leaves add_special_tokens out if it is what it is when it is not said: chat
// templates bring their own.
func (p *Prompt) dropUsual(r *request) {
	special, body, second := &r.parts[partSpecialTokens], r.parts[partBody], r.parts[partSecond]
	if special.hi == special.lo {
		return
	}
	usual := "false"
	switch p.API {
	case Chat, Messages, Responses:
	case Completions, Score, Rerank:
		usual = "true"
	default:
		chat := body.hi > body.lo && p.Segments[body.lo].Kind == KindRole
		bare := !chat && (body.hi > body.lo || second.hi > second.lo)
		if !chat && !bare && p.scan.partial { // it may become either, so nothing is certain from here on
			clear(r.parts[partSpecialTokens:])
			return
		}
		if bare {
			usual = "true"
		}
	}
	if string(p.Raw(p.Segments[special.lo+1])) == usual {
		*special = run{}
	}
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

// count sums up what the prompts are.
func (p *Prompt) count(r *request) {
	for _, b := range []*batch{&r.first, &r.second} {
		p.TextBytes += b.text
		p.TokenIDs += b.ids
		p.Media += b.media
		p.OtherBytes += b.bytes
	}
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
