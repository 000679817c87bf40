package enginesim

import (
	"encoding/json/jsontext"
	"strconv"
)

// chatDialect words answers of /v1/chat/completions.
type chatDialect struct{}

const chatPrefix = "chatcmpl-"

// start sends the role of each choice: with the first token, not before.
func (chatDialect) start(j *job, out *output) error {
	out.head = j.appendHead(out.head[:0], chatPrefix, "chat.completion.chunk")
	for choice := range j.answers {
		b := out.openChoice(choice)
		b = append(b, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
		if j.tokenIDs {
			b = append(b, `,"prompt_token_ids":`...)
			b = appendIDs(b, j.prompts[0].ids...)
			b = append(b, `,"prompt_text":null`...)
		}
		if err := j.sendChunk(out, b, choice, 0); err != nil {
			return err
		}
	}
	return nil
}

func (chatDialect) delta(j *job, out *output, choice int, d delta) error {
	b := out.openChoice(choice)
	b = append(b, `,"delta":{"content":`...)
	b, _ = jsontext.AppendQuote(b, d.text)
	b = append(b, `},"logprobs":null,"finish_reason":`...)
	if d.last {
		b = append(b, `"length","stop_reason":null`...)
	} else {
		b = append(b, `null`...)
	}
	if j.tokenIDs {
		b = append(b, `,"token_ids":`...)
		b = appendIDs(b, d.ids...)
	}
	return j.sendChunk(out, append(b, `}]`...), choice, j.answers[choice].n)
}

func (chatDialect) end(j *job, out *output) error {
	return j.endStream(out, `,"created_cache_tokens":`+strconv.Itoa(j.used.stored))
}

// chatCompletion is an answer in one piece, its members in vLLM's order.
type chatCompletion struct {
	ID                string       `json:"id"`
	Object            string       `json:"object"`
	Created           int64        `json:"created"`
	Model             string       `json:"model"`
	Choices           []chatChoice `json:"choices"`
	ServiceTier       *string      `json:"service_tier"`
	SystemFingerprint string       `json:"system_fingerprint"`
	Usage             usageBody    `json:"usage"`
	PromptLogprobs    *string      `json:"prompt_logprobs"`
	PromptTokenIDs    []uint32     `json:"prompt_token_ids"`
	PromptText        *string      `json:"prompt_text"`
	KVTransferParams  *struct{}    `json:"kv_transfer_params"`
	ECTransferParams  *struct{}    `json:"ec_transfer_params"`
	Metrics           *struct{}    `json:"metrics"`
}

type chatChoice struct {
	Index         int         `json:"index"`
	Message       chatMessage `json:"message"`
	Logprobs      *struct{}   `json:"logprobs"`
	FinishReason  string      `json:"finish_reason"`
	StopReason    *string     `json:"stop_reason"`
	TokenIDs      []uint32    `json:"token_ids"`
	RoutedExperts *struct{}   `json:"routed_experts"`
}

type chatMessage struct {
	Role         string    `json:"role"`
	Content      string    `json:"content"`
	Refusal      *string   `json:"refusal"`
	Annotations  *struct{} `json:"annotations"`
	Audio        *struct{} `json:"audio"`
	FunctionCall *struct{} `json:"function_call"`
	Reasoning    *string   `json:"reasoning"`
}

func (chatDialect) whole(j *job) any {
	body := chatCompletion{
		ID:                chatPrefix + j.id,
		Object:            "chat.completion",
		Created:           j.created,
		Model:             j.model,
		SystemFingerprint: fingerprint,
		Usage:             j.usageBody(),
	}
	if details := body.Usage.PromptDetails; details != nil {
		details.CreatedCacheTokens = &j.used.stored
		if images := j.prompts[0].images; images > 0 {
			details.MultimodalTokens = map[string]int{"image": images}
		}
	}
	if j.tokenIDs {
		body.PromptTokenIDs = j.prompts[0].ids
	}
	for i, a := range j.answers {
		body.Choices = append(body.Choices, chatChoice{
			Index:        i,
			Message:      chatMessage{Role: "assistant", Content: string(a.text)},
			FinishReason: "length",
			TokenIDs:     a.ids,
		})
	}
	return &body
}
