package prompt

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	chatPath          = "/v1/chat/completions"
	completionsPath   = "/v1/completions"
	messagesPath      = "/v1/messages"
	responsesPath     = "/v1/responses"
	generatePath      = "/generate"
	tokenGeneratePath = "/inference/v1/generate"
	embeddingsPath    = "/v1/embeddings"
	poolingPath       = "/pooling"
	classifyPath      = "/classify"
	scorePath         = "/v1/score"
	rerankPath        = "/v1/rerank"
)

// user is a chat with one user message of the given content.
func user(content string) string {
	return `{"messages":[{"role":"user","content":` + content + `}]}`
}

// withTool is a chat with one function tool of the given fields.
func withTool(fields string) string {
	return `{"tools":[{"type":"function","function":{` + fields + `}}],"messages":[{"role":"user","content":"x"}]}`
}

// with is a chat with further fields.
func with(fields string) string {
	return `{` + fields + `,"messages":[{"role":"user","content":"x"}]}`
}

// image is an image part with the given url, followed by the given fields.
func image(url, fields string) string {
	return user(`[{"type":"image_url","image_url":{"url":"` + url + `"}` + fields + `}]`)
}

func claude(fields string) string {
	return `{` + fields + `,"messages":[{"role":"user","content":"x"}]}`
}

// items is a responses request with a list of items.
func items(list string) string { return `{"input":[` + list + `]}` }

func block(fields string) string { return user(`[{` + fields + `}]`) }

