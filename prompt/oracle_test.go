package prompt

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	"github.com/zeebo/xxh3"
)

// The oracle makes the key stream the slow and obvious way: decode the body with
// encoding/json, look the fields up, put frames together.

type (
	member struct {
		key   string
		value any
	}
	object []member
)

// get returns the last value of key, nil if there is none.
func (o object) get(key string) any {
	for _, m := range slices.Backward(o) {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

func (o object) has(key string) bool {
	return slices.ContainsFunc(o, func(m member) bool { return m.key == key })
}

func (o object) str(key string) (string, bool) {
	s, ok := o.get(key).(string)
	return s, ok
}

// decodeOrdered keeps key order, duplicate keys and number text.
func decodeOrdered(body []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	v, err := decodeNext(d)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("more than one value: %w", err)
	}
	return v, nil
}

func decodeNext(d *json.Decoder) (any, error) {
	tok, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch tok {
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := decodeNext(d)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return list, err
	case json.Delim('{'):
		o := object{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := decodeNext(d)
			if err != nil {
				return nil, err
			}
			o = append(o, member{key.(string), v})
		}
		_, err = d.Token()
		return o, err
	}
	return tok, nil
}

// quoteText is the inside of a JSON string in its shortest escaping.
func quoteText(s string) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\b':
			b.WriteString(`\b`)
		case c == '\f':
			b.WriteString(`\f`)
		case c < 0x20:
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

func compactJSON(v any) string {
	switch v := v.(type) {
	case string:
		return `"` + quoteText(v) + `"`
	case json.Number:
		return v.String()
	case []any:
		var items []string
		for _, e := range v {
			items = append(items, compactJSON(e))
		}
		return "[" + strings.Join(items, ",") + "]"
	case object:
		var items []string
		for _, m := range v {
			items = append(items, compactJSON(m.key)+":"+compactJSON(m.value))
		}
		return "{" + strings.Join(items, ",") + "}"
	case nil:
		return "null"
	default:
		return fmt.Sprint(v)
	}
}

type oracle struct {
	api  API
	text strings.Builder
}

// oracleStream returns the key stream of a whole and valid body.
func oracleStream(path string, body []byte) (string, error) {
	v, err := decodeOrdered(body)
	if err != nil {
		return "", err
	}
	top, ok := v.(object)
	if !ok {
		return "", fmt.Errorf("not an object")
	}
	o := &oracle{api: APIOf(path)}
	if o.api == Unknown || o.api == Tokenize {
		return "", nil
	}
	switch o.api {
	case Generate, TokenGenerate:
	default:
		o.head(top)
	}
	switch o.api {
	case Chat:
		o.tools(KindTool, top.get("tools"))
		o.tools(KindFunction, top.get("functions"))
		o.messages(top.get("messages"))
	case Messages:
		o.tools(KindTool, top.get("tools"))
		o.system(top.get("system"))
		o.messages(top.get("messages"))
	case Completions:
		o.completions(top)
	case Responses:
		o.responses(top)
	case Generate:
		o.generate(top)
	case TokenGenerate:
		if features, ok := top.get("features").(object); ok && isContent(features.get("mm_hashes")) {
			o.frame(KindControl, "features")
			o.frame(KindDigest, digestOf(compactJSON(features.get("mm_hashes"))))
		}
		o.first(o.prompts(top.get("token_ids"), false))
	case Embeddings, Pooling, Classify:
		o.pooling(top)
	case Score, Rerank:
		o.pairs(top)
	}
	return o.text.String(), nil
}

// isContent is whether a value that is digested is more than nothing.
func isContent(v any) bool { return v != nil && v != "" }

func (o *oracle) frame(k Kind, content string) {
	o.text.WriteByte('"')
	o.text.WriteByte(byte(k))
	o.text.WriteString(content)
}

func (o *oracle) textFrame(k Kind, v any) bool {
	s, ok := v.(string)
	if ok {
		o.frame(k, quoteText(s))
	}
	return ok
}

// begin writes a frame that stands even without a value.
func (o *oracle) begin(k Kind, v any) {
	if !o.textFrame(k, v) {
		o.frame(k, "")
	}
}

func (o *oracle) head(top object) {
	for _, key := range []string{"chat_template", "chat_template_kwargs", "reasoning_effort", "reasoning", "documents", "add_special_tokens", "truncate_prompt_tokens", "mm_processor_kwargs", "media_io_kwargs"} {
		v := top.get(key)
		if reasoning, ok := v.(object); o.api == Responses && key == "reasoning" {
			if ok {
				o.control("reasoning_effort", reasoning.get("effort"))
			}
			continue
		}
		if key == "chat_template_kwargs" {
			args, _ := v.(object)
			for _, m := range byName(args) {
				o.textFrame(KindArgument, m.key)
				o.frame(KindValue, compactJSON(m.value))
			}
			continue
		}
		text := compactJSON(v)
		usual := text == "null" || text == "{}" || text == "[]"
		if key == "add_special_tokens" {
			usual = usual || text == fmt.Sprint(o.bare(top))
		}
		if key == "documents" && (o.api == Score || o.api == Rerank) {
			continue
		}
		if !usual {
			o.frame(KindControl, key)
			o.frame(KindValue, text)
		}
	}
}

// bare is whether prompts are not put into a chat template.
func (o *oracle) bare(top object) bool {
	switch o.api {
	case Chat, Messages, Responses:
		return false
	case Embeddings, Pooling, Classify:
		alone := oracle{api: o.api}
		last := lastMember(top, "input", "text", "messages")
		if last.key == "messages" {
			alone.messages(last.value)
		}
		return alone.text.Len() == 0 && len(alone.prompts(last.value, false))+len(alone.prompts(top.get("input_ids"), false)) > 0
	}
	return true
}

// lastMember returns the last member with one of the keys.
func lastMember(o object, keys ...string) member {
	for _, m := range slices.Backward(o) {
		if slices.Contains(keys, m.key) {
			return m
		}
	}
	return member{}
}

// byName sorts members by name; the last of those with one name stays.
func byName(o object) object {
	if len(o) > maxSorted {
		return o
	}
	var out object
	for i, m := range o {
		if !o[i+1:].has(m.key) {
			out = append(out, m)
		}
	}
	sort.Slice(out, func(i, j int) bool { return quoteText(out[i].key) < quoteText(out[j].key) })
	return out
}

func (o *oracle) usualTool() string {
	if o.api == Messages {
		return "custom"
	}
	return "function"
}

func (o *oracle) tools(k Kind, v any) {
	list, _ := v.([]any)
	for _, v := range list {
		if tool, ok := v.(object); ok {
			o.tool(k, tool)
		}
	}
}

// nested returns the last of the objects under "function" and "custom".
func nested(o object) (object, bool) {
	for _, m := range slices.Backward(o) {
		if inner, ok := m.value.(object); ok && (m.key == "function" || m.key == "custom") {
			return inner, true
		}
	}
	return nil, false
}

func (o *oracle) tool(k Kind, tool object) {
	fields, ok := nested(tool)
	if !ok {
		fields = tool
	}
	o.begin(k, fields.get("name"))
	if typ, ok := tool.str("type"); ok && typ != o.usualTool() {
		o.textFrame(KindToolType, typ)
	}
	o.textFrame(KindDescription, fields.get("description"))
	if schema := lastOf(fields, "parameters", "input_schema"); schema != nil {
		o.frame(KindParameters, compactJSON(schema))
	}
	if strict := fields.get("strict"); strict != nil {
		o.frame(KindStrict, compactJSON(strict))
	}
	known := []string{"name", "description", "parameters", "input_schema", "strict", "cache_control"}
	if !ok {
		known = append(known, "type", "function", "custom")
	}
	for _, m := range fields {
		if m.value != nil && !slices.Contains(known, m.key) {
			o.textFrame(KindToolField, m.key)
			o.frame(KindValue, compactJSON(m.value))
		}
	}
}

// lastOf returns the value of whichever key comes last.
func lastOf(o object, keys ...string) any {
	for _, m := range slices.Backward(o) {
		if slices.Contains(keys, m.key) {
			return m.value
		}
	}
	return nil
}

func (o *oracle) system(v any) {
	if list, ok := v.([]any); ok {
		v = slices.DeleteFunc(slices.Clone(list), func(e any) bool {
			if part, ok := e.(object); ok {
				if k := o.partKind(part, 0); k != textPart {
					return false
				}
				e = part.get("text")
			}
			s, _ := e.(string)
			return strings.HasPrefix(s, attribution)
		})
	}
	body := oracle{api: o.api}
	body.content(v, 0)
	if body.text.Len() > 0 {
		o.frame(KindRole, "system")
		o.text.WriteString(body.text.String())
	}
}

func (o *oracle) messages(v any) {
	list, _ := v.([]any)
	for _, v := range list {
		if m, ok := v.(object); ok {
			o.message(m)
		}
	}
}

func (o *oracle) message(m object) {
	o.begin(KindRole, m.get("role"))
	o.inMessage(m)
}

func (o *oracle) inMessage(m object) {
	o.textFrame(KindName, m.get("name"))
	o.textFrame(KindToolResult, m.get("tool_call_id"))
	for _, key := range []string{"reasoning", "reasoning_content", "thinking"} {
		if s, _ := m.str(key); s != "" {
			o.textFrame(KindReasoning, s)
			break
		}
	}
	o.content(m.get("content"), 0)
	if s, _ := m.str("refusal"); s != "" {
		o.textFrame(KindRefusal, s)
	}
	calls, _ := m.get("tool_calls").([]any)
	for _, v := range calls {
		if c, ok := v.(object); ok {
			o.begin(KindToolCall, c.get("id"))
			o.call(c)
		}
	}
	if c, ok := m.get("function_call").(object); ok {
		o.frame(KindFunctionCall, "")
		o.call(c)
	}
	o.tools(KindTool, m.get("tools"))
}

// call writes a tool call. Its fields stand beside those of the object under "function".
func (o *oracle) call(c object) {
	var fields object
	for _, m := range c {
		if inner, ok := m.value.(object); ok && (m.key == "function" || m.key == "custom") {
			fields = append(fields, inner...)
		} else {
			fields = append(fields, m)
		}
	}
	if typ, ok := c.str("type"); ok && typ != o.usualTool() {
		o.textFrame(KindToolType, typ)
	}
	o.textFrame(KindCallName, fields.get("name"))
	arguments := lastOf(fields, "arguments", "input")
	if !o.textFrame(KindArguments, arguments) && arguments != nil {
		o.frame(KindInput, compactJSON(arguments))
	}
}

func (o *oracle) content(v any, depth int) {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
		if _, ok := v.(string); !ok {
			return
		}
	}
	list = slices.DeleteFunc(slices.Clone(list), func(e any) bool {
		part, ok := e.(object)
		_, text := e.(string)
		return !text && (!ok || o.partIsNothing(part, depth))
	})
	if len(list) == 1 && o.isEmptyText(list[0]) {
		return
	}
	for _, e := range list {
		if part, ok := e.(object); ok {
			o.part(part, depth)
		} else {
			o.textFrame(KindText, e)
		}
	}
}

