package prompt

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"unicode/utf16"
)

// unordered is an object whose key order means nothing.
type unordered object

// spell writes v as JSON in one of the many ways there are.
func spell(rnd *rand.Rand, v any) string {
	s := speller{rnd: rnd, spaces: rnd.IntN(3) == 0, escapes: []int{0, 0, 10, 3, 1}[rnd.IntN(5)], shuffle: rnd.IntN(2) == 0}
	s.value(v)
	return s.b.String()
}

type speller struct {
	rnd     *rand.Rand
	b       strings.Builder
	spaces  bool
	shuffle bool
	escapes int // one rune in so many is escaped without need; 0 is none
}

func (s *speller) space() {
	if s.spaces {
		s.b.WriteString([]string{"", " ", "\n", "\t", "\r\n  "}[s.rnd.IntN(5)])
	}
}

func (s *speller) value(v any) {
	s.space()
	switch v := v.(type) {
	case string:
		s.string(v)
	case []any:
		s.b.WriteByte('[')
		for i, e := range v {
			s.comma(i)
			s.value(e)
		}
		s.space()
		s.b.WriteByte(']')
	case unordered:
		o := slices.Clone(object(v))
		if s.shuffle {
			s.rnd.Shuffle(len(o), func(i, j int) { o[i], o[j] = o[j], o[i] })
		}
		s.value(o)
	case object:
		s.b.WriteByte('{')
		for i, m := range v {
			s.comma(i)
			s.space()
			s.string(m.key)
			s.space()
			s.b.WriteByte(':')
			s.value(m.value)
		}
		s.space()
		s.b.WriteByte('}')
	case nil:
		s.b.WriteString("null")
	default:
		fmt.Fprint(&s.b, v)
	}
	s.space()
}

func (s *speller) comma(i int) {
	if i > 0 {
		s.b.WriteByte(',')
	}
}

func (s *speller) string(text string) {
	s.b.WriteByte('"')
	for _, r := range text {
		if s.escapes > 0 && s.rnd.IntN(s.escapes) == 0 {
			s.unicodeEscape(r)
			continue
		}
		switch {
		case r == '/' && s.escapes > 0 && s.rnd.IntN(2) == 0:
			s.b.WriteString(`\/`)
		case r < 0x20 || r == '"' || r == '\\':
			s.b.WriteString(quoteText(string(r)))
		default:
			s.b.WriteRune(r)
		}
	}
	s.b.WriteByte('"')
}

func (s *speller) unicodeEscape(r rune) {
	format := []string{`\u%04x`, `\u%04X`}[s.rnd.IntN(2)]
	if hi, lo := utf16.EncodeRune(r); hi != 0xfffd {
		fmt.Fprintf(&s.b, format+format, hi, lo)
		return
	}
	fmt.Fprintf(&s.b, format, r)
}

// maker makes up requests out of few different pieces, so that two are often nearly equal.
type maker struct{ rnd *rand.Rand }

func (m maker) chance(oneIn int) bool { return m.rnd.IntN(oneIn) == 0 }

func pick[T any](m maker, of ...T) T { return of[m.rnd.IntN(len(of))] }

func (m maker) text() string {
	piece := func() string {
		return pick(m, "a", "b", "ab", "", `"`, `\`, `\\`, "\n", "\t", "\x00", "\x1f", "/", "é", "你", "😀", "T", `"T`, `\u`, "u", "{", "]", ",", "plain words of more than eight bytes", "\u2028", "\x7f", strings.Repeat("code \"x\"\n\t", m.rnd.IntN(30)), strings.Repeat("z", m.rnd.IntN(600)))
	}
	var b strings.Builder
	for range m.rnd.IntN(4) {
		b.WriteString(piece())
	}
	return b.String()
}

func (m maker) word() string { return pick(m, "f", "g", "get_weather", "id-1", "id-2", "é") }

