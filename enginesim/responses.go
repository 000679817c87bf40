package enginesim

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"net/http"
	"strconv"
)

const responsePrefix = "resp_"

// responsesRequest is a body of /v1/responses. Its prompt is that of the chat that the
// real engine makes of it. What an earlier response was is not kept.
type responsesRequest struct {
	Model        string         `json:"model"`
	Instructions string         `json:"instructions"`
	Input        jsontext.Value `json:"input"`
	Tools        jsontext.Value `json:"tools"`
	Previous     string         `json:"previous_response_id"`
	MaxTokens    *int           `json:"max_output_tokens"`
	Stream       bool           `json:"stream"`
	CacheSalt    *string        `json:"cache_salt"`
}

// responseItem is an item of the input: a message or what is part of one in a chat.
type responseItem struct {
	message
	Type      string         `json:"type"`
	CallID    string         `json:"call_id"`
	Arguments string         `json:"arguments"`
	Output    jsontext.Value `json:"output"`
	Summary   []part         `json:"summary"`
}

// parseResponses parses a body of /v1/responses.
func (s *Server) parseResponses(r *http.Request, body []byte) (*job, *apiError) {
	var req responsesRequest
	if err := decode(body, &req); err != nil {
		return nil, err
	}
	if req.Previous != "" {
		return nil, &apiError{
			status:  http.StatusNotFound,
			kind:    "NotFoundError",
			message: "The previous response is not there: a simulated engine keeps none. Send the whole conversation as input.",
			param:   "previous_response_id",
		}
	}
	c := conversation{Tools: req.Tools}
	if req.Instructions != "" {
		c.Messages = append(c.Messages, message{Role: "system", Content: quoted(req.Instructions)})
	}
	if err := req.appendInput(&c); err != nil {
		return nil, err
	}
	p, err := c.render()
	if err != nil {
		return nil, badRequest(err.Error(), "input")
	}
	shared := sampling{Model: req.Model, Stream: req.Stream, MaxTokens: req.MaxTokens, CacheSalt: req.CacheSalt}
	dialect := &responsesDialect{request: responseEcho{Instructions: req.Instructions, MaxTokens: req.MaxTokens}}
	return s.newJob(r, &shared, []prompt{p}, dialect, defaultChatTokens)
}

// quoted is a text as JSON.
func quoted(text string) jsontext.Value {
	b, _ := jsontext.AppendQuote(nil, text) // bytes that are no UTF-8 are replaced
	return b
}

// appendInput appends the messages that the input stands for.
func (req *responsesRequest) appendInput(c *conversation) *apiError {
	if req.Input.Kind() == '"' {
		c.Messages = append(c.Messages, message{Role: "user", Content: req.Input})
		return nil
	}
	var items []responseItem
	if err := decode(req.Input, &items); err != nil {
		return err
	}
	for i := range items {
		if err := c.appendItem(&items[i]); err != nil {
			return badRequest(fmt.Sprintf("input item %d: %v", i, err), "input")
		}
	}
	return nil
}

// appendItem appends an item's message, or to the assistant's message before it.
func (c *conversation) appendItem(item *responseItem) error {
	switch item.Type {
	case "", "message":
		if m := c.openAssistant(); item.Role == "assistant" && m != nil && m.Content == nil && m.ToolCalls == nil {
			m.Content = item.Content
			return nil
		}
		c.Messages = append(c.Messages, item.message)
	case "reasoning":
		c.Messages = append(c.Messages, message{Role: "assistant", Reasoning: item.reasoning()})
	case "function_call":
		m := c.openAssistant()
		if m == nil {
			c.Messages = append(c.Messages, message{Role: "assistant"})
			m = c.openAssistant()
		}
		m.ToolCalls = appendCall(m.ToolCalls, item)
	case "function_call_output":
		c.Messages = append(c.Messages, message{Role: "tool", Content: item.Output, ToolCallID: item.CallID})
	default:
		return fmt.Errorf("a simulated engine knows no items of type %q", item.Type)
	}
	return nil
}

// openAssistant is the last message if it is the assistant's.
func (c *conversation) openAssistant() *message {
	if n := len(c.Messages); n > 0 && c.Messages[n-1].Role == "assistant" {
		return &c.Messages[n-1]
	}
	return nil
}