// partIsNothing is whether a part has no frame.
func (o *oracle) partIsNothing(part object, depth int) bool {
	alone := oracle{api: o.api}
	alone.part(part, depth)
	return alone.text.Len() == 0
}

func (o *oracle) isEmptyText(v any) bool {
	part, ok := v.(object)
	if !ok {
		return v == ""
	}
	s, _ := part.str("text")
	return o.partKind(part, 0) == textPart && s == ""
}

func (o *oracle) partKind(part object, depth int) partKind {
	typ, ok := part.str("type")
	if _, text := part.str("text"); !ok && text {
		return textPart
	}
	// A part is media as soon as one of several types says so.
	for _, m := range part {
		if s, ok := m.value.(string); ok && m.key == "type" && partKindOf([]byte(s), depth) == mediaPart {
			return mediaPart
		}
		if _, ok := m.value.(string); !ok && m.key == "type" {
			return mediaPart
		}
	}
	return partKindOf([]byte(typ), depth)
}

func (o *oracle) part(part object, depth int) {
	switch o.partKind(part, depth) {
	case textPart:
		o.begin(KindText, part.get("text"))
	case thinkingPart:
		o.textFrame(KindReasoning, part.get("thinking"))
	case reasoningPart:
		o.textFrame(KindReasoning, part.get("text"))
	case redactedPart:
		o.textFrame(KindRedacted, part.get("data"))
	case refusalPart:
		o.textFrame(KindRefusal, part.get("refusal"))
	case toolUsePart:
		o.begin(KindToolCall, part.get("id"))
		o.textFrame(KindCallName, part.get("name"))
		if input := part.get("input"); input != nil {
			o.frame(KindInput, compactJSON(input))
		}
	case toolResultPart:
		o.begin(KindToolResult, part.get("tool_use_id"))
		o.content(part.get("content"), depth+1)
		if part.get("is_error") == true {
			o.frame(KindToolError, "true")
		}
		o.frame(KindToolResultEnd, "")
	default:
		o.media(part)
	}
}

