package prompt

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// inOrder are bodies whose keys stand as clients put them when what comes first in the
// prompt comes first in the body.
var inOrder = map[string][]string{
	chatPath: {
		`{"model":"m","stream":true,"temperature":0.5,"messages":[{"role":"system","content":"You are a \"helpful\" ☃ \u2603 \ud83d\ude00 \ud83d \/assistant\n"},{"role":"user","content":[{"type":"text","text":"What is this?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo=","detail":"low"},"uuid":"u-1"},{"type":"hologram","b":1,"a":[true]},{"type":"text","text":""}]},{"role":"assistant","reasoning_content":"Let me think.","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"get_weather","arguments":"{\"city\":\"Paris\"}"}},{"id":"call_2","type":"function","function":{"name":"now","arguments":{"tz": null}}}]},{"role":"tool","tool_call_id":"call_1","content":"18 \u00b0C"},{"role":"user","name":"bob","content":"Thanks"}],"max_tokens":10}`,
		`{"model":"m","chat_template_kwargs":{"enable_thinking":false,"a":"b"},"reasoning_effort":"low","documents":[{"title":"t","text":"x"}],"tools":[{"type":"function","function":{"name":"f","description":"does \u00e9","parameters":{"type": "object", "properties": {"\u00e9": {"enum": [1, 2.50, true, null]}}},"strict":true,"x-extra":null,"y":[]}},{"type":"custom","custom":{"name":"g"}}],"functions":[{"name":"h"}],"messages":[{"role":"user","content":"hi"}]}`,
		"\xef\xbb\xbf{\"messages\": [ {\"role\": \"user\", \"content\": \"raw \x01 \n \xff control\"} ] }",
	},
	completionsPath: {
		`{"model":"m","prompt":["one","two \ud83d\ude00"],"max_tokens":5}`,
		`{"model":"m","prompt":[1,23,456,7890]}`,
		`{"prompt": [[1, 23], [], [456]], "suffix": "x"}`,
		`{"model":"m","add_special_tokens":false,"truncate_prompt_tokens":5,"prompt":"text","prompt_embeds":"abc","max_tokens":1}`,
	},
	messagesPath: {
		`{"model":"m","max_tokens":100,"tools":[{"name":"f","description":"d","input_schema":{"type":"object"},"cache_control":{"type":"ephemeral"}},{"type":"computer","name":"c","display_width_px":100}],"system":[{"type":"text","text":"x-anthropic-billing-header: cch=1"},{"type":"text","text":"You are Claude","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBOR"}}]},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"redacted_thinking","data":"zz"},{"type":"tool_use","id":"t1","name":"f","input":{"b": 1, "a": "\u00e9"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"x"},{"type":"image","source":{"type":"url","url":"u"}}],"is_error":true},{"type":"text","text":"go on"}]}]}`,
		`{"system":"s","messages":[{"role":"user","content":"x"}]}`,
	},
	responsesPath: {
		`{"model":"m","reasoning":{"effort":"low","summary":"auto"},"tools":[{"type":"function","name":"f","description":"does \u00e9","parameters":{"type": "object"},"strict":true},{"type":"web_search_preview","search_context_size":"low"}],"instructions":"Be \"kind\"","previous_response_id":"resp_\u0031","input":[{"role":"user","content":[{"type":"input_text","text":"What is this?"},{"type":"input_image","image_url":"data:image/png;base64,iVBORw0KGgo=","detail":"low"},{"type":"input_file","filename":"a.pdf","file_data":"JVBERi0="}]},{"type":"reasoning","id":"rs_1","content":[{"type":"reasoning_text","text":"Let me think."}]},{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"A \ud83d\ude00","annotations":[]}]},{"type":"function_call","id":"fc_1","call_id":"call_1","name":"get_weather","arguments":"{\"city\":\"Paris\"}"},{"type":"custom_tool_call","call_id":"call_2","name":"sh","input":"ls \u2603"},{"type":"function_call_output","call_id":"call_1","output":"18 \u00b0C"},{"type":"custom_tool_call_output","call_id":"call_2","output":[{"type":"input_text","text":"x"}]},{"type":"item_reference","id":"it_1"},{"type":"web_search_call","id":"ws_1","action":{"query": "q"}},{"role":"user","content":"Thanks"}],"max_output_tokens":10}`,
		`{"model":"m","instructions":"s","input":"a text \u00e9","stream":true}`,
		`{"conversation":{"id":"conv_1"},"input":[{"role":"assistant","content":"a"},{"role":"assistant","content":"b"},{"type":"reasoning","summary":[],"encrypted_content":"zz"}]}`,
	},
	generatePath: {
		`{"image_data":["data:image/png;base64,iVBOR","https://x/y.png"],"text":"<image><image> What? \u2603","sampling_params":{"max_new_tokens":5,"n":2},"stream":true}`,
		`{"text":["one","two \ud83d\ude00"]}`,
		`{"rid":"r","input_ids":[[1, 23],[456]],"lora_path":["a",null]}`,
		`{"input_embeds":[[0.5,-1.5e-2]],"stream":true}`,
	},
	tokenGeneratePath: {`{"model":"m","features":{"mm_hashes":{"image":["h"]},"kwargs_data":null},"token_ids":[1,23,456,7890],"sampling_params":{"max_tokens":4}}`},
	embeddingsPath: {
		`{"model":"m","input":["one","two"],"dimensions":8}`,
		`{"model":"m","add_special_tokens":true,"truncate_prompt_tokens":5,"messages":[{"role":"user","content":"x"}],"user":"u"}`,
		`{"add_special_tokens":false,"truncate_prompt_tokens":5,"input":[1,2,3]}`,
	},
	poolingPath:  {`{"input":"one"}`},
	classifyPath: {`{"input":["one","two"]}`, `{"text":"one"}`},
	scorePath:    {`{"model":"m","text_1":"What?","text_2":["one","two"]}`, `{"query":[1,2],"items":[[3],[4]]}`},
	rerankPath:   {`{"model":"m","query":"What \u2603?","documents":["one",{"text":"two"}],"top_n":1}`, `{"query":[{"type":"text","text":"q"},{"type":"image_url","image_url":{"url":"u"}}],"documents":[[{"type":"text","text":"d"}]]}`},
}