// pairs are bodies that an engine makes the same prompt of, or another.
var pairs = []struct {
	rule, path, a, b string
	same             bool
}{
	// Fields that are not the prompt.
	{"sampling fields do not matter", chatPath, with(`"temperature":0`), with(`"temperature":1,"top_p":0.5,"seed":7,"stop":["a"],"logprobs":true`), true},
	{"response_format does not matter", chatPath, with(`"response_format":{"type":"json_object"}`), with(`"n":1`), true},
	{"stream and limits do not matter", chatPath, with(`"stream":true,"max_tokens":5`), with(`"stream":false,"max_completion_tokens":9`), true},
	{"the model is not in the stream", chatPath, with(`"model":"a"`), with(`"model":"b"`), true},
	{"the salt is not in the stream", chatPath, with(`"cache_salt":"a"`), with(`"cache_salt":"b"`), true},
	{"the session is not in the stream", chatPath, with(`"user":"a","metadata":{"user_id":"b"}`), with(`"prompt_cache_key":"k"`), true},
	{"what comes after the last message is left out", chatPath, with(`"add_generation_prompt":false`), with(`"continue_final_message":true`), true},
	{"tool_choice does not take tools away", chatPath, with(`"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none"`), with(`"tools":[{"type":"function","function":{"name":"f"}}]`), true},
	{"transfer fields do not matter", chatPath, with(`"kv_transfer_params":{"do_remote_decode":true}`), with(`"bootstrap_room":7`), true},

	// Spelling.
	{"order at the top level", chatPath, `{"model":"m","messages":[{"role":"user","content":"x"}]}`, `{"messages":[{"role":"user","content":"x"}],"model":"m"}`, true},
	{"order in messages", chatPath, `{"messages":[{"role":"user","content":"x","name":"n"}]}`, `{"messages":[{"name":"n","content":"x","role":"user"}]}`, true},
	{"order in parts", chatPath, user(`[{"type":"text","text":"x"}]`), user(`[{"text":"x","type":"text"}]`), true},
	{"order in media parts", chatPath, user(`[{"type":"image_url","image_url":{"url":"u"}}]`), user(`[{"image_url":{"url":"u"},"type":"image_url"}]`), true},
	{"order in parts of unknown type", chatPath, user(`[{"type":"new","a":1,"b":2}]`), user(`[{"b":2,"a":1,"type":"new"}]`), true},
	{"order in tools", chatPath, withTool(`"name":"f","description":"d","parameters":{"a":1}`), withTool(`"parameters":{"a":1},"description":"d","name":"f"`), true},
	{"tools before or after messages", chatPath, `{"tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"user","content":"x"}]}`, `{"messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"f"},"type":"function"}]}`, true},
	{"order in tool calls", chatPath, `{"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}]}`, `{"messages":[{"tool_calls":[{"function":{"arguments":"{}","name":"f"},"type":"function","id":"1"}],"role":"assistant"}]}`, true},
	{"order in a schema enters the prompt", chatPath, withTool(`"name":"f","parameters":{"zeta":1,"alpha":2}`), withTool(`"name":"f","parameters":{"alpha":2,"zeta":1}`), false},
	{"order of template arguments", chatPath, with(`"chat_template_kwargs":{"a":1,"b":2}`), with(`"chat_template_kwargs":{"b":2,"a":1}`), true},
	{"white space between tokens", chatPath, `{"messages":[{"role":"user","content":"x"}]}`, " {\n\t\"messages\" : [ { \"role\" : \"user\" , \"content\" : \"x\" } ] }\r\n", true},
	{"white space in a schema", chatPath, withTool(`"name":"f","parameters":{"a":[1,2]}`), withTool(`"name":"f","parameters":{ "a" : [1, 2] }`), true},
	{"white space in a schema's strings counts", chatPath, withTool(`"name":"f","parameters":{"a":"b c"}`), withTool(`"name":"f","parameters":{"a":"bc"}`), false},
	{"a byte order mark", chatPath, user(`"x"`), "\xef\xbb\xbf" + user(`"x"`), true},
	{"the last of two equal keys counts", chatPath, `{"messages":[{"role":"user","content":"a","content":"b"}]}`, user(`"b"`), true},
	{"the last of two lists of messages counts", chatPath, `{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}]}`, user(`"b"`), true},
	{"keys with escapes", chatPath, user(`"x"`), `{"m\u0065ssages":[{"\u0072ole":"user","content":"x"}]}`, true},
	{"types with escapes", chatPath, user(`[{"type":"text","text":"x"}]`), user(`[{"type":"te\u0078t","text":"x"}]`), true},

	// Escapes.
	{"an escaped letter", chatPath, user(`"é"`), user(`"\u00e9"`), true},
	{"upper-case digits", chatPath, user(`"\u00E9"`), user(`"\u00e9"`), true},
	{"an escaped line feed", chatPath, user(`"a\nb"`), user(`"a\u000ab"`), true},
	{"a raw line feed", chatPath, user(`"a\nb"`), user("\"a\nb\""), true},
	{"a raw control byte", chatPath, user(`"a\u0001b"`), user("\"a\x01b\""), true},
	{"an escaped quote", chatPath, user(`"\""`), user(`"\u0022"`), true},
	{"an escaped backslash", chatPath, user(`"\\"`), user(`"\u005c"`), true},
	{"an escaped slash", chatPath, user(`"a/b"`), user(`"a\/b"`), true},
	{"a surrogate pair", chatPath, user(`"😀"`), user(`"\ud83d\ude00"`), true},
	{"half a surrogate pair is not none", chatPath, user(`"\ud83d"`), user(`""`), false},
	{"half a surrogate pair is not U+FFFD", chatPath, user(`"\ud83d"`), user(`"\ufffd"`), false},
	{"half a surrogate pair is not its own text", chatPath, user(`"\ud83d"`), user(`"\\ud83d"`), false},
	{"halves in the wrong order", chatPath, user(`"\ude00\ud83d"`), user(`"\ud83d\ude00"`), false},
	{"escaped text is not an escape", chatPath, user(`"\\u00e9"`), user(`"\u00e9"`), false},
	{"escaped text is not a line feed", chatPath, user(`"\\n"`), user(`"\n"`), false},
	{"runes with the same first bytes", chatPath, user(`"你"`), user(`"佡"`), false},
	{"precomposed and combined", chatPath, user(`"é"`), user(`"e\u0301"`), false},
	{"bytes that are not UTF-8", chatPath, user("\"\xff\""), user("\"\xfe\""), false},
	{"a NUL", chatPath, user(`"\u0000"`), user(`""`), false},
	{"text that looks like a frame", chatPath, user(`"a\"Tb"`), user(`["a","b"]`), false},

	// Content.
	{"a string or one part", chatPath, user(`"x"`), user(`[{"type":"text","text":"x"}]`), true},
	{"a bare string as a part", chatPath, user(`["x"]`), user(`"x"`), true},
	{"two parts are not one", chatPath, user(`[{"type":"text","text":"a"},{"type":"text","text":"b"}]`), user(`"ab"`), false},
	{"where parts divide", chatPath, user(`["ab","c"]`), user(`["a","bc"]`), false},
	{"an empty part beside another", chatPath, user(`["","x"]`), user(`["x"]`), false},
	{"empty, null and no content", chatPath, user(`""`), user(`null`), true},
	{"no parts", chatPath, user(`[]`), `{"messages":[{"role":"user"}]}`, true},
	{"one empty part", chatPath, user(`[{"type":"text","text":""}]`), user(`""`), true},
	{"roles", chatPath, `{"messages":[{"role":"user","content":"x"}]}`, `{"messages":[{"role":"system","content":"x"}]}`, false},
	{"system is not developer", chatPath, `{"messages":[{"role":"developer","content":"x"}]}`, `{"messages":[{"role":"system","content":"x"}]}`, false},
	{"no role", chatPath, `{"messages":[{"content":"x"}]}`, `{"messages":[{"role":null,"content":"x"}]}`, true},
	{"where messages divide", chatPath, `{"messages":[{"role":"user","content":"ab"},{"role":"user","content":"c"}]}`, `{"messages":[{"role":"user","content":"a"},{"role":"user","content":"bc"}]}`, false},
	{"two messages are not one of two parts", chatPath, `{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`, user(`["a","b"]`), false},
	{"an empty message counts", chatPath, `{"messages":[{"role":"user","content":"a"},{"role":"assistant"}]}`, user(`"a"`), false},
	{"order of messages", chatPath, `{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`, `{"messages":[{"role":"user","content":"b"},{"role":"user","content":"a"}]}`, false},
	{"names", chatPath, `{"messages":[{"role":"user","name":"a","content":"x"}]}`, user(`"x"`), false},
	{"a name is not text", chatPath, `{"messages":[{"role":"user","name":"x"}]}`, user(`"x"`), false},
	{"reasoning under any name", chatPath, `{"messages":[{"role":"assistant","reasoning":"r","content":"x"}]}`, `{"messages":[{"role":"assistant","reasoning_content":"r","content":"x"}]}`, true},
	{"reasoning", chatPath, `{"messages":[{"role":"assistant","reasoning":"r","content":"x"}]}`, `{"messages":[{"role":"assistant","content":"x"}]}`, false},
	{"a refusal is not text", chatPath, `{"messages":[{"role":"assistant","refusal":"x"}]}`, `{"messages":[{"role":"assistant","content":"x"}]}`, false},
	{"fields that clients send back", chatPath, `{"messages":[{"role":"assistant","content":"x","refusal":null,"annotations":[],"audio":null,"function_call":null,"tool_calls":[]}]}`, `{"messages":[{"role":"assistant","content":"x"}]}`, true},

	// Tools.
	{"names of tools", chatPath, withTool(`"name":"f"`), withTool(`"name":"g"`), false},
	{"descriptions", chatPath, withTool(`"name":"f","description":"a"`), withTool(`"name":"f","description":"b"`), false},
	{"no and null description", chatPath, withTool(`"name":"f","description":null`), withTool(`"name":"f"`), true},
	{"strict", chatPath, withTool(`"name":"f","strict":true`), withTool(`"name":"f"`), false},
	{"fields unknown here", chatPath, withTool(`"name":"f","x":1`), withTool(`"name":"f"`), false},
	{"order of tools", chatPath, `{"tools":[{"function":{"name":"f"}},{"function":{"name":"g"}}]}`, `{"tools":[{"function":{"name":"g"}},{"function":{"name":"f"}}]}`, false},
	{"no tools", chatPath, with(`"tools":[]`), with(`"tools":null`), true},
	{"custom tools are not functions", chatPath, `{"tools":[{"type":"custom","custom":{"name":"f"}}]}`, `{"tools":[{"type":"function","function":{"name":"f"}}]}`, false},
	{"legacy functions are not tools", chatPath, `{"functions":[{"name":"f"}]}`, `{"tools":[{"type":"function","function":{"name":"f"}}]}`, false},
	{"number text in a schema", chatPath, withTool(`"parameters":{"a":1}`), withTool(`"parameters":{"a":1.0}`), false},
	{"escapes in a schema", chatPath, withTool(`"parameters":{"\u00e9":"\/"}`), withTool(`"parameters":{"é":"/"}`), true},
	{"ids of calls", chatPath, `{"messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f"}}]}]}`, `{"messages":[{"role":"assistant","tool_calls":[{"id":"2","function":{"name":"f"}}]}]}`, false},
	{"arguments", chatPath, `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1}"}}]}]}`, `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":2}"}}]}]}`, false},
	{"two calls are not one", chatPath, `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f"}},{"function":{"arguments":"a"}}]}]}`, `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"a"}}]}]}`, false},
	{"which call a result answers", chatPath, `{"messages":[{"role":"tool","tool_call_id":"1","content":"x"}]}`, `{"messages":[{"role":"tool","tool_call_id":"2","content":"x"}]}`, false},

	// What steers the template.
	{"template arguments", chatPath, with(`"chat_template_kwargs":{"enable_thinking":false}`), with(`"chat_template_kwargs":{"enable_thinking":true}`), false},
	{"no template arguments", chatPath, with(`"chat_template_kwargs":{}`), with(`"chat_template_kwargs":null`), true},
	{"the template", chatPath, with(`"chat_template":"a"`), with(`"chat_template":"b"`), false},
	{"reasoning effort", chatPath, with(`"reasoning_effort":"low"`), with(`"reasoning_effort":"high"`), false},
	{"documents", chatPath, with(`"documents":[{"text":"a"}]`), with(`"documents":[{"text":"b"}]`), false},
	{"special tokens as usual", completionsPath, `{"prompt":"x","add_special_tokens":true}`, `{"prompt":"x"}`, true},
	{"special tokens", completionsPath, `{"prompt":"x","add_special_tokens":false}`, `{"prompt":"x"}`, false},
	{"truncation", completionsPath, `{"prompt":"x","truncate_prompt_tokens":9}`, `{"prompt":"x"}`, false},

	// Media.
	{"images that differ in their last byte", chatPath, image(strings.Repeat("iVBOR", 20_000)+"a", ""), image(strings.Repeat("iVBOR", 20_000)+"b", ""), false},
	{"an image's url at hand or in an object", chatPath, user(`[{"type":"image_url","image_url":"u"}]`), image("u", ""), true},
	{"an image's detail", chatPath, user(`[{"type":"image_url","image_url":{"url":"u","detail":"low"}}]`), image("u", ""), true},
	{"an image's url with escapes", chatPath, image(`data:image\/png;base64,a`, ""), image("data:image/png;base64,a", ""), true},
	{"an image's own id", chatPath, image("u", `,"uuid":"1"`), image("u", `,"uuid":"2"`), false},
	{"an image's own id goes before its bytes", chatPath, image("u", `,"uuid":"1"`), image("v", `,"uuid":"1"`), true},
	{"an image with and without an id", chatPath, image("u", `,"uuid":"1"`), image("u", `,"uuid":null`), false},
	{"image and video", chatPath, user(`[{"type":"image_url","image_url":{"url":"u"}}]`), user(`[{"type":"video_url","video_url":{"url":"u"}}]`), false},
	{"order of image and text", chatPath, user(`[{"type":"text","text":"x"},{"type":"image_url","image_url":"u"}]`), user(`[{"type":"image_url","image_url":"u"},{"type":"text","text":"x"}]`), false},
	{"sounds", chatPath, user(`[{"type":"input_audio","input_audio":{"data":"a","format":"wav"}}]`), user(`[{"type":"input_audio","input_audio":{"data":"b","format":"wav"}}]`), false},
	{"files by id", chatPath, user(`[{"type":"file","file":{"file_id":"a"}}]`), user(`[{"type":"file","file":{"file_id":"b"}}]`), false},
	{"a file's id is not its data", chatPath, user(`[{"type":"file","file":{"file_id":"a"}}]`), user(`[{"type":"file","file":{"file_data":"a"}}]`), false},
	{"parts of unknown type", chatPath, user(`[{"type":"new","x":"1"}]`), user(`[{"type":"new","x":1}]`), false},
	{"white space in parts of unknown type", chatPath, user(`[{"type":"new","x":[1, 2]}]`), user(`[{"type":"new","x":[1,2]}]`), true},

	// Bare prompts.
	{"a prompt or a list of one", completionsPath, `{"prompt":"x"}`, `{"prompt":["x"]}`, true},
	{"ids or a list of one list of ids", completionsPath, `{"prompt":[1,2]}`, `{"prompt":[[1,2]]}`, true},
	{"two prompts are not one", completionsPath, `{"prompt":["a","b"]}`, `{"prompt":["ab"]}`, false},
	{"two lists are not one", completionsPath, `{"prompt":[[1],[2]]}`, `{"prompt":[[1,2]]}`, false},
	{"where ids divide", completionsPath, `{"prompt":[1,23]}`, `{"prompt":[12,3]}`, false},
	{"spaces between ids", completionsPath, `{"prompt":[1, 23]}`, `{"prompt":[1,23]}`, true},
	{"ids are not text", completionsPath, `{"prompt":[1,23]}`, `{"prompt":"1,23"}`, false},
	{"echo and logprobs", completionsPath, `{"prompt":"x","echo":true,"logprobs":5}`, `{"prompt":"x"}`, true},
	{"a suffix", completionsPath, `{"prompt":"x","suffix":"y"}`, `{"prompt":"x"}`, false},
	{"no suffix", completionsPath, `{"prompt":"x","suffix":null}`, `{"prompt":"x","suffix":""}`, true},
	{"embeddings", completionsPath, `{"prompt_embeds":"a"}`, `{"prompt_embeds":"b"}`, false},

	// Anthropic messages.
	{"system text as string or block", messagesPath, claude(`"system":"s"`), claude(`"system":[{"type":"text","text":"s"}]`), true},
	{"system text", messagesPath, claude(`"system":"s"`), claude(`"system":"t"`), false},
	{"no system text", messagesPath, claude(`"system":""`), claude(`"system":null`), true},
	{"where cache breakpoints are", messagesPath, claude(`"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}]`), claude(`"system":"s"`), true},
	{"cache breakpoints on tools", messagesPath, claude(`"tools":[{"name":"f","input_schema":{},"cache_control":{"type":"ephemeral"}}]`), claude(`"tools":[{"name":"f","input_schema":{}}]`), true},
	{"cache breakpoints on images", messagesPath, block(`"type":"image","source":{"type":"url","url":"u"},"cache_control":{"type":"ephemeral"}`), block(`"type":"image","source":{"type":"url","url":"u"}`), true},
	{"Claude Code's attribution", messagesPath, claude(`"system":[{"type":"text","text":"x-anthropic-billing-header: cch=1;"},{"type":"text","text":"s"}]`), claude(`"system":[{"type":"text","text":"x-anthropic-billing-header: cch=2;"},{"type":"text","text":"s"}]`), true},
	{"text that only mentions it", messagesPath, claude(`"system":[{"type":"text","text":"no x-anthropic-billing-header"}]`), claude(`"system":null`), false},
	{"usual type of tools", messagesPath, claude(`"tools":[{"type":"custom","name":"f"}]`), claude(`"tools":[{"name":"f"}]`), true},
	{"unusual type of tools", messagesPath, claude(`"tools":[{"type":"computer","name":"f"}]`), claude(`"tools":[{"name":"f"}]`), false},
	{"images of blocks", messagesPath, block(`"type":"image","source":{"type":"base64","media_type":"image/png","data":"a"}`), block(`"type":"image","source":{"data":"b","media_type":"image/png","type":"base64"}`), false},
	{"order in an image's source", messagesPath, block(`"type":"image","source":{"type":"base64","media_type":"image/png","data":"a"}`), block(`"source":{"data":"a","media_type":"image/png","type":"base64"},"type":"image"`), true},
	{"order in a tool's input enters the prompt", messagesPath, block(`"type":"tool_use","id":"1","name":"f","input":{"a":1,"b":2}`), block(`"type":"tool_use","id":"1","name":"f","input":{"b":2,"a":1}`), false},
	{"white space in a tool's input", messagesPath, block(`"type":"tool_use","id":"1","name":"f","input":{"a":1}`), block(`"type":"tool_use","id":"1","name":"f","input":{ "a": 1 }`), true},
	{"a result as string or block", messagesPath, block(`"type":"tool_result","tool_use_id":"1","content":"x"`), block(`"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"x"}]`), true},
	{"where a result ends", messagesPath, user(`[{"type":"tool_result","tool_use_id":"1","content":["x","y"]}]`), user(`[{"type":"tool_result","tool_use_id":"1","content":"x"},{"type":"text","text":"y"}]`), false},
	{"a result that failed", messagesPath, block(`"type":"tool_result","tool_use_id":"1","content":"x","is_error":true`), block(`"type":"tool_result","tool_use_id":"1","content":"x","is_error":false`), false},
	{"a result that did not fail", messagesPath, block(`"type":"tool_result","tool_use_id":"1","content":"x","is_error":false`), block(`"type":"tool_result","tool_use_id":"1","content":"x"`), true},
	{"an image in a result", messagesPath, block(`"type":"tool_result","tool_use_id":"1","content":[{"type":"image","source":{"type":"base64","data":"a"}}]`), block(`"type":"tool_result","tool_use_id":"1","content":[{"type":"image","source":{"type":"base64","data":"b"}}]`), false},
	{"thinking", messagesPath, block(`"type":"thinking","thinking":"a"`), block(`"type":"thinking","thinking":"b"`), false},
	{"a thought's signature", messagesPath, block(`"type":"thinking","thinking":"a","signature":"s"`), block(`"type":"thinking","thinking":"a"`), true},
	{"sealed thinking", messagesPath, block(`"type":"redacted_thinking","data":"a"`), block(`"type":"redacted_thinking","data":"b"`), false},
	{"documents in messages", messagesPath, block(`"type":"document","source":{"type":"text","data":"a"}`), block(`"type":"document","source":{"type":"text","data":"b"}`), false},
	// OpenAI responses.
	{"a text or a message with it", responsesPath, `{"input":"x"}`, `{"input":[{"role":"user","content":"x"}]}`, true},
	{"a message or an item that says so", responsesPath, `{"input":[{"role":"user","content":"x"}]}`, items(`{"id":"m","type":"message","status":"completed","role":"user","content":[{"type":"input_text","text":"x"}]}`), true},
	{"instructions", responsesPath, `{"instructions":"a","input":"x"}`, `{"instructions":"b","input":"x"}`, false},
	{"instructions or a system message", responsesPath, `{"instructions":"a","input":"x"}`, items(`{"role":"system","content":"a"},{"role":"user","content":"x"}`), true},
	{"no instructions", responsesPath, `{"instructions":null,"input":"x"}`, `{"input":"x"}`, true},
	{"fields of a response do not matter", responsesPath, `{"input":"x","store":false,"text":{"format":{"type":"text"}},"truncation":"auto"}`, `{"input":"x"}`, true},
	{"effort", responsesPath, `{"input":"x","reasoning":{"effort":"low"}}`, `{"input":"x","reasoning":{"effort":"high"}}`, false},
	{"how reasoning is summed up", responsesPath, `{"input":"x","reasoning":{"effort":"low","summary":"auto"}}`, `{"input":"x","reasoning":{"effort":"low"}}`, true},
	{"what the engine has", responsesPath, `{"previous_response_id":"r1","input":"x"}`, `{"previous_response_id":"r2","input":"x"}`, false},
	{"what the engine has, or nothing", responsesPath, `{"previous_response_id":"r1","input":"x"}`, `{"previous_response_id":null,"input":"x"}`, false},
	{"a conversation or its id", responsesPath, `{"conversation":{"id":"c"},"input":"x"}`, `{"conversation":"c","input":"x"}`, true},
	{"tools that are left out", responsesPath, `{"input":"x","tools":[{"type":"function","name":"f"}],"tool_choice":"none"}`, `{"input":"x"}`, true},
	{"tools that are not", responsesPath, `{"input":"x","tools":[{"type":"function","name":"f"}],"tool_choice":"auto"}`, `{"input":"x"}`, false},
	{"tools that the engine has", responsesPath, `{"input":"x","tools":[{"type":"web_search"}]}`, `{"input":"x","tools":[{"type":"code_interpreter"}]}`, false},
	{"order in items", responsesPath, items(`{"type":"function_call","call_id":"1","name":"f","arguments":"{}"}`), items(`{"arguments":"{}","call_id":"1","name":"f","type":"function_call"}`), true},
	{"an item's own id and status", responsesPath, items(`{"type":"function_call","id":"fc_1","call_id":"1","name":"f","arguments":"{}","status":"completed"}`), items(`{"type":"function_call","call_id":"1","name":"f","arguments":"{}"}`), true},
	{"which call", responsesPath, items(`{"type":"function_call","call_id":"1","name":"f"}`), items(`{"type":"function_call","call_id":"2","name":"f"}`), false},
	{"custom calls are not functions'", responsesPath, items(`{"type":"custom_tool_call","call_id":"1","name":"f","input":"x"}`), items(`{"type":"function_call","call_id":"1","name":"f","arguments":"x"}`), false},
	{"a result as string or part", responsesPath, items(`{"type":"function_call_output","call_id":"1","output":"x"}`), items(`{"type":"function_call_output","call_id":"1","output":[{"type":"input_text","text":"x"}]}`), true},
	{"a result", responsesPath, items(`{"type":"function_call_output","call_id":"1","output":"x"}`), items(`{"type":"function_call_output","call_id":"1","output":"y"}`), false},
	{"reasoning before its summary", responsesPath, items(`{"type":"reasoning","summary":[{"type":"summary_text","text":"s"}],"content":[{"type":"reasoning_text","text":"r"}]}`), items(`{"type":"reasoning","content":[{"type":"reasoning_text","text":"r"}],"summary":[]}`), true},
	{"a summary if there is no more", responsesPath, items(`{"type":"reasoning","summary":[{"type":"summary_text","text":"s"}]}`), items(`{"type":"reasoning","summary":[]}`), false},
	{"sealed reasoning", responsesPath, items(`{"type":"reasoning","summary":[],"encrypted_content":"a"}`), items(`{"type":"reasoning","summary":[],"encrypted_content":"b"}`), false},
	{"references", responsesPath, items(`{"type":"item_reference","id":"a"}`), items(`{"type":"item_reference","id":"b"}`), false},
	{"items of unknown type", responsesPath, items(`{"type":"new","a":1,"b":"x"}`), items(`{"b":"x","type":"new","a":1}`), true},
	{"what is in them", responsesPath, items(`{"type":"new","a":1}`), items(`{"type":"new","a":2}`), false},
	{"two answers are not one", responsesPath, items(`{"role":"assistant","content":"a"},{"role":"assistant","content":"b"}`), items(`{"role":"assistant","content":["a","b"]}`), false},
	{"an image's detail in responses", responsesPath, items(`{"role":"user","content":[{"type":"input_image","image_url":"u","detail":"low"}]}`), items(`{"role":"user","content":[{"type":"input_image","image_url":"u"}]}`), true},

	// Engines' own APIs.
	{"a text or a list of one", generatePath, `{"text":"x"}`, `{"text":["x"]}`, true},
	{"ids or a list of one", generatePath, `{"input_ids":[1,2]}`, `{"input_ids":[[1, 2]]}`, true},
	{"text goes before ids", generatePath, `{"text":"x","input_ids":[1]}`, `{"text":"x"}`, true},
	{"no text", generatePath, `{"text":null,"input_ids":[1]}`, `{"input_ids":[1]}`, true},
	{"sampling of own APIs", generatePath, `{"text":"x","sampling_params":{"temperature":0}}`, `{"text":"x","stream":true}`, true},
	{"images beside a text", generatePath, `{"text":"x","image_data":"a"}`, `{"text":"x","image_data":"b"}`, false},
	{"an image or a list of one", generatePath, `{"text":"x","image_data":"a"}`, `{"text":"x","image_data":["a"]}`, true},
	{"order of images", generatePath, `{"text":"x","image_data":["a","b"]}`, `{"text":"x","image_data":["b","a"]}`, false},
	{"the second prompt's image", generatePath, `{"text":["x","y"],"image_data":["a","b"]}`, `{"text":["x","y"],"image_data":["a","c"]}`, true},
	{"sounds beside a text", generatePath, `{"text":"x","audio_data":"a"}`, `{"text":"x","video_data":"a"}`, false},
	{"embeddings instead of ids", generatePath, `{"input_embeds":[[0.5]]}`, `{"input_embeds":[[0.25]]}`, false},
	{"token ids", tokenGeneratePath, `{"token_ids":[1,2]}`, `{"token_ids":[1,3]}`, false},
	{"media of token ids", tokenGeneratePath, `{"token_ids":[1],"features":{"mm_hashes":{"image":["a"]}}}`, `{"token_ids":[1],"features":{"mm_hashes":{"image":["b"]}}}`, false},
	{"media of token ids by their names", tokenGeneratePath, `{"token_ids":[1],"features":{"mm_hashes":{"image":["a"]},"kwargs_data":null}}`, `{"token_ids":[1],"features":{"mm_hashes":{"image":["a"]},"kwargs_data":"xyz"}}`, true},
	{"no media of token ids", tokenGeneratePath, `{"token_ids":[1],"features":null}`, `{"token_ids":[1]}`, true},

	// Several prompts: the first is what is routed on.
	{"the first of several texts", completionsPath, `{"prompt":["a","b"]}`, `{"prompt":"a"}`, true},
	{"another first one", completionsPath, `{"prompt":["a","b"]}`, `{"prompt":["b","a"]}`, false},
	{"the first of several lists of ids", completionsPath, `{"prompt":[[1],[2]]}`, `{"prompt":[1]}`, true},
	{"the first of several inputs", embeddingsPath, `{"input":["a","b"]}`, `{"input":"a"}`, true},
	{"inputs as ids", embeddingsPath, `{"input":[1,2]}`, `{"input":[[1,2],[3]]}`, true},
	{"dimensions and format", embeddingsPath, `{"input":"a","dimensions":8,"encoding_format":"base64"}`, `{"input":"a"}`, true},
	{"a chat to embed is no text", embeddingsPath, user(`"x"`), `{"input":"x"}`, false},
	{"special tokens of a text to embed", embeddingsPath, `{"input":"x","add_special_tokens":true}`, `{"input":"x"}`, true},
	{"special tokens of a chat to embed", embeddingsPath, with(`"add_special_tokens":true`), user(`"x"`), false},
	{"text of classifiers", classifyPath, `{"text":"x"}`, `{"input":"x"}`, true},
	{"inputs to pool", poolingPath, `{"input":"x"}`, `{"input":"y"}`, false},
	{"queries", rerankPath, `{"query":"a","documents":["x","y"]}`, `{"query":"b","documents":["x","y"]}`, false},
	{"the first document", rerankPath, `{"query":"a","documents":["x","y"]}`, `{"documents":["x","z"],"query":"a","top_n":1}`, true},
	{"another first document", rerankPath, `{"query":"a","documents":["x","y"]}`, `{"query":"a","documents":["y","x"]}`, false},
	{"a document as text or object", rerankPath, `{"query":"a","documents":["x"]}`, `{"query":"a","documents":[{"text":"x"}]}`, true},
	{"a query as text or parts", rerankPath, `{"query":"a","documents":["x"]}`, `{"query":[{"type":"text","text":"a"}],"documents":["x"]}`, true},
	{"what the query is for", rerankPath, `{"query":"a","documents":["x"],"instruction":"i"}`, `{"query":"a","documents":["x"]}`, false},
	{"pairs by any name", scorePath, `{"text_1":"a","text_2":["x"]}`, `{"queries":["a"],"documents":"x"}`, true},
	{"pairs by any other name", scorePath, `{"data_1":"a","data_2":["x"]}`, `{"query":"a","items":["x"]}`, true},
	{"sides of a pair", scorePath, `{"text_1":"a","text_2":"x"}`, `{"text_1":"x","text_2":"a"}`, false},

	{"a document's title", messagesPath, block(`"type":"document","title":"a","source":{"type":"text","data":"a"}`), block(`"type":"document","title":"b","source":{"type":"text","data":"a"}`), false},
}