func (o *oracle) media(part object) {
	typ := part.get("type")
	var fields object
	var keys []string
	for _, m := range part {
		switch m.key {
		case "type", "uuid", "cache_control", "detail":
			continue
		}
		keys = append(keys, m.key)
		inner, isObject := m.value.(object)
		switch {
		case isObject && slices.Contains([]string{"image_url", "video_url", "audio_url"}, m.key):
			fields = append(fields, member{m.key, inner.get("url")})
		case isObject && slices.Contains([]string{"source", "input_audio", "file"}, m.key):
			payload := slices.DeleteFunc(slices.Clone(inner), func(f member) bool {
				return !slices.Contains([]string{"data", "url", "file_data", "file_id", "content"}, f.key)
			})
			if len(payload) == 0 {
				payload = object{m}
			}
			fields = append(fields, payload...)
		default:
			fields = append(fields, m)
		}
	}
	if _, ok := typ.(string); !ok && len(keys) > 0 {
		typ = keys[0]
	} else if typ == "input_image" && slices.Contains(keys, "image_url") {
		typ = "image_url"
	}
	o.begin(KindMedia, typ)
	if id, _ := part.str("uuid"); id != "" {
		o.textFrame(KindMediaID, id)
		return
	}
	fields = slices.DeleteFunc(fields, func(m member) bool { return m.value == nil || m.value == "" })
	for _, m := range byName(fields) {
		sum := xxh3.Hash128([]byte(compactJSON(m.value))).Bytes()
		o.textFrame(KindMediaField, m.key)
		o.frame(KindDigest, hex.EncodeToString(sum[:]))
	}
}

