package enginesim

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
)

const (
	// Answers' lengths in tokens if the request names none. Chat's is short:
	// the real engine goes on to the end of its context.
	defaultChatTokens       = 64
	defaultCompletionTokens = 16

	fingerprint = "enginesim"
)

// sampling is what the OpenAI requests have in common. The engine never samples
// an end-of-sequence token, so every answer has its full length and ignore_eos,
// like all else that is not here, changes nothing.
type sampling struct {
	Model          string  `json:"model"`
	Stream         bool    `json:"stream"`
	N              *int    `json:"n"`
	MaxTokens      *int    `json:"max_tokens"`
	CacheSalt      *string `json:"cache_salt"`
	ReturnTokenIDs bool    `json:"return_token_ids"`
	ExtraKey       *string `json:"-"` // SGLang's, of its own API
	StreamOptions  struct {
		IncludeUsage         bool `json:"include_usage"`
		ContinuousUsageStats bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
}

// parseChat parses a body of /v1/chat/completions.
func (s *Server) parseChat(r *http.Request, body []byte) (*job, *apiError) {
	var req struct {
		sampling
		conversation
		MaxCompletionTokens *int `json:"max_completion_tokens"`
	}
	if err := decode(body, &req); err != nil {
		return nil, err
	}
	p, err := req.render()
	if err != nil {
		return nil, badRequest(err.Error(), "messages")
	}
	if req.MaxCompletionTokens != nil {
		req.MaxTokens = req.MaxCompletionTokens
	}
	return s.newJob(r, &req.sampling, []prompt{p}, chatDialect{}, defaultChatTokens)
}

// parseCompletion parses a body of /v1/completions.
func (s *Server) parseCompletion(r *http.Request, body []byte) (*job, *apiError) {
	var req struct {
		sampling
		Prompt jsontext.Value `json:"prompt"`
		Echo   bool           `json:"echo"`
	}
	if err := decode(body, &req); err != nil {
		return nil, err
	}
	prompts, apiErr := parsePrompts(req.Prompt)
	if apiErr != nil {
		return nil, apiErr
	}
	if !req.Echo {
		for i := range prompts {
			prompts[i].text = nil
		}
	}
	return s.newJob(r, &req.sampling, prompts, completionDialect{}, defaultCompletionTokens)
}

// parsePrompts parses the forms of a completion's prompt: a text, token ids, or
// a list of either.
func parsePrompts(value jsontext.Value) ([]prompt, *apiError) {
	items := []jsontext.Value{value}
	switch value.Kind() {
	case 0, 'n':
		return nil, errEmptyPrompt
	case '[':
		switch firstKind(value) {
		case ']':
			return nil, badRequest("You must pass at least one prompt", "")
		case '"', '[':
			items = nil
			if err := decode(value, &items); err != nil {
				return nil, err
			}
		case '0': // one prompt
		default:
			return nil, errPromptForm
		}
	}
	prompts := make([]prompt, 0, min(len(items), maxSequences+1))
	for _, item := range items[:cap(prompts)] {
		if item.Kind() != items[0].Kind() {
			return nil, errPromptForm
		}
		p, err := parsePrompt(item)
		if err != nil {
			return nil, err
		}
		prompts = append(prompts, p)
	}
	return prompts, nil
}

var (
	errEmptyPrompt = badRequest("Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", "prompt")
	errPromptForm  = badRequest("prompt must be a text, a list of token ids, or a list of either. (parameter=prompt)", "prompt")
)

// firstKind is the kind of a list's first element, ']' if it has none.
func firstKind(list jsontext.Value) jsontext.Kind {
	return jsontext.Value(bytes.TrimLeft(list, " \t\r\n")[1:]).Kind()
}

// parsePrompt parses one prompt: a text or token ids.
func parsePrompt(value jsontext.Value) (prompt, *apiError) {
	switch value.Kind() {
	case '"':
		return parseText(value)
	case '[':
		ids, err := parseIDs(value)
		return prompt{ids: ids}, err
	}
	return prompt{}, errPromptForm
}

func parseText(value jsontext.Value) (prompt, *apiError) {
	text, err := jsontext.AppendUnquote(nil, value)
	if err != nil {
		return prompt{}, errPromptForm
	}
	if len(text) == 0 {
		return prompt{}, errEmptyPrompt
	}
	return prompt{ids: appendTokens(make([]uint32, 0, expectedTokens(len(text))), text), text: text}, nil
}

func parseIDs(list jsontext.Value) ([]uint32, *apiError) {
	var ids []int64
	if err := json.Unmarshal(list, &ids, lenient); err != nil {
		return nil, badRequest("token ids must be whole numbers", "prompt")
	}
	if len(ids) == 0 {
		return nil, errEmptyPrompt
	}
	out := make([]uint32, len(ids))
	for i, id := range ids {
		if id < 0 || id >= vocabSize {
			return nil, badRequest(fmt.Sprintf("Token id %d is out of vocabulary", id), "")
		}
		out[i] = uint32(id)
	}
	return out, nil
}

// newJob checks what all OpenAI requests have in common.
func (s *Server) newJob(r *http.Request, req *sampling, prompts []prompt, d dialect, defaultTokens int) (*job, *apiError) {
	model, apiErr := s.modelFor(req.Model)
	if apiErr != nil {
		return nil, apiErr
	}
	j := &job{
		dialect:         d,
		id:              s.requestID(r),
		created:         time.Now().Unix(),
		model:           model,
		space:           s.namespaceOf(model),
		prompts:         prompts,
		n:               1,
		stream:          req.Stream,
		includeUsage:    req.StreamOptions.IncludeUsage,
		continuousUsage: req.StreamOptions.ContinuousUsageStats,
		tokenIDs:        req.ReturnTokenIDs,
		details:         s.opts.PromptTokensDetails,
	}
	if req.CacheSalt != nil {
		if *req.CacheSalt == "" {
			return nil, badRequest("Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)", "cache_salt")
		}
		j.space.salt = *req.CacheSalt
		j.space.root = mixString(j.space.root, j.space.salt)
	}
	s.setExtraKey(j, req.ExtraKey)
	if s.opts.radix() {
		for i := range prompts {
			prompts[i].pad()
		}
	}
	if j.rank, apiErr = s.rankFor(r); apiErr != nil {
		return nil, apiErr
	}
	if req.N != nil {
		j.n = *req.N
	}
	if j.n < 1 || j.n > maxSequences || len(prompts)*j.n > maxSequences {
		return nil, badRequest(fmt.Sprintf("n must be at least 1, and prompts times n at most %d, got n=%d and %d prompts. (parameter=n)", maxSequences, j.n, len(prompts)), "n")
	}
	return j, s.limit(j, req.MaxTokens, defaultTokens)
}

// namespaceOf sets prompts to a model apart. The first one is the base model, all others
// are adapters of it.
func (s *Server) namespaceOf(model string) namespace {
	space := namespace{root: mixString(0, model)}
	if id := slices.Index(s.opts.Models, model); id > 0 {
		space.adapter, space.adapterID = model, id
	}
	return space
}

// setExtraKey sets a job apart by a key that SGLang does not tell in its events. An
// engine that has no such key treats it as a salt.
func (s *Server) setExtraKey(j *job, key *string) {
	if key == nil || *key == "" {
		return
	}
	j.space.root = mixString(j.space.root, *key)
	if !s.opts.radix() {
		j.space.salt = *key
	}
}

// limit sets how long the job's answers are: as asked, but no longer than the
// context has room for. No room is an error.
func (s *Server) limit(j *job, asked *int, otherwise int) *apiError {
	longest := 0
	for _, p := range j.prompts {
		longest = max(longest, len(p.ids))
	}
	room := s.opts.MaxModelLen - longest
	if longest == 0 {
		return errEmptyPrompt
	}
	if room < 0 {
		return badRequest(fmt.Sprintf("This model's maximum context length is %d tokens. However, your prompt contains %d input tokens, "+
			"which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "+
			"(parameter=input_tokens, value=%d)", s.opts.MaxModelLen, longest, longest), "input_tokens")
	}
	j.maxTokens = min(otherwise, room)
	if asked != nil {
		j.maxTokens = min(*asked, room)
	}
	if j.maxTokens < 1 {
		return badRequest(fmt.Sprintf("max_tokens must be at least 1, got %d. (parameter=max_tokens, value=%d)", j.maxTokens, j.maxTokens), "max_tokens")
	}
	return nil
}

// usageBody is usage in an answer in one piece.
type usageBody struct {
	PromptTokens     int           `json:"prompt_tokens"`
	TotalTokens      int           `json:"total_tokens"`
	CompletionTokens int           `json:"completion_tokens"`
	PromptDetails    *usageDetails `json:"prompt_tokens_details"`
	OutputDetails    *struct{}     `json:"completion_tokens_details"`
}

type usageDetails struct {
	CachedTokens       int            `json:"cached_tokens"`
	CreatedCacheTokens *int           `json:"created_cache_tokens"`
	MultimodalTokens   map[string]int `json:"multimodal_tokens"`
}

func (j *job) usageBody() usageBody {
	body := usageBody{PromptTokens: j.used.prompt, TotalTokens: j.used.prompt + j.used.completion, CompletionTokens: j.used.completion}
	if j.details {
		body.PromptDetails = &usageDetails{CachedTokens: j.used.cached}
	}
	return body
}

// appendHead appends what all chunks of a stream have in common, up to the
// brackets of choices.
func (j *job) appendHead(b []byte, prefix, object string) []byte {
	b = append(b, `data: {"id":`...)
	b, _ = jsontext.AppendQuote(b, prefix+j.id) // bytes that are no UTF-8 are replaced
	b = append(b, `,"object":"`+object+`","created":`...)
	b = strconv.AppendInt(b, j.created, 10)
	b = append(b, `,"model":`...)
	b, _ = jsontext.AppendQuote(b, j.model)
	return append(b, `,"choices":[`...)
}

// openChoice begins a chunk of a stream with the choice it is of.
func (o *output) openChoice(choice int) []byte {
	b := append(o.buf[:0], o.head...)
	b = append(b, `{"index":`...)
	return strconv.AppendInt(b, int64(choice), 10)
}

// sendChunk ends a chunk behind its choice, with the choice's usage so far if that
// was asked for, and sends it. completion is the tokens of the choice so far.
func (j *job) sendChunk(out *output, b []byte, choice, completion int) error {
	if j.continuousUsage {
		b = append(appendUsage(b, len(j.prompts[choice/j.n].ids), completion), '}')
	}
	out.buf = append(b, "}\n\n"...)
	return out.send()
}

// appendUsage appends a member usage of a chunk, for one choice so far or at the
// end for all.
func appendUsage(b []byte, prompt, completion int) []byte {
	b = append(b, `,"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(prompt+completion), 10)
	b = append(b, `,"completion_tokens":`...)
	return strconv.AppendInt(b, int64(completion), 10)
}

// appendIDs appends a list of token ids.
func appendIDs(b []byte, ids ...uint32) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return append(b, ']')
}

// endStream sends the usage chunk, if it was asked for, and the end marker. more
// is what the API adds to the prompt's details.
func (j *job) endStream(out *output, more string) error {
	if !j.includeUsage {
		return out.sendDone()
	}
	b := append(out.buf[:0], out.head...)
	b = append(b, ']')
	b = appendUsage(b, j.used.prompt, j.used.completion)
	if j.details {
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
		b = strconv.AppendInt(b, int64(j.used.cached), 10)
		b = append(b, more...)
		b = append(b, '}')
	}
	out.buf = append(b, "},\"system_fingerprint\":\""+fingerprint+"\"}\n\n"...)
	if err := out.send(); err != nil {
		return err
	}
	return out.sendDone()
}