func TestFirstPartOfABodyHasTheFirstPartOfTheStream(t *testing.T) {
	for path, bodies := range inOrder {
		for _, body := range bodies {
			var p Prompt
			whole := streamOf(t, &p, path, []byte(body))
			longest := 0
			for n := range len(body) {
				part := streamOf(t, &p, path, []byte(body[:n]))
				require.True(t, strings.HasPrefix(whole, part), "%s\nis not the beginning of\n%s", part, whole)
				require.True(t, p.Partial)
				requireConsistent(t, &p, part)
				longest = max(longest, len(part))
			}
			require.Equal(t, len(whole), longest, "all of the prompt is read before the body's last byte")
		}
	}
}

func TestAllTextBeforeTheCutIsInTheStream(t *testing.T) {
	text := strings.Repeat("all of this text is known before the body ends. ", 40)
	head := `{"model":"m","messages":[{"role":"user","content":"`
	var p Prompt
	for n := range len(text) {
		want := `"Ruser`
		if n > 0 {
			want += `"T` + text[:n]
		}
		require.Equal(t, want, streamOf(t, &p, chatPath, []byte(head+text[:n])))
	}
}

func TestConversationThatGoesOnKeepsItsStream(t *testing.T) {
	rnd := rand.New(rand.NewPCG(11, 12))
	m := maker{rnd}
	var p Prompt
	for range tries(3_000, 200_000) {
		path, list, turn := chatPath, "messages", m.message
		head := m.head(unordered{})
		switch m.rnd.IntN(3) {
		case 0:
			path = messagesPath
			head = append(head, member{"system", m.text()})
			turn = func() any {
				return unordered{{"role", pick(m, "user", "assistant")}, {"content", m.content(m.block)()}}
			}
		case 1:
			path, list, turn = responsesPath, "input", m.item
			head = append(head, member{"instructions", m.text()})
		}
		var messages []any
		before := ""
		for range 5 {
			messages = append(messages, turn())
			body := spell(rnd, append(append(unordered{}, head...), member{list, messages}))
			stream := streamOf(t, &p, path, []byte(body))
			require.True(t, strings.HasPrefix(stream, before), "%s\nis not the beginning of\n%s", before, stream)
			if path != responsesPath { // where an item may hold nothing
				require.Greater(t, len(stream), len(before))
			}
			before = stream
		}
	}
}

