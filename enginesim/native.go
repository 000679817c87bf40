package enginesim

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"net/http"
)

// defaultNativeTokens is an answer's length in tokens if a request of SGLang's own API
// names none.
const defaultNativeTokens = 128

// nativeRequest is a body of /generate, which SGLang has and vLLM has not.
type nativeRequest struct {
	Model    string         `json:"model"`
	Text     jsontext.Value `json:"text"`
	IDs      jsontext.Value `json:"input_ids"`
	Stream   bool           `json:"stream"`
	ExtraKey *string        `json:"extra_key"`
	Sampling struct {
		MaxTokens *int `json:"max_new_tokens"`
		N         *int `json:"n"`
	} `json:"sampling_params"`
}

// parseNative parses a body of /generate.
func (s *Server) parseNative(r *http.Request, body []byte) (*job, *apiError) {
	var req nativeRequest
	if err := decode(body, &req); err != nil {
		return nil, err
	}
	value := req.Text
	if !present(value) {
		value = req.IDs
	}
	prompts, err := parsePrompts(value)
	if err != nil {
		return nil, err
	}
	for i := range prompts {
		prompts[i].text = nil
	}
	shared := sampling{
		Model: req.Model, Stream: req.Stream, ExtraKey: req.ExtraKey, ReturnTokenIDs: true,
		MaxTokens: req.Sampling.MaxTokens, N: req.Sampling.N,
	}
	return s.newJob(r, &shared, prompts, nativeDialect{}, defaultNativeTokens)
}

// nativeDialect words answers of /generate. Each event of a stream has the whole text so
// far and all that is counted.
type nativeDialect struct{}

type nativeAnswer struct {
	Text  string     `json:"text"`
	IDs   []uint32   `json:"output_ids"`
	Meta  nativeMeta `json:"meta_info"`
	Index *int       `json:"index,omitempty"`
}

type nativeMeta struct {
	ID               string        `json:"id"`
	FinishReason     *nativeFinish `json:"finish_reason"`
	PromptTokens     int           `json:"prompt_tokens"`
	WeightVersion    string        `json:"weight_version"`
	CompletionTokens int           `json:"completion_tokens"`
	CachedTokens     int           `json:"cached_tokens"`
}

type nativeFinish struct {
	Type   string `json:"type"`
	Length int    `json:"length"`
}

func (nativeDialect) answer(j *job, choice int) nativeAnswer {
	a := &j.answers[choice]
	answer := nativeAnswer{
		Text: string(a.text),
		IDs:  a.ids,
		Meta: nativeMeta{
			ID:               j.id,
			PromptTokens:     len(j.prompts[choice/j.n].ids),
			WeightVersion:    "default",
			CompletionTokens: a.n,
			CachedTokens:     a.cached,
		},
	}
	if a.n == j.maxTokens {
		answer.Meta.FinishReason = &nativeFinish{"length", a.n}
	}
	return answer
}

func (nativeDialect) start(*job, *output) error { return nil }

func (d nativeDialect) delta(j *job, out *output, choice int, grown delta) error {
	a := &j.answers[choice]
	a.text, a.ids = append(a.text, grown.text...), append(a.ids, grown.ids...)
	answer := d.answer(j, choice)
	if len(j.answers) > 1 {
		answer.Index = &choice
	}
	body, err := json.Marshal(answer, lenient, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return err
	}
	out.buf = append(append(append(out.buf[:0], "data: "...), body...), "\n\n"...)
	return out.send()
}

func (nativeDialect) end(_ *job, out *output) error { return out.sendDone() }

func (d nativeDialect) whole(j *job) any {
	answers := make([]nativeAnswer, len(j.answers))
	for choice := range answers {
		answers[choice] = d.answer(j, choice)
	}
	if len(answers) == 1 {
		return &answers[0]
	}
	return answers
}
