package prompt

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
)

func parsed(path, body string) *Prompt {
	p := new(Prompt)
	Parse(p, path, []byte(body))
	return p
}

func TestAPIGoesByTheEndOfThePath(t *testing.T) {
	for path, api := range map[string]API{
		"/v1/chat/completions":        Chat,
		"/pool-a/v1/chat/completions": Chat,
		"/v1/completions":             Completions,
		"/openai/v1/completions":      Completions,
		"/v1/messages":                Messages,
		"/v1/responses":               Responses,
		"/v1/responses/resp_1":        Unknown,
		"/v1/embeddings":              Embeddings,
		"/generate":                   Generate,
		"/sglang/generate":            Generate,
		"/health_generate":            Unknown,
		"/inference/v1/generate":      TokenGenerate,
		"/pooling":                    Pooling,
		"/classify":                   Classify,
		"/v1/classify":                Classify,
		"/score":                      Score,
		"/v1/score":                   Score,
		"/rerank":                     Rerank,
		"/v1/rerank":                  Rerank,
		"/v2/rerank":                  Rerank,
		"/tokenize":                   Tokenize,
		"/v1/tokenize":                Tokenize,
		"/detokenize":                 Tokenize,
		"/v1/messages/count_tokens":   Tokenize,
		"/v1/chat/completions/render": Tokenize,
		"/v1/chat/completions/batch":  Unknown,
		"/chat/completions":           Unknown,
		"/v1/completionsx":            Unknown,
		"/v1/audio/speech":            Unknown,
		"":                            Unknown,
	} {
		require.Equal(t, api, parsed(path, `{}`).API, path)
	}
}

func TestEveryAPIHasItsName(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range names {
		require.Regexp(t, "^[a-z_]+$", name)
		require.False(t, seen[name], name)
		seen[name] = true
	}
	require.Equal(t, "unknown", API(len(names)).String())
}

func TestModelIsTheLastStringUnderExactlyThatKey(t *testing.T) {
	for body, model := range map[string]string{
		`{"model":"a"}`:                                            "a",
		`{"model":"a","Model":"b"}`:                                "a",
		`{"Model":"b"}`:                                            "",
		`{"model":"a","model":"b"}`:                                "b",
		`{"model":"a","model":5}`:                                  "",
		`{"model":null}`:                                           "",
		`{"mod\u0065l":"a"}`:                                       "a",
		`{"model":"\b\f\r\t\\\q\uzz"}`:                             "\b\f\r\t\\\\q\\uzz",
		`{"model":"\u00e9\/\n\"x"}`:                                "é/\n\"x",
		`{"model":"\ud83d\ude00"}`:                                 "😀",
		`{"model":"\ud83d"}`:                                       `\ud83d`,
		`{"x":{"model":"b"}}`:                                      "",
		`{"x":"\"model\":\"b\""}`:                                  "",
		`{"messages":7,"model":"a"}`:                               "a",
		"\xef\xbb\xbf" + `{"model":"a"}`:                           "a",
		`{"model":"` + strings.Repeat(`\u0061`, maxDecoded) + `"}`: strings.Repeat(`\u0061`, maxDecoded),
	} {
		for _, path := range []string{chatPath, "/v1/embeddings", "/v1/foo"} {
			require.Equal(t, model, string(parsed(path, body).Model), body)
		}
	}
}

func TestFieldsAreRead(t *testing.T) {
	p := parsed(chatPath, `{"model":"m","stream":true,"stream_options":{"x":[1],"include_usage":true},"n":3,"max_tokens":5,
		"cache_salt":"s","lora_path":"l","extra_key":"e","prompt_cache_key":"k","user":"u","metadata":{"a":{},"user_id":"v"},
		"session_params":{"id":1,"session_id":"w"}}`)
	require.False(t, p.Partial)
	require.True(t, p.Stream)
	require.True(t, p.IncludeUsage)
	require.Equal(t, 3, p.N)
	require.Equal(t, 5, p.MaxTokens)
	require.Equal(t, "m s l e", fmt.Sprintf("%s %s %s %s", p.Model, p.Salt, p.LoRA, p.ExtraKey))
	require.Equal(t, Session{PromptCacheKey: []byte("k"), User: []byte("u"), UserID: []byte("v"), SessionID: []byte("w")}, p.Session)
	require.True(t, p.Empty())
	require.Equal(t, "one", string(parsed(chatPath, `{"lora_path":["one","three"],"lora_name":"two"}`).LoRA))
	require.Equal(t, "two", string(parsed(chatPath, `{"lora_path":[null],"lora_name":"two"}`).LoRA))
	require.False(t, parsed(chatPath, `{"stream":true,"stream":false}`).Stream)
	require.False(t, parsed(chatPath, `{"stream_options":{"include_usage":true},"stream_options":null}`).IncludeUsage)
}