func TestPromptsMatchIffTheEngineSeesThemAsEqual(t *testing.T) {
	var p Prompt
	for _, pair := range pairs {
		t.Run(pair.rule, func(t *testing.T) {
			a, b := streamOf(t, &p, pair.path, []byte(pair.a)), streamOf(t, &p, pair.path, []byte(pair.b))
			if pair.same {
				require.Equal(t, a, b)
			} else {
				require.NotEqual(t, a, b)
			}
		})
	}
}

func TestSameTextAsChatAndAsMessagesHasTheSameStream(t *testing.T) {
	var p Prompt
	chat := streamOf(t, &p, chatPath, []byte(`{"messages":[{"role":"system","content":"s"},{"role":"user","content":"x"}]}`))
	messages := streamOf(t, &p, messagesPath, []byte(`{"system":"s","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}`))
	require.Equal(t, chat, messages)
	require.Equal(t, `"Rsystem"Ts"Ruser"Tx`, chat)
}

// TestSameConversationAsChatAndAsResponsesHasTheSameStream has a chat in the one form and
// in the other, as engines translate it.
func TestSameConversationAsChatAndAsResponsesHasTheSameStream(t *testing.T) {
	var p Prompt
	chat := streamOf(t, &p, chatPath, []byte(`{"reasoning_effort":"low","tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"a":1},"strict":true}}],"messages":[
		{"role":"system","content":"s"},
		{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"u"}}]},
		{"role":"assistant","reasoning":"r","content":"c","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"2","type":"function","function":{"name":"f","arguments":"[]"}}]},
		{"role":"tool","tool_call_id":"1","content":"one"},
		{"role":"tool","tool_call_id":"2","content":"two"},
		{"role":"assistant","content":"done"},
		{"role":"user","content":"thanks"}]}`))
	responses := streamOf(t, &p, responsesPath, []byte(`{"reasoning":{"effort":"low"},"instructions":"s","tools":[{"type":"function","name":"f","description":"d","parameters":{"a":1},"strict":true}],"input":[
		{"role":"user","content":[{"type":"input_text","text":"look"},{"type":"input_image","image_url":"u","detail":"auto"}]},
		{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"r"}]},
		{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"c","annotations":[]}]},
		{"type":"function_call","id":"fc_1","call_id":"1","name":"f","arguments":"{}","status":"completed"},
		{"type":"function_call","id":"fc_2","call_id":"2","name":"f","arguments":"[]","status":"completed"},
		{"type":"function_call_output","call_id":"1","output":"one"},
		{"type":"function_call_output","call_id":"2","output":"two"},
		{"type":"message","role":"assistant","content":"done"},
		{"role":"user","content":"thanks"}]}`))
	require.Equal(t, chat, responses)
}