// reasoning is the first text of what the model thought, or of its summary.
func (item *responseItem) reasoning() string {
	var content []part
	if json.Unmarshal(item.Content, &content, lenient) != nil || len(content) == 0 {
		content = item.Summary
	}
	if len(content) == 0 {
		return ""
	}
	return content[0].Text
}

// appendCall appends a call to a chat message's list of them.
func appendCall(calls jsontext.Value, item *responseItem) jsontext.Value {
	before := byte(',')
	if calls == nil {
		calls, before = append(calls, ']'), '['
	}
	calls = append(calls[:len(calls)-1], before)
	calls = append(append(calls, `{"id":`...), quoted(item.CallID)...)
	calls = append(append(calls, `,"type":"function","function":{"name":`...), quoted(item.Name)...)
	calls = append(append(calls, `,"arguments":`...), quoted(item.Arguments)...)
	return append(calls, "}}]"...)
}

// responsesDialect words answers of /v1/responses.
type responsesDialect struct {
	request responseEcho
	text    []byte // of a stream so far
}

// responseEcho is what an answer repeats of its request.
type responseEcho struct {
	Instructions string
	MaxTokens    *int
}

// response is an answer, its members in vLLM's order.
type response struct {
	ID                 string            `json:"id"`
	CreatedAt          int64             `json:"created_at"`
	IncompleteDetails  map[string]string `json:"incomplete_details"`
	Instructions       *string           `json:"instructions"`
	Metadata           *struct{}         `json:"metadata"`
	Model              string            `json:"model"`
	Object             string            `json:"object"`
	Output             []responseMessage `json:"output"`
	ParallelToolCalls  bool              `json:"parallel_tool_calls"`
	Temperature        float64           `json:"temperature"`
	ToolChoice         string            `json:"tool_choice"`
	Tools              []struct{}        `json:"tools"`
	TopP               float64           `json:"top_p"`
	Background         bool              `json:"background"`
	MaxOutputTokens    int               `json:"max_output_tokens"`
	MaxToolCalls       *int              `json:"max_tool_calls"`
	PreviousResponseID *string           `json:"previous_response_id"`
	Prompt             *struct{}         `json:"prompt"`
	Reasoning          *struct{}         `json:"reasoning"`
	ServiceTier        string            `json:"service_tier"`
	Status             string            `json:"status"`
	Text               *struct{}         `json:"text"`
	TopLogprobs        *int              `json:"top_logprobs"`
	Truncation         string            `json:"truncation"`
	Usage              *responseUsage    `json:"usage"`
	User               *string           `json:"user"`
	PresencePenalty    float64           `json:"presence_penalty"`
	FrequencyPenalty   float64           `json:"frequency_penalty"`
	KVTransferParams   *struct{}         `json:"kv_transfer_params"`
	ECTransferParams   *struct{}         `json:"ec_transfer_params"`
	InputMessages      *struct{}         `json:"input_messages"`
	OutputMessages     *struct{}         `json:"output_messages"`
}

type responseMessage struct {
	ID      string         `json:"id"`
	Content []responseText `json:"content"`
	Role    string         `json:"role"`
	Status  string         `json:"status"`
	Type    string         `json:"type"`
	Phase   *string        `json:"phase"`
}

type responseText struct {
	Annotations []struct{} `json:"annotations"`
	Text        string     `json:"text"`
	Type        string     `json:"type"`
	Logprobs    *struct{}  `json:"logprobs"`
}

type responseUsage struct {
	InputTokens   int                   `json:"input_tokens"`
	InputDetails  responseInputDetails  `json:"input_tokens_details"`
	OutputTokens  int                   `json:"output_tokens"`
	OutputDetails responseOutputDetails `json:"output_tokens_details"`
	TotalTokens   int                   `json:"total_tokens"`
}

type responseInputDetails struct {
	CachedTokens     int   `json:"cached_tokens"`
	CacheWriteTokens int   `json:"cache_write_tokens"`
	InputPerTurn     []int `json:"input_tokens_per_turn"`
	CachedPerTurn    []int `json:"cached_tokens_per_turn"`
}