func TestSessionsAreReadOfEveryAPI(t *testing.T) {
	for _, path := range fuzzPaths {
		p := parsed(path, `{"prompt_cache_key":"k","user":"u","metadata":{"user_id":"v"},"session_params":{"id":"w"}}`)
		require.Equal(t, Session{PromptCacheKey: []byte("k"), User: []byte("u"), UserID: []byte("v"), SessionID: []byte("w")}, p.Session, path)
		p = parsed(path, `{"session_params":[{"session_id":"w","id":"x"},{"id":"y"}],"extra_key":["e"],"cache_salt":["s","t"]}`)
		require.Equal(t, "w e s", fmt.Sprintf("%s %s %s", p.Session.SessionID, p.ExtraKey, p.Salt))
	}
	require.Equal(t, "r", string(parsed(responsesPath, `{"previous_response_id":"\u0072"}`).Session.PreviousResponseID))
	require.Equal(t, "c", string(parsed(responsesPath, `{"conversation":"c"}`).Session.Conversation))
	require.Equal(t, "c", string(parsed(responsesPath, `{"conversation":{"id":"c"}}`).Session.Conversation))
}

func TestSamplingIsReadOfEnginesOwnAPIs(t *testing.T) {
	for body, want := range map[string][2]int{
		`{"sampling_params":{"n":3,"max_new_tokens":5}}`:                    {3, 5},
		`{"sampling_params":{"n":3,"max_tokens":5}}`:                        {3, 5},
		`{"sampling_params":[{"n":3,"max_new_tokens":5},{"n":4}]}`:          {3, 5},
		`{"sampling_params":null}`:                                          {1, -1},
		`{"sampling_params":{"max_new_tokens":null,"stop":["max_tokens"]}}`: {1, -1},
	} {
		for _, path := range []string{generatePath, tokenGeneratePath} {
			p := parsed(path, body)
			require.Equal(t, want, [2]int{p.N, p.MaxTokens}, body)
		}
	}
	require.Equal(t, 7, parsed(responsesPath, `{"max_output_tokens":7,"max_tokens":5}`).MaxTokens)
	require.Equal(t, -1, parsed(responsesPath, `{"max_tokens":5}`).MaxTokens)
}

// TestOthersOfSeveralPromptsCountAsWork compares the sizes of several prompts with those
// of one.
func TestOthersOfSeveralPromptsCountAsWork(t *testing.T) {
	for _, c := range []struct {
		path, body                            string
		prompts, text, ids, media, other, key int
	}{
		{completionsPath, `{"prompt":["ab","cde"]}`, 2, 5, 0, 0, 5, 4},
		{completionsPath, `{"prompt":[[1,2],[3],[4,5]]}`, 3, 0, 5, 0, 8, 5},
		{completionsPath, `{"prompt":["ab"],"prompt":"x"}`, 1, 1, 0, 0, 0, 3},
		{completionsPath, `{"prompt":["ab","c"],"prompt":["x",null]}`, 1, 1, 0, 0, 0, 3},
		{completionsPath, `{"prompt":["ab","cd`, 2, 4, 0, 0, 4, 4},
		{generatePath, `{"text":["ab","cd"],"input_ids":[[1],[2]]}`, 2, 4, 0, 0, 4, 4},
		{generatePath, `{"image_data":["u","v","w"],"text":["a","b","c"]}`, 3, 3, 0, 3, 6, 3 + 2 + 10 + 2 + digestLen},
		{generatePath, `{"image_data":["u","v"],"text":"a"}`, 1, 1, 0, 2, 0, 3 + 2*(2+10+2+digestLen)},
		{embeddingsPath, `{"input":["ab","cde","f"]}`, 3, 6, 0, 0, 8, 4},
		{rerankPath, `{"query":"q","documents":["ab","cde"]}`, 2, 6, 0, 0, 5, 7},
		{scorePath, `{"text_1":["q","r"],"text_2":["ab","cde"]}`, 2, 7, 0, 0, 8, 7},
		{scorePath, `{"text_1":"q","text_2":"ab"}`, 1, 3, 0, 0, 0, 7},
		{responsesPath, `{"input":"ab"}`, 1, 6, 0, 0, 0, 10},
	} {
		p := parsed(c.path, c.body)
		key, err := p.WriteTo(io.Discard)
		require.NoError(t, err)
		require.Equal(t, []int{c.prompts, c.text, c.ids, c.media, c.other, c.key},
			[]int{p.Prompts, p.TextBytes, p.TokenIDs, p.Media, p.OtherBytes, int(key)}, c.body)
	}
}