// prompts returns the frames of each prompt of a value that is one or a list of them.
func (o *oracle) prompts(v any, parts bool) []string {
	list, ok := v.([]any)
	if !ok {
		if _, isID := v.(json.Number); isID {
			return nil
		}
		list = []any{v}
	}
	var all []string
	var ids []string
	flush := func() {
		if len(ids) > 0 {
			all = append(all, `"i`+strings.Join(ids, ","))
		}
		ids = nil
	}
	for _, e := range list {
		if id, isID := e.(json.Number); isID {
			ids = append(ids, id.String())
			continue
		}
		flush()
		alone := oracle{api: o.api}
		alone.prompt(e, parts)
		if alone.text.Len() > 0 {
			all = append(all, alone.text.String())
		}
	}
	flush()
	return all
}

func (o *oracle) prompt(v any, parts bool) {
	switch v := v.(type) {
	case string:
		o.textFrame(KindText, v)
	case object:
		if parts {
			o.part(v, 0)
		}
	case []any:
		var ids []string
		for i, e := range v {
			switch e := e.(type) {
			case json.Number:
				ids = append(ids, e.String())
			default:
				o.prompt(e, parts)
			}
			if i == len(v)-1 && ids != nil {
				o.frame(KindTokenIDs, strings.Join(ids, ","))
			}
		}
		if len(v) == 0 {
			o.frame(KindTokenIDs, "")
		}
	}
}

// first writes the first of several prompts.
func (o *oracle) first(prompts []string) {
	if len(prompts) > 0 {
		o.text.WriteString(prompts[0])
	}
}

func (o *oracle) completions(top object) {
	o.first(o.prompts(top.get("prompt"), false))
	if v := top.get("prompt_embeds"); isContent(v) {
		o.frame(KindMedia, "prompt_embeds")
		o.frame(KindDigest, digestOf(compactJSON(v)))
	}
	if s, _ := top.str("suffix"); s != "" {
		o.textFrame(KindSuffix, s)
	}
}