type responseOutputDetails struct {
	ReasoningTokens   int   `json:"reasoning_tokens"`
	ToolOutputTokens  int   `json:"tool_output_tokens"`
	OutputPerTurn     []int `json:"output_tokens_per_turn"`
	ToolOutputPerTurn []int `json:"tool_output_tokens_per_turn"`
}

// response is the answer as it stands before there is any output.
func (d *responsesDialect) response(j *job) *response {
	r := &response{
		ID:                responsePrefix + j.id,
		CreatedAt:         j.created,
		Model:             j.model,
		Object:            "response",
		Output:            []responseMessage{},
		ParallelToolCalls: true,
		Temperature:       1,
		ToolChoice:        "auto",
		Tools:             []struct{}{},
		TopP:              1,
		MaxOutputTokens:   j.maxTokens,
		ServiceTier:       "auto",
		Status:            "in_progress",
		Truncation:        "disabled",
	}
	if d.request.Instructions != "" {
		r.Instructions = &d.request.Instructions
	}
	return r
}

// finished is the answer with its output: its end is always that of its tokens.
func (d *responsesDialect) finished(j *job, text string) *response {
	r := d.response(j)
	r.Status, r.IncompleteDetails = "incomplete", map[string]string{"reason": "max_output_tokens"}
	r.Output = append(r.Output, responseOutput(j, text, "completed"))
	u := j.used
	r.Usage = &responseUsage{
		InputTokens:   u.prompt,
		InputDetails:  responseInputDetails{InputPerTurn: []int{}, CachedPerTurn: []int{}},
		OutputTokens:  u.completion,
		OutputDetails: responseOutputDetails{OutputPerTurn: []int{}, ToolOutputPerTurn: []int{}},
		TotalTokens:   u.prompt + u.completion,
	}
	if j.details {
		r.Usage.InputDetails.CachedTokens = u.cached
	}
	return r
}

func responseOutput(j *job, text, status string) responseMessage {
	return responseMessage{
		ID:      "msg_" + j.id,
		Content: []responseText{{Annotations: []struct{}{}, Text: text, Type: "output_text"}},
		Role:    "assistant",
		Status:  status,
		Type:    "message",
	}
}

func (d *responsesDialect) whole(j *job) any { return d.finished(j, string(j.answers[0].text)) }

// open sends the events that come before the prompt is computed.
func (d *responsesDialect) open(j *job, out *output) error {
	for _, name := range []string{"response.created", "response.in_progress"} {
		if err := out.sendMember(name, "", "response", d.response(j)); err != nil {
			return err
		}
	}
	return nil
}

func (d *responsesDialect) start(j *job, out *output) error {
	message := responseOutput(j, "", "in_progress")
	message.Content = []responseText{}
	if err := out.sendMember("response.output_item.added", `,"output_index":0`, "item", message); err != nil {
		return err
	}
	return out.sendMember("response.content_part.added", d.place(j), "part", responseOutput(j, "", "").Content[0])
}

// place is where in the output an event belongs to.
func (*responsesDialect) place(j *job) string {
	return `,"item_id":` + string(quoted("msg_"+j.id)) + `,"output_index":0,"content_index":0`
}

func (d *responsesDialect) delta(j *job, out *output, _ int, grown delta) error {
	d.text = append(d.text, grown.text...)
	return out.sendMember("response.output_text.delta", d.place(j), "delta", string(grown.text))
}

func (d *responsesDialect) end(j *job, out *output) error {
	text := string(d.text)
	message := responseOutput(j, text, "completed")
	if err := out.sendMember("response.output_text.done", d.place(j), "text", text); err != nil {
		return err
	}
	if err := out.sendMember("response.content_part.done", d.place(j), "part", message.Content[0]); err != nil {
		return err
	}
	if err := out.sendMember("response.output_item.done", `,"output_index":0`, "item", message); err != nil {
		return err
	}
	return out.sendMember("response.completed", "", "response", d.finished(j, text))
}

// sendMember sends a named event with its type, its number, members that are worded
// already, and a value under a name.
func (o *output) sendMember(event, members, name string, value any) error {
	body, err := json.Marshal(value, lenient, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return err
	}
	return o.sendEvent(event, `,"sequence_number":`+strconv.Itoa(o.events)+members+`,"`+name+`":`+string(body))
}