func TestLimitsAreReadIfTheyAreWholeNumbers(t *testing.T) {
	for body, limit := range map[string]int{
		`{}`:                                            -1,
		`{"max_tokens":null}`:                           -1,
		`{"max_tokens":0}`:                              0,
		`{"max_tokens":16}`:                             16,
		`{"max_tokens":16.0}`:                           16,
		`{"max_tokens":1e2}`:                            100,
		`{"max_tokens":16.5}`:                           -1,
		`{"max_tokens":-1}`:                             -1,
		`{"max_tokens":-0}`:                             0,
		`{"max_tokens":"16"}`:                           -1,
		`{"max_tokens":1e999}`:                          -1,
		`{"max_tokens":NaN}`:                            -1,
		`{"max_tokens":12345678901234567890}`:           1<<31 - 1,
		`{"max_tokens":0x10}`:                           -1,
		`{"max_tokens":5,"max_completion_tokens":7}`:    7,
		`{"max_completion_tokens":7,"max_tokens":5}`:    7,
		`{"max_completion_tokens":null,"max_tokens":5}`: 5,
		`{"max_tokens":[1],"max_tokens":{}}`:            -1,
		`{"max_tokens":00000000000000000000000000000000000000000000001}`: -1,
	} {
		require.Equal(t, limit, parsed(chatPath, body).MaxTokens, body)
	}
	require.Equal(t, 5, parsed(completionsPath, `{"max_tokens":5,"max_completion_tokens":7}`).MaxTokens)
	for body, n := range map[string]int{`{}`: 1, `{"n":null}`: 1, `{"n":4}`: 4, `{"n":0}`: 1, `{"n":-3}`: 1, `{"n":1.5}`: 1} {
		require.Equal(t, n, parsed(chatPath, body).N, body)
	}
}

func TestSizesSayHowMuchThereIsToPrefill(t *testing.T) {
	p := parsed(chatPath, user(`"h\u00e9llo\n\/"`))
	require.Equal(t, len("user")+len(`héllo\n/`), p.TextBytes)
	p = parsed(completionsPath, `{"prompt":[[1, 2 ,3],[],[4]]}`)
	require.Equal(t, []int{0, 4}, []int{p.TextBytes, p.TokenIDs})
	p = parsed(chatPath, user(`[{"type":"image_url","image_url":"u"},{"type":"new"}]`))
	require.Equal(t, []int{len("user"), 2}, []int{p.TextBytes, p.Media})
	require.True(t, parsed(chatPath, `{"model":"m","messages":[]}`).Empty())
	require.True(t, parsed(completionsPath, `{"prompt":""}`).Empty())
	require.True(t, parsed("/v1/foo", `{"input":"x"}`).Empty())
	require.True(t, parsed("/tokenize", `{"prompt":"x"}`).Empty())
	require.False(t, parsed(completionsPath, `{"prompt":[5]}`).Empty())
}

func TestSegmentsStandInTemplateOrder(t *testing.T) {
	p := parsed(messagesPath, `{"messages":[{"content":[{"type":"tool_result","content":"r","tool_use_id":"1"}],"role":"user"}],
		"system":"s","tools":[{"input_schema":{},"x":1,"name":"f"}],"reasoning_effort":"low"}`)
	var kinds []byte
	var raws []string
	for _, s := range p.Segments {
		kinds = append(kinds, byte(s.Kind))
		raws = append(raws, string(p.Raw(s)))
	}
	require.Equal(t, "HVOPkVRTRITZ", string(kinds))
	require.Equal(t, []string{"reasoning_effort", `"low"`, "f", "{}", "x", "1", "system", "s", "user", "1", "r", ""}, raws)
}