// json is a value in which key order counts.
func (m maker) json(depth int) any {
	switch n := m.rnd.IntN(9); {
	case n == 0 && depth > 0:
		var list []any
		for range m.rnd.IntN(3) {
			list = append(list, m.json(depth-1))
		}
		return append([]any{}, list...)
	case n <= 2 && depth > 0:
		o := object{}
		for range m.rnd.IntN(3) {
			o = append(o, member{pick(m, "a", "b", "ü", m.text()), m.json(depth - 1)})
		}
		return o
	case n == 3:
		return json.Number(pick(m, "0", "-0", "1", "1.0", "1e2", "18446744073709551616", "0.10"))
	case n == 4:
		return pick[any](m, true, false, nil)
	default:
		return m.text()
	}
}

// request is a path and a body for it.
func (m maker) request() (string, any) {
	switch m.rnd.IntN(12) {
	case 0, 1:
		return completionsPath, m.completions()
	case 2, 3:
		return messagesPath, m.anthropic()
	case 4, 5:
		return responsesPath, m.responses()
	case 6:
		return generatePath, m.generate()
	case 7:
		return pick(m, embeddingsPath, poolingPath, classifyPath), m.pooling()
	case 8:
		return pick(m, scorePath, rerankPath), m.pairs()
	default:
		return chatPath, m.chat()
	}
}

// some adds a member now and then.
func (m maker) some(o unordered, oneIn int, key string, value func() any) unordered {
	if m.chance(oneIn) {
		return append(o, member{key, value()})
	}
	return o
}

func (m maker) list(limit int, element func() any) func() any {
	return func() any {
		list := []any{}
		for range m.rnd.IntN(limit + 1) {
			list = append(list, element())
		}
		return list
	}
}

func (m maker) head(o unordered) unordered {
	o = m.some(o, 2, "model", func() any { return m.word() })
	o = m.some(o, 2, "temperature", func() any { return json.Number("0.7") })
	o = m.some(o, 9, "chat_template", func() any { return m.text() })
	o = m.some(o, 9, "reasoning_effort", func() any { return pick[any](m, "low", "high", nil) })
	o = m.some(o, 9, "documents", func() any { return m.json(2) })
	o = m.some(o, 9, "add_special_tokens", func() any { return pick[any](m, true, false, nil) })
	o = m.some(o, 9, "truncate_prompt_tokens", func() any { return json.Number("5") })
	o = m.some(o, 9, "unheard_of", func() any { return m.json(3) })
	return m.some(o, 5, "chat_template_kwargs", func() any {
		args := unordered{}
		for _, key := range []string{"a", "é", "enable_thinking", "ab"} {
			args = m.some(args, 2, key, func() any { return m.json(1) })
		}
		return args
	})
}

func (m maker) chat() any {
	o := m.head(unordered{})
	o = append(o, member{"messages", m.list(4, m.message)()})
	o = m.some(o, 3, "tools", m.list(2, m.tool))
	return m.some(o, 9, "functions", m.list(2, func() any { return m.function() }))
}

func (m maker) function() unordered {
	o := unordered{{"name", m.word()}}
	o = m.some(o, 2, "description", func() any { return m.text() })
	o = m.some(o, 2, "strict", func() any { return m.json(0) })
	return m.some(o, 2, "parameters", func() any { return m.json(3) })
}

func (m maker) tool() any {
	return unordered{{"type", pick[any](m, "function", "function", "custom")}, {"function", m.function()}}
}

func (m maker) call() any {
	o := unordered{{"type", "function"}, {"function", unordered{{"name", m.word()}, {"arguments", pick[any](m, m.text(), m.json(2))}}}}
	return m.some(o, 2, "id", func() any { return m.word() })
}

func (m maker) message() any {
	o := unordered{{"role", pick[any](m, "system", "user", "assistant", "tool", nil)}}
	o = m.some(o, 1, "content", m.content(m.chatPart))
	o = m.some(o, 8, "name", func() any { return m.word() })
	o = m.some(o, 8, "tool_call_id", func() any { return m.word() })
	o = m.some(o, 8, "refusal", func() any { return pick[any](m, nil, "no") })
	o = m.some(o, 8, "annotations", func() any { return m.json(2) })
	o = m.some(o, 6, pick(m, "reasoning", "reasoning_content", "thinking"), func() any { return m.text() })
	o = m.some(o, 9, "function_call", func() any { return unordered{{"name", m.word()}, {"arguments", m.text()}} })
	return m.some(o, 5, "tool_calls", m.list(2, m.call))
}

