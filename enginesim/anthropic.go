package enginesim

import (
	"encoding/json/jsontext"
	"net/http"
	"slices"
	"strconv"
)

// messagesRequest is a body of /v1/messages. Its prompt is that of a chat with
// the system text as first message, so both APIs share their prefixes.
type messagesRequest struct {
	Model     string         `json:"model"`
	System    jsontext.Value `json:"system"`
	Tools     jsontext.Value `json:"tools"`
	Messages  []message      `json:"messages"`
	MaxTokens *int           `json:"max_tokens"`
	Stream    bool           `json:"stream"`
}

func (req *messagesRequest) render() (prompt, *apiError) {
	if len(req.Messages) == 0 {
		return prompt{}, badRequest(errNoMessages.Error(), "messages")
	}
	c := conversation{Tools: req.Tools, Messages: req.Messages}
	if present(req.System) {
		c.Messages = slices.Insert(c.Messages, 0, message{Role: "system", Content: req.System})
	}
	p, err := c.render()
	if err != nil {
		return p, badRequest(err.Error(), "messages")
	}
	return p, nil
}

// parseMessages parses a body of /v1/messages.
func (s *Server) parseMessages(r *http.Request, body []byte) (*job, *apiError) {
	var req messagesRequest
	if err := decode(body, &req); err != nil {
		return nil, err
	}
	if req.MaxTokens == nil {
		return nil, badRequest("max_tokens: Field required", "max_tokens")
	}
	p, err := req.render()
	if err != nil {
		return nil, err
	}
	shared := sampling{Model: req.Model, Stream: req.Stream, MaxTokens: req.MaxTokens}
	return s.newJob(r, &shared, []prompt{p}, messagesDialect{}, 0)
}

// countTokens answers how long the prompt of a body of /v1/messages is.
func (s *Server) countTokens(w http.ResponseWriter, r *http.Request) {
	var req messagesRequest
	body, err := readBody(w, r)
	defer keepBody(body)
	if err == nil {
		err = decode(body.Bytes(), &req)
	}
	if err == nil {
		_, err = s.modelFor(req.Model)
	}
	var p prompt
	if err == nil {
		p, err = req.render()
	}
	if err != nil {
		writeAnthropicError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]int{"input_tokens": len(p.ids)})
}

// writeAnthropicError answers in the shape of Anthropic's API.
func writeAnthropicError(w http.ResponseWriter, e *apiError) {
	type shape struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	kind := "api_error"
	switch {
	case e.status == http.StatusNotFound:
		kind = "not_found_error"
	case e.status == http.StatusRequestEntityTooLarge:
		kind = "request_too_large"
	case e.status == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case e.status == http.StatusServiceUnavailable:
		kind = "overloaded_error"
	case e.status < http.StatusInternalServerError:
		kind = "invalid_request_error"
	}
	writeJSON(w, e.status, struct {
		Type  string `json:"type"`
		Error shape  `json:"error"`
	}{"error", shape{kind, e.message}})
}

// messagesDialect words answers of /v1/messages.
type messagesDialect struct{}

// anthropicUsage counts what was read from the cache apart from the rest of the
// input.
type anthropicUsage struct {
	InputTokens   int  `json:"input_tokens"`
	OutputTokens  int  `json:"output_tokens"`
	CacheCreation *int `json:"cache_creation_input_tokens"`
	CacheRead     *int `json:"cache_read_input_tokens"`
}

func (j *job) anthropicUsage() anthropicUsage {
	if !j.details {
		return anthropicUsage{InputTokens: j.used.prompt, OutputTokens: j.used.completion}
	}
	created := 0
	return anthropicUsage{
		InputTokens:   j.used.prompt - j.used.cached,
		OutputTokens:  j.used.completion,
		CacheCreation: &created,
		CacheRead:     &j.used.cached,
	}
}

func (j *job) appendAnthropicUsage(b []byte, output int) []byte {
	u := j.anthropicUsage()
	b = append(b, `"usage":{"input_tokens":`...)
	b = strconv.AppendInt(b, int64(u.InputTokens), 10)
	b = append(b, `,"output_tokens":`...)
	b = strconv.AppendInt(b, int64(output), 10)
	if u.CacheRead != nil {
		b = append(b, `,"cache_creation_input_tokens":0,"cache_read_input_tokens":`...)
		b = strconv.AppendInt(b, int64(*u.CacheRead), 10)
	}
	return append(b, '}')
}

func (messagesDialect) start(j *job, out *output) error {
	b := append(out.buf[:0], `event: message_start`+"\n"+`data: {"type":"message_start","message":{"id":`...)
	b, _ = jsontext.AppendQuote(b, chatPrefix+j.id)
	b = append(b, `,"type":"message","role":"assistant","content":[],"model":`...)
	b, _ = jsontext.AppendQuote(b, j.model)
	b = append(b, `,"stop_reason":null,"stop_sequence":null,`...)
	b = j.appendAnthropicUsage(b, 0)
	out.buf = append(b, "}}\n\n"...)
	if err := out.send(); err != nil {
		return err
	}
	return out.sendEvent("content_block_start", `,"index":0,"content_block":{"type":"text","text":""}`)
}

// sendEvent sends a named event whose data is its type and members.
func (o *output) sendEvent(name, members string) error {
	o.buf = append(o.buf[:0], "event: "+name+"\ndata: {\"type\":\""+name+"\""+members+"}\n\n"...)
	return o.send()
}

func (messagesDialect) delta(_ *job, out *output, _ int, d delta) error {
	b := append(out.buf[:0], `event: content_block_delta`+"\n"+`data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":`...)
	b, _ = jsontext.AppendQuote(b, d.text)
	out.buf = append(b, "}}\n\n"...)
	return out.send()
}

func (messagesDialect) end(j *job, out *output) error {
	if err := out.sendEvent("content_block_stop", `,"index":0`); err != nil {
		return err
	}
	usage := string(j.appendAnthropicUsage(nil, j.used.completion))
	if err := out.sendEvent("message_delta", `,"delta":{"stop_reason":"max_tokens","stop_sequence":null},`+usage); err != nil {
		return err
	}
	return out.sendEvent("message_stop", "")
}

func (messagesDialect) whole(j *job) any {
	type text struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	return &struct {
		ID         string         `json:"id"`
		Type       string         `json:"type"`
		Role       string         `json:"role"`
		Content    []text         `json:"content"`
		Model      string         `json:"model"`
		StopReason string         `json:"stop_reason"`
		Usage      anthropicUsage `json:"usage"`
	}{
		ID:         chatPrefix + j.id,
		Type:       "message",
		Role:       "assistant",
		Content:    []text{{"text", string(j.answers[0].text)}},
		Model:      j.model,
		StopReason: "max_tokens",
		Usage:      j.anthropicUsage(),
	}
}