func TestIDsThatGoOnKeepTheirStream(t *testing.T) {
	var p Prompt
	for path, field := range map[string]string{completionsPath: "prompt", generatePath: "input_ids", tokenGeneratePath: "token_ids"} {
		before := ""
		for _, ids := range []string{"1", "1,23", "1, 23, 4", "1,23,4,567"} {
			stream := streamOf(t, &p, path, []byte(`{"`+field+`":[`+ids+`]}`))
			require.True(t, strings.HasPrefix(stream, before))
			before = stream
		}
	}
}

// TestTextsThatGoOnKeepTheirStream grows the text of each API that has one; in a list it is
// the first that counts.
func TestTextsThatGoOnKeepTheirStream(t *testing.T) {
	var p Prompt
	for path, form := range map[string]string{
		completionsPath: `{"prompt":[%q,"x"]}`, generatePath: `{"text":%q}`, responsesPath: `{"input":%q}`,
		embeddingsPath: `{"input":[%q]}`, poolingPath: `{"input":%q}`, classifyPath: `{"input":[%q,"y"]}`,
		scorePath: `{"text_1":"q","text_2":[%q,"x"]}`, rerankPath: `{"documents":[%q],"query":"q"}`,
	} {
		before := ""
		for n := range 5 {
			stream := streamOf(t, &p, path, fmt.Appendf(nil, form, strings.Repeat("and so on ", n+1)))
			require.True(t, strings.HasPrefix(stream, before))
			require.Greater(t, len(stream), len(before))
			before = stream
		}
	}
}

// pieces gathers what a prompt writes, cut where messages end.
type pieces struct{ ended, open string }

func (p *pieces) Write(b []byte) (int, error) {
	p.open += string(b)
	return len(b), nil
}

func (p *pieces) EndMessage() {
	p.ended += p.open + "|"
	p.open = ""
}

// TestMessagesEndInTheSamePlacesAsTheConversationGoesOn compares turns of chats and
// messages: tools, system prompts and all that comes before the first role end with it.
func TestMessagesEndInTheSamePlacesAsTheConversationGoesOn(t *testing.T) {
	tools := `"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],`
	for _, head := range []string{"", tools} {
		before := ""
		messages := ""
		for turn, m := range []string{
			`{"role":"system","content":"be kind"}`, `{"role":"user","content":"a"}`,
			`{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}`,
			`{"role":"tool","tool_call_id":"1","content":"b"}`, `{"role":"user","content":[{"type":"text","text":"c"},{"type":"text","text":"d"}]}`,
		} {
			if turn > 0 {
				messages += ","
			}
			messages += m
			var p Prompt
			var w pieces
			Parse(&p, "/v1/chat/completions", []byte(`{`+head+`"messages":[`+messages+`]}`))
			_, err := p.WriteTo(&w)
			require.NoError(t, err)
			require.Empty(t, w.open, "the last message has ended too")
			require.True(t, strings.HasPrefix(w.ended, before), "%q goes on as %q", before, w.ended)
			more := 1
			if turn == 0 && head != "" {
				more++ // the tools
			}
			require.Equal(t, strings.Count(before, "|")+more, strings.Count(w.ended, "|"))
			before = w.ended
		}
	}
	var p Prompt
	var w pieces
	Parse(&p, "/v1/chat/completions", []byte(`{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b`))
	_, _ = p.WriteTo(&w)
	require.NotEmpty(t, w.open, "a message that was cut has not ended")
}