func TestBadBodiesAreReadAsFarAsTheyGo(t *testing.T) {
	for _, c := range []struct {
		body, stream string
		partial      bool
	}{
		{``, ``, true},
		{`null`, ``, true},
		{`[]`, ``, true},
		{`hello`, ``, true},
		{"\x1f\x8b\x08\x00", ``, true},
		{`{`, ``, true},
		{`{}`, ``, false},
		{`{}{}`, ``, true},
		{`{"messages"`, ``, true},
		{`{"messages":`, ``, true},
		{`{"messages":}`, ``, true},
		{`{"messages" "x"}`, ``, true},
		{`{messages:[]}`, ``, true},
		{`{"messages":null}`, ``, false},
		{`{"messages":{}}`, ``, false},
		{`{"messages":"x"}`, ``, false},
		{`{"messages":5}`, ``, false},
		{`{"messages":[null,5,"x",[]]}`, ``, false},
		{`{"messages":[{}]}`, `"R`, false},
		{`{"messages":[{"role":5,"content":5}]}`, `"R`, false},
		{user(`{}`), `"Ruser`, false},
		{user(`[null,5,[],{}]`), `"Ruser"M`, false},
		{user(`[{"type":"text"}]`), `"Ruser`, false},
		{user(`[{"type":"text","text":5},"x"]`), `"Ruser"T"Tx`, false},
		{user(`[{"type":5}]`), `"Ruser"M`, false},
		{user(`[{"type":"image_url","image_url":5}]`), `"Ruser"Mimage_url"mimage_url"#` + digestOf(`5`), false},
		{user(`[{"type":"image_url","image_url":null}]`), `"Ruser"Mimage_url`, false},
		{user(`"x"`) + `garbage`, `"Ruser"Tx`, true},
		{`{"messages":[{"role":"user","content":"x"}]]`, `"Ruser"Tx`, true},
		{`{"messages":[{"role":"user","content":"x"} {"role":"user"}]}`, `"Ruser"Tx`, true},
		{`{"messages":[{"role":"user","content":"x`, `"Ruser"Tx`, true},
		{`{"messages":[{"role":"user","content":"x\`, `"Ruser"Tx`, true},
		{`{"messages":[{"role":"user","content":"x\u12`, `"Ruser"Tx`, true},
		{`{"messages":[{"role":"user","content":"x\ud83d`, `"Ruser"Tx`, true},
		{`{"messages":[{"role":"user","content":"x\ud83d\ud`, `"Ruser"Tx`, true},
		{user(`"\u12G4\uZ"`), `"Ruser"T\u12G4\uZ`, false},
		{user(`"\q\` + "\n" + `"`), "\"Ruser\"T\\q\\\n", false},
		{user(`"\ud83d\u0041\ude00"`), `"Ruser"T\ud83dA\ude00`, false},
		{user(`"\u12"`), `"Ruser"T\u12`, false},
		{user(`NaN`), `"Ruser`, false},
		{user(`-`), `"Ruser`, false},
		{user(`1e999`), `"Ruser`, false},
		{user(`@`), `"Ruser`, true},
		{`{"tools":[null,{}],"messages":[]}`, `"O`, false},
		{`{"tools":[{"function":null}]}`, `"O`, false},
		{`{"tools":[{"function":{"parameters":"x"}}]}`, `"O"P"x"`, false},
		{`{"messages":[{"tool_calls":[null,{}]}]}`, `"R"C`, false},
		{`{"messages":[{"tool_calls":5,"function_call":5,"tools":5}]}`, `"R`, false},
		{`{"messages":[{"tool_calls":[{"function":5,"id":5}],"function_call":{}}]}`, `"R"C"c`, false},
		{`{"chat_template_kwargs":[],"documents":[ ]}`, ``, false},
		{`{"metadata":5,"session_params":[],"stream_options":true}`, ``, false},
	} {
		var p Prompt
		require.Equal(t, c.stream, streamOf(t, &p, chatPath, []byte(c.body)), "%q", c.body)
		require.Equal(t, c.partial, p.Partial, "%q", c.body)
	}
	for body, stream := range map[string]string{
		`{"prompt":[]}`:              ``,
		`{"prompt":[[]]}`:            `"i`,
		`{"prompt":{}}`:              ``,
		`{"prompt":[null,true,"x"]}`: `"Tx`,
		`{"prompt":[1,"x"]}`:         `"i1,`,
		`{"prompt":[[1,[2]]]}`:       `"i1,`,
		`{"prompt":[1,2`:             `"i1,2`,
		`{"prompt":[[1,2`:            `"i1,2`,
		`{"prompt":["a","b`:          `"Ta`,
		`{"prompt":["a`:              `"Ta`,
		`{"prompt":[-1,1e2]}`:        `"i-1,1e2`,
	} {
		var p Prompt
		require.Equal(t, stream, streamOf(t, &p, completionsPath, []byte(body)), body)
	}
}

func digestOf(value string) string {
	sum := xxh3.Hash128([]byte(value)).Bytes()
	return hex.EncodeToString(sum[:])
}

func TestDigestIsThatOfTheCompactValue(t *testing.T) {
	long := strings.Repeat("iVBORw0KGgo", 1000)
	var p Prompt
	for _, c := range []struct{ spelled, value string }{
		{`"u"`, `"u"`},
		{`"a\/b"`, `"a/b"`},
		{`"` + long + `\/"`, `"` + long + `/"`},
		{`[ 1, {"a" : "\u00e9"} ]`, `[1,{"a":"é"}]`},
	} {
		stream := streamOf(t, &p, chatPath, []byte(user(`[{"type":"new","x":`+c.spelled+`}]`)))
		require.Equal(t, `"Ruser"Mnew"mx"#`+digestOf(c.value), stream)
	}
}

// hostile are bodies that cost a careless reader more than their length.
func hostile(n int) map[string]string {
	nest := strings.Repeat("[", n)
	return map[string]string{
		"open brackets":      `{"x":` + nest,
		"nested content":     user(nest + strings.Repeat("]", n)),
		"nested schema":      withTool(`"parameters":` + strings.Repeat(`{"a":`, n/5)),
		"nested results":     `{"messages":[{"content":` + strings.Repeat(`[{"type":"tool_result","content":`, n/33),
		"late types":         `{"messages":[{"content":` + strings.Repeat(`[{"content":`, n/12),
		"backslashes":        user(`"` + strings.Repeat(`\`, n)),
		"even backslashes":   user(`"` + strings.Repeat(`\\`, n/2) + `"`),
		"skipped slashes":    `{"x":"` + strings.Repeat(`\\\"`, n/4) + `"}`,
		"escapes":            user(`"` + strings.Repeat(`\/`, n/2) + `"`),
		"half pairs":         user(`"` + strings.Repeat(`\ud83d`, n/6) + `"`),
		"bad escapes":        user(`"` + strings.Repeat(`\u`, n/2) + `"`),
		"equal keys":         `{` + strings.Repeat(`"messages":[{"role":"user","content":"x"}],`, n/44) + `"a":1}`,
		"equal types":        user(`[{` + strings.Repeat(`"type":"text",`, n/14) + `"type":"new"}]`),
		"template keys":      with(`"chat_template_kwargs":{` + strings.Repeat(`"\u0061":1,`, n/11) + `"b":1}`),
		"template long keys": with(`"chat_template_kwargs":{` + strings.Repeat(`"`+strings.Repeat("k", n/64)+`":1,`, 63) + `"b":1}`),
		"many messages":      `{"messages":[` + strings.Repeat(`{},`, n/3) + `{}]}`,
		"many parts":         user(`[` + strings.Repeat(`"",`, n/3) + `""]`),
		"many tools":         `{"tools":[` + strings.Repeat(`{},`, n/3) + `{}]}`,
		"many fields":        withTool(strings.Repeat(`"a":1,`, n/6) + `"name":"f"`),
		"many media fields":  user(`[{"type":"new",` + strings.Repeat(`"a":1,`, n/6) + `"b":1}]`),
		"many calls":         `{"messages":[{"tool_calls":[` + strings.Repeat(`{},`, n/3) + `{}]}]}`,
		"objects as media":   user(`[` + strings.Repeat(`{"a":{"b":1}},`, n/14) + `{}]`),
		"spaces":             `{"messages":[` + strings.Repeat(" ", n),
		"controls":           user(`"` + strings.Repeat("\x01", n)),
		"equal contents":     `{"messages":[{` + strings.Repeat(`"content":"x",`, n/14) + `"role":"user"}]}`,
		"equal controls":     `{` + strings.Repeat(`"documents":5,`, n/14) + `"model":"m"}`,
		"equal prompts":      `{` + strings.Repeat(`"prompt":"x",`, n/13) + `"model":"m"}`,
		"equal calls":        `{"messages":[{` + strings.Repeat(`"function_call":{},`, n/19) + `"role":"user"}]}`,
		"equal results":      user(`[{"type":"tool_result",` + strings.Repeat(`"content":"x",`, n/14) + `"is_error":true}]`),
		"many prompts":       `{"prompt":[` + strings.Repeat(`[],`, n/3) + `[]]}`,
		"many items":         `{"input":[` + strings.Repeat(`{},`, n/3) + `{}]}`,
		"unknown items":      `{"input":[` + strings.Repeat(`{"x":[[[]]],"type":"new"},`, n/26) + `{}]}`,
		"nested items":       `{"input":[{"type":"new","output":` + strings.Repeat(`[{"type":"new","content":`, n/25),
		"many calls' items":  `{"input":[` + strings.Repeat(`{"type":"function_call"},`, n/25) + `{}]}`,
		"many inputs":        `{"input":[` + strings.Repeat(`"",`, n/3) + `""]}`,
		"many documents":     `{"query":"q","documents":[` + strings.Repeat(`{"text":"x"},`, n/13) + `""]}`,
		"nested documents":   `{"documents":` + strings.Repeat(`[{"content":`, n/12),
		"many images":        `{"image_data":[` + strings.Repeat(`"u",`, n/4) + `""],"text":["a","b"]}`,
		"equal texts":        `{` + strings.Repeat(`"text":["x","y"],`, n/17) + `"input_ids":[[1],[2]]}`,
	}
}

func TestHostileBodiesTakeLinearTimeAndBoundedRoom(t *testing.T) {
	const size = 1 << 19
	bodies := hostile(size)
	start := time.Now()
	for name, body := range bodies {
		for _, path := range []string{chatPath, completionsPath, messagesPath, responsesPath, generatePath, rerankPath, "/x"} {
			p := parsed(path, body)
			_, err := p.WriteTo(io.Discard)
			require.NoError(t, err)
			require.LessOrEqual(t, len(p.Segments), maxSegments+64, name)
			require.LessOrEqual(t, cap(p.decoded), 2*maxDecoded, name)
		}
	}
	// Linear work is about a second; quadratic work on one of them would be many minutes.
	require.Less(t, time.Since(start), 2*time.Minute)
}

func TestSegmentsAreBounded(t *testing.T) {
	list := strings.Repeat(`{"role":"user","content":"x"},`, maxSegments/2)
	p := parsed(chatPath, `{"messages":[`+list+`{"role":"user","content":"one too many"}],"model":"m"}`)
	require.Len(t, p.Segments, maxSegments)
	require.True(t, p.Partial)
	require.Equal(t, "m", string(p.Model), "the rest of the body is still read")

	p = parsed(chatPath, `{"messages":[`+strings.TrimSuffix(list, ",")+`],"model":"m"}`)
	require.Len(t, p.Segments, maxSegments)
	require.False(t, p.Partial)
}

func TestPooledPromptKeepsLittle(t *testing.T) {
	var p Prompt
	Parse(&p, chatPath, []byte(`{"messages":[`+strings.Repeat(`{"role":"user","name":"n","content":"x"},`, maxSegments/4)+`{}],"reasoning_effort":"low"}`))
	require.Greater(t, cap(p.Segments), keptSegments)
	require.Greater(t, cap(p.spare), keptSegments, "segments were put into order")
	p.decoded = make([]byte, 0, maxDecoded+1)
	p.Reset()
	require.Zero(t, cap(p.Segments))
	require.Zero(t, cap(p.spare))
	require.Zero(t, cap(p.decoded))
	require.Nil(t, p.scan.body)

	Parse(&p, chatPath, []byte(user(`"x"`)))
	kept := cap(p.Segments)
	p.Reset()
	require.Equal(t, kept, cap(p.Segments))
	require.Empty(t, p.Segments)
}

func TestNothingIsLeftOfThePromptBefore(t *testing.T) {
	var used Prompt
	bodies := []string{
		`{"model":"m\u0065","stream":true,"stream_options":{"include_usage":true},"n":2,"max_tokens":1,"cache_salt":"s","lora_path":"l","extra_key":"e","user":"u","tools":[{"name":"f"}],"messages":[{"role":"user","content":[{"type":"new"}]}]`,
		user(`"x"`), `{}`, ``,
	}
	for _, body := range bodies {
		fresh := parsed(chatPath, body)
		Parse(&used, chatPath, []byte(body))
		require.Equal(t, fresh.scan.body, used.scan.body)
		require.Equal(t, streamOf(t, fresh, chatPath, []byte(body)), streamOf(t, &used, chatPath, []byte(body)))
		for _, p := range []*Prompt{fresh, &used} {
			p.scan, p.spare, p.decoded, p.out, p.hasher = scanner{}, nil, nil, output{}, xxh3.Hasher{}
			p.Segments = slices.Clip(append([]Segment{}, p.Segments...))
		}
		require.Equal(t, *fresh, used)
	}
}

func TestBodyIsNotChanged(t *testing.T) {
	body := []byte(`{"model":"\u0061","messages":[{"role":"user","content":["\u0062\/",{"type":"n\u0065w","x":"\/"}]}]}`)
	before := bytes.Clone(body)
	var p Prompt
	streamOf(t, &p, chatPath, body)
	require.Equal(t, before, body)
}

// limited takes so many bytes and then fails.
type limited struct {
	left, writes int
	err          error
}

func (l *limited) Write(b []byte) (int, error) {
	l.writes++
	if len(b) > l.left {
		n := l.left
		l.left = 0
		return n, l.err
	}
	l.left -= len(b)
	return len(b), nil
}

func TestWriteErrorsAreReturnedAndEndTheWriting(t *testing.T) {
	body := `{"messages":[` + strings.Repeat(`{"role":"user","content":"`+strings.Repeat("x", 1000)+`\u00e9"},`, 20) + `{"role":"user","content":[{"type":"new","x":"\/"}]}]}`
	p := parsed(chatPath, body)
	whole, err := p.WriteTo(io.Discard)
	require.NoError(t, err)
	broken := errors.New("broken")
	for left := 0; left < int(whole); left += 7 {
		w := limited{left: left, err: broken}
		n, err := p.WriteTo(&w)
		require.ErrorIs(t, err, broken)
		require.EqualValues(t, left, n)
		writes := w.writes

		w = limited{left: left}
		n, err = p.WriteTo(&w)
		require.ErrorIs(t, err, io.ErrShortWrite)
		require.EqualValues(t, left, n)
		require.Equal(t, writes, w.writes)
	}
	again, err := p.WriteTo(io.Discard)
	require.NoError(t, err)
	require.Equal(t, whole, again)
}

func TestLongTextIsOneWriteInPlace(t *testing.T) {
	text := strings.Repeat("long text ", 1000)
	p := parsed(chatPath, user(`"`+text+`"`))
	var w counter
	n, err := p.WriteTo(&w)
	require.NoError(t, err)
	require.Equal(t, counter{bytes: n, writes: 2}, w)
}

func TestNothingIsAllocatedOnceAPromptIsInUse(t *testing.T) {
	var p Prompt
	var w counter
	for _, text := range benchTexts {
		body := benchBody(text, 16<<10)
		require.Zero(t, testing.AllocsPerRun(20, func() {
			Parse(&p, chatPath, body)
			_, _ = p.WriteTo(&w)
		}), text)
	}
	body := []byte(`{"mod\u0065l":"\u0061","tools":[{"name":"f","x":1.0,"parameters":{"a": 1}}],"chat_template_kwargs":{"b":1,"\u0061":2},
		"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image\/png"}}],"role":"user"}],"max_tokens":1e2}`)
	require.Zero(t, testing.AllocsPerRun(20, func() {
		Parse(&p, chatPath, body)
		_, _ = p.WriteTo(&w)
	}))
	for path, bodies := range inOrder {
		for _, body := range bodies {
			sent := []byte(body)
			require.Zero(t, testing.AllocsPerRun(20, func() {
				Parse(&p, path, sent)
				_, _ = p.WriteTo(&w)
			}), body)
		}
	}
}
