package enginesim

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
)

// prompt is what an engine prefills for one conversation or text.
type prompt struct {
	ids    []uint32
	images int // placeholder tokens among ids
	media  []medium
	text   []byte // the text as sent, if the answer has to repeat it
}

// medium is a picture, clip or sound among a prompt's tokens.
type medium struct {
	identifier string
	at         int // its first placeholder
}

// within reports whether a part of the medium is among size tokens from one on.
func (m medium) within(from, size int) bool { return m.at < from+size && from < m.at+imageTokens }

// fold mixes into the parent hash of a block what is in the block beside its tokens.
func fold(parent uint64, media []medium, from, size int) uint64 {
	for _, m := range media {
		if m.within(from, size) {
			parent = mix(mixString(parent, m.identifier), uint64(m.at-from)) //nolint:gosec // any bits do
		}
	}
	return parent
}

// appendChain appends the chain hashes of the prompt's full blocks.
func (p *prompt) appendChain(hashes []uint64, root uint64, blockSize int) []uint64 {
	if len(p.media) == 0 {
		return appendChain(hashes, root, p.ids, blockSize)
	}
	for end := blockSize; end <= len(p.ids); end += blockSize {
		root = chain(fold(root, p.media, end-blockSize, blockSize), p.ids[end-blockSize:end])
		hashes = append(hashes, root)
	}
	return hashes
}

// pad makes placeholders of media tell which they are, as SGLang does.
func (p *prompt) pad() {
	for _, m := range p.media {
		sum := sha256.Sum256([]byte(m.identifier))
		appendImage(p.ids[:m.at], binary.LittleEndian.Uint64(sum[:]))
	}
	p.media = nil
}

// conversation is what the chat APIs have in common: what their prompt is made
// of. The template renders tools, then each message as
//
//	start role end-of-role content end
//
// and, unless told otherwise, the start of the assistant's message. Each part is
// tokenized on its own, so a longer conversation begins with the ids of a
// shorter one, and an answer that is sent back has the ids it was made of.
type conversation struct {
	Tools    jsontext.Value `json:"tools"`
	Messages []message      `json:"messages"`

	AddGenerationPrompt  *bool `json:"add_generation_prompt"`
	ContinueFinalMessage bool  `json:"continue_final_message"`
}

type message struct {
	Role       string         `json:"role"`
	Name       string         `json:"name"`
	Content    jsontext.Value `json:"content"`
	Reasoning  string         `json:"reasoning_content"`
	ToolCalls  jsontext.Value `json:"tool_calls"`
	ToolCallID string         `json:"tool_call_id"`
}

// part is one piece of a message's content: OpenAI's parts and Anthropic's blocks.
type part struct {
	Type     string         `json:"type"`
	Text     string         `json:"text"`
	UUID     string         `json:"uuid"`
	ImageURL jsontext.Value `json:"image_url"`
	VideoURL jsontext.Value `json:"video_url"`
	AudioURL jsontext.Value `json:"audio_url"`
	Audio    jsontext.Value `json:"input_audio"`
	Source   jsontext.Value `json:"source"`
}

var (
	errNoMessages = errors.New("messages must hold at least one message")
	errContent    = errors.New("content must be a string, null or a list of parts")
	errBothEnds   = errors.New("cannot set both `continue_final_message` and `add_generation_prompt` to true")
)

// render turns a conversation into what is prefilled.
func (c *conversation) render() (prompt, error) {
	var p prompt
	if len(c.Messages) == 0 {
		return p, errNoMessages
	}
	p.ids = make([]uint32, 0, c.expectedTokens())
	if c.ContinueFinalMessage && c.AddGenerationPrompt != nil && *c.AddGenerationPrompt {
		return p, errBothEnds
	}
	if present(c.Tools) {
		p.ids = append(p.ids, toolsStart)
		p.appendJSON(c.Tools)
		p.ids = append(p.ids, messageEnd)
	}
	for i := range c.Messages {
		if err := p.appendMessage(&c.Messages[i]); err != nil {
			return p, fmt.Errorf("message %d: %w", i, err)
		}
	}
	if c.ContinueFinalMessage {
		p.ids = p.ids[:len(p.ids)-1]
		return p, nil
	}
	if c.AddGenerationPrompt == nil || *c.AddGenerationPrompt {
		p.appendRole("assistant")
	}
	return p, nil
}