func (o *oracle) generate(top object) {
	prompts := o.prompts(top.get("text"), false)
	if len(prompts) == 0 {
		prompts = o.prompts(top.get("input_ids"), false)
	}
	for _, key := range []string{"image_data", "video_data", "audio_data"} {
		list, ok := top.get(key).([]any)
		if !ok {
			list = []any{top.get(key)}
		}
		list = slices.DeleteFunc(slices.Clone(list), func(v any) bool { return !isContent(v) })
		if len(prompts) > 1 && len(list) > 1 {
			list = list[:1]
		}
		for _, v := range list {
			o.frame(KindMedia, key)
			o.frame(KindDigest, digestOf(compactJSON(v)))
		}
	}
	o.first(prompts)
	if v := top.get("input_embeds"); isContent(v) {
		o.frame(KindMedia, "input_embeds")
		o.frame(KindDigest, digestOf(compactJSON(v)))
	}
}

func (o *oracle) pooling(top object) {
	last := lastMember(top, "input", "text", "messages")
	if last.key == "messages" {
		o.messages(last.value)
		return
	}
	prompts := o.prompts(last.value, false)
	ids := o.prompts(top.get("input_ids"), false)
	o.first(prompts)
	if len(prompts) == 0 || o.api != Classify {
		o.first(ids)
	}
}

func (o *oracle) pairs(top object) {
	if m := lastMember(top, "instruction", "instruct"); m.value != nil {
		o.frame(KindControl, m.key)
		o.frame(KindValue, compactJSON(m.value))
	}
	o.first(o.prompts(lastMember(top, "query", "queries", "text_1", "data_1").value, true))
	o.first(o.prompts(lastMember(top, "documents", "items", "text_2", "data_2").value, true))
}

// control writes a control whose value is a text, if there is one.
func (o *oracle) control(name string, value any) {
	if s, _ := value.(string); s != "" {
		o.frame(KindControl, name)
		o.frame(KindValue, compactJSON(s))
	}
}

func (o *oracle) responses(top object) {
	if top.get("tool_choice") != "none" {
		o.tools(KindTool, top.get("tools"))
	}
	o.system(top.get("instructions"))
	history := lastMember(top, "previous_response_id", "conversation")
	if c, ok := history.value.(object); ok && history.key == "conversation" {
		history.value = c.get("id")
	}
	o.control(history.key, history.value)
	if s, ok := top.str("input"); ok {
		o.frame(KindRole, "user")
		o.content(s, 0)
		return
	}
	items, _ := top.get("input").([]any)
	at := 0 // how far the message of the assistant has come that is being made
	for _, v := range items {
		if item, ok := v.(object); ok {
			at = o.item(item, at)
		}
	}
}

// item writes an item of a responses request as the chat message, or the part of one, that
// it stands for.
func (o *oracle) item(item object, at int) int {
	assistant := func(next int) int {
		if at == 0 || at > next || at == next && next < 3 {
			o.frame(KindRole, "assistant")
		}
		return next
	}
	typ, _ := item.str("type")
	switch typ {
	case "", "message":
		if item.get("role") != "assistant" {
			o.message(item)
			return 0
		}
		at = assistant(2)
		o.inMessage(item)
		return at
	case "reasoning":
		at = assistant(1)
		thought := oracle{api: o.api}
		if thought.content(item.get("content"), 0); thought.text.Len() == 0 {
			thought.content(item.get("summary"), 0)
		}
		o.text.WriteString(thought.text.String())
		if s, _ := item.str("encrypted_content"); s != "" {
			o.textFrame(KindRedacted, s)
		}
		return at
	case "function_call", "custom_tool_call":
		at = assistant(3)
		o.begin(KindToolCall, item.get("call_id"))
		if typ != "function_call" {
			o.textFrame(KindToolType, typ)
		}
		o.textFrame(KindCallName, item.get("name"))
		arguments := lastOf(item, "arguments", "input")
		if !o.textFrame(KindArguments, arguments) && arguments != nil {
			o.frame(KindInput, compactJSON(arguments))
		}
		return at
	case "function_call_output", "custom_tool_call_output":
		o.frame(KindRole, "tool")
		o.textFrame(KindToolResult, item.get("call_id"))
		o.content(item.get("output"), 0)
		return 0
	}
	o.frame(KindItem, quoteText(typ))
	fields := slices.DeleteFunc(slices.Clone(item), func(m member) bool { return m.key == "type" || m.value == nil })
	for _, m := range byName(fields) {
		o.textFrame(KindToolField, m.key)
		o.frame(KindValue, compactJSON(m.value))
	}
	return 0
}