func (m maker) content(part func() any) func() any {
	return func() any {
		switch m.rnd.IntN(8) {
		case 0:
			return nil
		case 1, 2:
			return m.list(3, part)()
		default:
			return m.text()
		}
	}
}

func (m maker) textPart() any {
	o := unordered{{"type", "text"}, {"text", m.text()}}
	return m.some(o, 4, "cache_control", func() any { return object{{"type", "ephemeral"}} })
}

func (m maker) chatPart() any {
	switch m.rnd.IntN(8) {
	case 0:
		url := pick(m, "https://x/y.png", "data:image/png;base64,iVBORw0KGgo=", "data:image/png;base64,iVBORw0KGgp=")
		o := unordered{{"type", "image_url"}, {"image_url", pick[any](m, url, unordered{{"url", url}, {"detail", "low"}})}}
		return m.some(o, 3, "uuid", func() any { return pick[any](m, "u1", "u2", "", nil) })
	case 1:
		return unordered{{"type", "input_audio"}, {"input_audio", unordered{{"data", m.word()}, {"format", "wav"}}}}
	case 2:
		return unordered{{"type", "file"}, {"file", pick[any](m, unordered{{"file_id", m.word()}}, object{{"other", m.json(1)}})}}
	case 3:
		return unordered{{"type", "hologram"}, {"a", m.json(1)}, {"b", m.json(2)}, {"ü", m.word()}}
	case 4:
		return unordered{{"type", "refusal"}, {"refusal", m.text()}}
	case 5:
		return m.text()
	default:
		return m.textPart()
	}
}

func (m maker) anthropic() any {
	o := m.head(unordered{})
	o = append(o, member{"messages", m.list(4, func() any {
		return unordered{{"role", pick(m, "user", "assistant")}, {"content", m.content(m.block)()}}
	})()})
	o = m.some(o, 2, "system", m.content(func() any {
		if m.chance(4) {
			return unordered{{"type", "text"}, {"text", attribution + ": cch=" + m.word()}}
		}
		return m.textPart()
	}))
	return m.some(o, 3, "tools", m.list(2, func() any {
		o := unordered{{"name", m.word()}, {"description", m.text()}, {"input_schema", m.json(3)}}
		o = m.some(o, 3, "cache_control", func() any { return object{{"type", "ephemeral"}} })
		return m.some(o, 3, "type", func() any { return pick(m, "custom", "computer") })
	}))
}

func (m maker) block() any {
	switch m.rnd.IntN(7) {
	case 0:
		o := unordered{{"type", "tool_result"}, {"tool_use_id", m.word()}, {"content", m.content(m.chatPart)()}}
		return m.some(o, 3, "is_error", func() any { return pick[any](m, true, false, nil) })
	case 1:
		return unordered{{"type", "tool_use"}, {"id", m.word()}, {"name", m.word()}, {"input", m.json(3)}}
	case 2:
		return unordered{{"type", "image"}, {"source", unordered{{"type", "base64"}, {"media_type", "image/png"}, {"data", m.text()}}}}
	case 3:
		return unordered{{"type", "thinking"}, {"thinking", m.text()}, {"signature", m.word()}}
	case 4:
		return unordered{{"type", "redacted_thinking"}, {"data", m.text()}}
	default:
		return m.textPart()
	}
}

// prompts is a prompt or a list of them, as text or as token ids.
func (m maker) prompts() any {
	id := func() any { return json.Number(fmt.Sprint(m.rnd.IntN(200))) }
	return pick(m, func() any { return m.text() }, m.list(20, id),
		m.list(3, func() any { return m.text() }), m.list(3, func() any { return m.list(5, id)() }))()
}