// expectedTokens is a guess at the length of the prompt, rather too long than too
// short: that of its texts, and a few tokens around each message.
func (c *conversation) expectedTokens() int {
	bytes := len(c.Tools)
	for i := range c.Messages {
		bytes += len(c.Messages[i].Content)
	}
	return expectedTokens(bytes) + 8*len(c.Messages)
}

func (p *prompt) appendRole(role string) {
	p.ids = append(p.ids, messageStart)
	p.ids = appendTokens(p.ids, role)
	p.ids = append(p.ids, roleEnd)
}

func (p *prompt) appendMessage(m *message) error {
	if m.Role == "" {
		return errors.New("role is missing")
	}
	p.appendRole(m.Role)
	p.ids = appendTokens(p.ids, m.Name)
	p.ids = appendTokens(p.ids, m.Reasoning)
	if err := p.appendContent(m.Content); err != nil {
		return err
	}
	if present(m.ToolCalls) {
		p.appendJSON(m.ToolCalls)
	}
	p.ids = appendTokens(p.ids, m.ToolCallID)
	p.ids = append(p.ids, messageEnd)
	return nil
}

func (p *prompt) appendContent(content jsontext.Value) error {
	switch content.Kind() {
	case 0, 'n':
		return nil
	case '"':
		text, err := jsontext.AppendUnquote(nil, content)
		if err != nil {
			return errContent
		}
		p.ids = appendTokens(p.ids, text)
		return nil
	case '[':
		return p.appendParts(content)
	}
	return errContent
}

// appendParts renders a list of parts. Texts that follow each other are joined
// by a line feed, as vLLM does for templates that want strings.
func (p *prompt) appendParts(content jsontext.Value) error {
	var raw []jsontext.Value
	if err := json.Unmarshal(content, &raw, lenient); err != nil {
		return errContent
	}
	var text []byte
	for i, value := range raw {
		if value.Kind() == '"' { // a bare string is allowed for a text part
			value = append(append(append(jsontext.Value(nil), `{"type":"text","text":`...), value...), '}')
		}
		var one part
		if err := json.Unmarshal(value, &one, lenient); err != nil {
			return fmt.Errorf("content part %d: %w", i, errPart)
		}
		if one.Type == "text" || one.Type == "input_text" || one.Type == "output_text" {
			if i > 0 {
				text = append(text, '\n')
			}
			text = append(text, one.Text...)
			continue
		}
		p.ids = appendTokens(p.ids, text)
		text = text[:0]
		if identifier, ok := one.identifier(); ok {
			p.media = append(p.media, medium{identifier, len(p.ids)})
			p.ids = appendPlaceholders(p.ids)
			p.images += imageTokens
			continue
		}
		p.appendJSON(value)
	}
	p.ids = appendTokens(p.ids, text)
	return nil
}

var errPart = errors.New("not an object with a type")

// identifier names the picture, clip or sound of a part: as the client does, else by
// where it is or what it is.
func (one *part) identifier() (string, bool) {
	for _, media := range []jsontext.Value{one.ImageURL, one.VideoURL, one.AudioURL, one.Audio, one.Source} {
		if !present(media) {
			continue
		}
		if one.UUID != "" {
			return one.UUID, true
		}
		sum := sha256.Sum256(mediaKey(media))
		return hex.EncodeToString(sum[:]), true
	}
	return "", false
}

// mediaKey is the URL of {"url": ...} or of a string, or else the whole value.
func mediaKey(media jsontext.Value) []byte {
	if media.Kind() == '"' {
		url, _ := jsontext.AppendUnquote(nil, media) // what is no UTF-8 is replaced
		return url
	}
	var ref struct {
		URL string `json:"url"`
	}
	if media.Kind() == '{' && json.Unmarshal(media, &ref, lenient) == nil && ref.URL != "" {
		return []byte(ref.URL)
	}
	return compact(media)
}

func (p *prompt) appendJSON(value jsontext.Value) { p.ids = appendTokens(p.ids, compact(value)) }

// compact is value without the space between its tokens: members keep their
// order, since another order is another prompt.
func compact(value jsontext.Value) []byte {
	copied := jsontext.Value(bytes.Clone(value))
	if copied.Compact(lenient) != nil {
		return value
	}
	return copied
}

// present reports whether a member was sent and holds something.
func present(value jsontext.Value) bool {
	switch value.Kind() {
	case 0, 'n':
		return false
	case '[', '{':
		return len(bytes.TrimSpace(value[1:])) > 1
	}
	return true
}
