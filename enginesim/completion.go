package enginesim

import "encoding/json/jsontext"

// completionDialect words answers of /v1/completions.
type completionDialect struct{}

const completionPrefix = "cmpl-"

func (completionDialect) start(j *job, out *output) error {
	out.head = j.appendHead(out.head[:0], completionPrefix, "text_completion")
	return nil
}

func (completionDialect) delta(j *job, out *output, choice int, d delta) error {
	b := out.openChoice(choice)
	b = append(b, `,"text":`...)
	b, _ = jsontext.AppendQuote(b, d.text)
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	if d.last {
		b = append(b, `"length"`...)
	} else {
		b = append(b, `null`...)
	}
	b = append(b, `,"stop_reason":null,"prompt_token_ids":`...)
	if j.tokenIDs && d.pos == 0 {
		b = appendIDs(b, j.prompts[choice/j.n].ids...)
	} else {
		b = append(b, `null`...)
	}
	b = append(b, `,"token_ids":`...)
	if j.tokenIDs {
		b = appendIDs(b, d.ids...)
	} else {
		b = append(b, `null`...)
	}
	return j.sendChunk(out, append(b, `}]`...), choice, j.answers[choice].n)
}

func (completionDialect) end(j *job, out *output) error { return j.endStream(out, "") }

// textCompletion is an answer in one piece, its members in vLLM's order.
type textCompletion struct {
	ID                string       `json:"id"`
	Object            string       `json:"object"`
	Created           int64        `json:"created"`
	Model             string       `json:"model"`
	Choices           []textChoice `json:"choices"`
	ServiceTier       *string      `json:"service_tier"`
	SystemFingerprint string       `json:"system_fingerprint"`
	Usage             usageBody    `json:"usage"`
	KVTransferParams  *struct{}    `json:"kv_transfer_params"`
	ECTransferParams  *struct{}    `json:"ec_transfer_params"`
	Metrics           *struct{}    `json:"metrics"`
}

type textChoice struct {
	Index          int       `json:"index"`
	Text           string    `json:"text"`
	Logprobs       *struct{} `json:"logprobs"`
	FinishReason   string    `json:"finish_reason"`
	StopReason     *string   `json:"stop_reason"`
	TokenIDs       []uint32  `json:"token_ids"`
	PromptLogprobs *struct{} `json:"prompt_logprobs"`
	PromptTokenIDs []uint32  `json:"prompt_token_ids"`
	RoutedExperts  *struct{} `json:"routed_experts"`
}

func (completionDialect) whole(j *job) any {
	body := textCompletion{
		ID:                completionPrefix + j.id,
		Object:            "text_completion",
		Created:           j.created,
		Model:             j.model,
		SystemFingerprint: fingerprint,
		Usage:             j.usageBody(),
	}
	for i, a := range j.answers {
		choice := textChoice{Index: i, Text: string(a.text), FinishReason: "length", TokenIDs: a.ids}
		if j.tokenIDs {
			choice.PromptTokenIDs = j.prompts[i/j.n].ids
		}
		body.Choices = append(body.Choices, choice)
	}
	return &body
}