func (m maker) generate() any {
	o := unordered{{"sampling_params", unordered{{"max_new_tokens", json.Number("5")}}}}
	o = m.some(o, 2, "text", func() any { return pick(m, nil, m.prompts(), m.prompts()) })
	o = m.some(o, 2, "input_ids", m.prompts)
	o = m.some(o, 3, "image_data", func() any { return pick(m, nil, any(m.word()), m.list(3, func() any { return m.json(1) })()) })
	o = m.some(o, 9, "audio_data", func() any { return m.word() })
	return m.some(o, 9, "input_embeds", func() any { return []any{[]any{json.Number("0.5")}} })
}

func (m maker) pooling() any {
	if m.chance(4) {
		return append(m.head(unordered{}), member{"messages", m.list(3, m.message)()})
	}
	return append(m.head(unordered{}), member{"input", m.prompts()})
}

func (m maker) pairs() any {
	side := func() any {
		text := func() any { return m.text() }
		return pick(m, text, m.textPart, m.list(3, text), m.list(3, m.textPart))()
	}
	o := slices.DeleteFunc(m.head(unordered{}), func(f member) bool { return f.key == "documents" })
	o = m.some(o, 4, "instruction", func() any { return m.text() })
	return append(o, member{"query", side()}, member{"documents", side()})
}

func (m maker) responses() any {
	o := m.some(m.head(unordered{}), 2, "instructions", func() any { return pick[any](m, nil, m.text()) })
	o = m.some(o, 5, "reasoning", func() any { return unordered{{"effort", pick[any](m, "low", nil)}, {"summary", "auto"}} })
	o = m.some(o, 5, "previous_response_id", func() any { return m.word() })
	o = m.some(o, 3, "tools", m.list(2, func() any {
		return append(m.function(), member{"type", pick[any](m, "function", "custom", "web_search")})
	}))
	o = m.some(o, 5, "tool_choice", func() any { return pick[any](m, "none", "auto", unordered{{"type", "function"}}) })
	if m.chance(4) {
		return append(o, member{"input", m.text()})
	}
	return append(o, member{"input", m.list(6, m.item)()})
}

func (m maker) item() any {
	texts := func(kind string) any {
		return m.list(2, func() any { return unordered{{"type", kind}, {"text", m.text()}} })()
	}
	switch m.rnd.IntN(10) {
	case 0:
		return unordered{{"type", "reasoning"}, {"content", texts("reasoning_text")}, {"summary", texts("summary_text")}}
	case 1, 2:
		return unordered{{"type", "function_call"}, {"id", m.word()}, {"call_id", m.word()}, {"name", m.word()}, {"arguments", m.text()}}
	case 3:
		return unordered{{"type", "custom_tool_call"}, {"call_id", m.word()}, {"name", m.word()}, {"input", m.text()}}
	case 4, 5:
		return unordered{{"type", pick(m, "function_call_output", "custom_tool_call_output")}, {"call_id", m.word()}, {"output", m.content(m.outputPart)()}}
	case 6:
		return unordered{{"type", "item_reference"}, {"id", m.word()}}
	case 7:
		return unordered{{"type", "hologram_call"}, {"action", m.json(2)}, {"id", m.word()}}
	default:
		o := unordered{{"role", pick(m, "user", "assistant", "developer")}, {"content", m.content(m.outputPart)()}}
		return m.some(o, 2, "type", func() any { return "message" })
	}
}

func (m maker) outputPart() any {
	switch m.rnd.IntN(4) {
	case 0:
		return unordered{{"type", "input_image"}, {"image_url", m.word()}, {"detail", "low"}}
	case 1:
		return unordered{{"type", "input_file"}, {"file_id", m.word()}}
	default:
		return unordered{{"type", pick(m, "input_text", "output_text")}, {"text", m.text()}, {"annotations", []any{}}}
	}
}

func (m maker) completions() any {
	o := append(m.head(unordered{}), member{"prompt", m.prompts()})
	o = m.some(o, 8, "suffix", func() any { return m.text() })
	return m.some(o, 8, "prompt_embeds", func() any { return m.word() })
}
