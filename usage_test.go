package inference

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// scanned returns what a scanner finds in the pieces.
func scanned(pieces ...[]byte) usage {
	var s usageScanner
	for _, p := range pieces {
		s.write(p)
	}
	return s.last
}

// scannedMeta returns what a scanner of SGLang's own API finds in the pieces.
func scannedMeta(pieces ...[]byte) usage {
	s := usageScanner{meta: true}
	for _, p := range pieces {
		s.write(p)
	}
	return s.last
}

func TestCountsOfSGLangsOwnAPIAreReadHoweverTheyAreCut(t *testing.T) {
	const meta = `"meta_info":{"id":"r","finish_reason":{"type":"length","length":16},"prompt_tokens":120,"weight_version":"default","completion_tokens":%d,"cached_tokens":64,"e2e_latency":0.5}`
	for name, test := range map[string]struct {
		answer         string
		prompt, cached int
	}{
		"whole":             {`{"text":"yes","output_ids":[1],` + fmt.Sprintf(meta, 16) + `}`, 120, 64},
		"streamed":          {`data: {"text":"y",` + fmt.Sprintf(meta, 1) + "}\n\ndata: {\"text\":\"yes\"," + fmt.Sprintf(meta, 2) + "}\n\ndata: [DONE]\n\n", 120, 64},
		"text that says so": {`{"text":"\"meta_info\":{\"prompt_tokens\":1}",` + fmt.Sprintf(meta, 16) + `}`, 120, 64},
		"without a cache":   {`{"meta_info":{"prompt_tokens":12}}`, 12, -1},
		"embeddings":        {`{"embedding":[0.5],"meta_info":{"id":"r","prompt_tokens":12,"cached_tokens":0}}`, 12, 0},
	} {
		t.Run(name, func(t *testing.T) {
			answer := []byte(test.answer)
			u := scannedMeta(answer)
			require.Equal(t, usage{seen: true, prompt: test.prompt, cached: test.cached, one: true}, u)
			for i := range answer {
				require.Equal(t, u, scannedMeta(answer[:i], answer[i:]), "cut at %d", i)
			}
			for size := 1; size <= 40; size++ {
				s := usageScanner{meta: true}
				for rest := answer; len(rest) > 0; rest = rest[min(size, len(rest)):] {
					s.write(rest[:min(size, len(rest))])
				}
				require.Equal(t, u, s.last, "pieces of %d", size)
			}
			require.Equal(t, usage{}, scanned(answer), "it is no usage")
		})
	}
	require.Equal(t, usage{}, scannedMeta([]byte(`{"usage":{"prompt_tokens":1},"meta_info":null}`)))
}

// oracleAnswer is an answer, or one event of one, as encoding/json reads it.
type oracleAnswer struct {
	Usage    *oracleUsage
	Message  *oracleAnswer
	Response *oracleAnswer
}

type oracleUsage struct {
	Prompt        *int           `json:"prompt_tokens"`
	PromptDetails *oracleDetails `json:"prompt_tokens_details"`
	Input         *int           `json:"input_tokens"`
	InputDetails  *oracleDetails `json:"input_tokens_details"`
	Read          *int           `json:"cache_read_input_tokens"`
}

type oracleDetails struct {
	Cached *int `json:"cached_tokens"`
}

// oracle reads an answer as one would who has all of it, and time.
func oracle(t require.TestingT, answer []byte) usage {
	u := usage{}
	for _, document := range documents(answer) {
		var a oracleAnswer
		require.NoError(t, json.Unmarshal(document, &a))
		for _, part := range []*oracleAnswer{&a, a.Message, a.Response} {
			if part == nil || part.Usage == nil {
				continue
			}
			said := part.Usage
			if !u.seen && (said.Prompt != nil || said.Input != nil) {
				u = usage{seen: true, cached: -1}
			}
			if said.Input != nil {
				u.input = *said.Input
				u.prompt = u.input
			}
			if said.Read != nil {
				u.read, u.cached = *said.Read, *said.Read
				u.prompt = u.input + u.read
			}
			if said.Prompt != nil {
				u.prompt = *said.Prompt
			}
			for _, details := range []*oracleDetails{said.PromptDetails, said.InputDetails} {
				if details != nil && details.Cached != nil {
					u.cached = *details.Cached
				}
			}
		}
	}
	return u
}

// documents returns the JSON documents in an answer: its events, or all of it.
func documents(answer []byte) [][]byte {
	if answer[0] == '{' {
		return [][]byte{answer}
	}
	var list [][]byte
	for line := range bytes.Lines(answer) {
		data, found := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: "))
		if found && string(data) != "[DONE]" {
			list = append(list, data)
		}
	}
	return list
}

// recorded are answers of a real engine, vLLM 0.32.0, and what it counted.
var recorded = map[string]usage{
	"vllm-chat.json":                         {prompt: 190, cached: 0},
	"vllm-chat-stream.txt":                   {prompt: 411, cached: 288},
	"vllm-chat-image.json":                   {prompt: 173, cached: 0},
	"vllm-chat-batch.json":                   {prompt: 376, cached: -1},
	"vllm-completions.json":                  {prompt: 33, cached: 32},
	"vllm-completions-stream.txt":            {prompt: 276, cached: 0},
	"vllm-completions-stream-continuous.txt": {prompt: 40, cached: 0},
	"vllm-generate.json":                     {prompt: 188, cached: 160},
	"vllm-generate-stream.txt":               {prompt: 188, cached: 160},
	"vllm-responses.json":                    {prompt: 188, cached: 160},
	"vllm-messages.json":                     {prompt: 188, cached: 160},
}

func TestUsageOfRealAnswersIsReadHoweverTheyAreCut(t *testing.T) {
	files, err := filepath.Glob("testdata/usage/*")
	require.NoError(t, err)
	require.Len(t, files, len(recorded))
	for name, expected := range recorded {
		t.Run(name, func(t *testing.T) {
			answer, err := os.ReadFile(filepath.Join("testdata", "usage", name))
			require.NoError(t, err)
			said := oracle(t, answer)
			require.True(t, said.seen)
			require.Equal(t, expected.prompt, said.prompt)
			require.Equal(t, expected.cached, said.cached)
			require.Equal(t, said, scanned(answer))
			for i := range answer {
				require.Equal(t, said, scanned(answer[:i], answer[i:]), "cut at %d", i)
			}
			requireAnyCut(t, answer, said)
		})
	}
}

// requireAnyCut checks pieces of one size, for many sizes, and of random ones.
func requireAnyCut(t *testing.T, answer []byte, expected usage) {
	t.Helper()
	for size := 1; size <= 40; size++ {
		var pieces [][]byte
		for rest := answer; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			pieces = append(pieces, rest[:min(size, len(rest))])
		}
		require.Equal(t, expected, scanned(pieces...), "pieces of %d", size)
	}
	random := rand.New(rand.NewPCG(3, 3))
	for range tries(20, 2000) {
		pieces := [][]byte{nil}
		for rest := answer; len(rest) > 0; {
			n := min(len(rest), random.IntN(1+random.IntN(300)))
			pieces = append(pieces, rest[:n])
			rest = rest[n:]
		}
		require.Equal(t, expected, scanned(pieces...))
	}
}

func TestUsageIsReadInEveryForm(t *testing.T) {
	const chat = `{"prompt_tokens":120,"total_tokens":130,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":64}}`
	tests := map[string]struct {
		answer string
		prompt int
		cached int
	}{
		"details null":  {`{"usage":{"prompt_tokens":12,"total_tokens":13,"completion_tokens":1,"prompt_tokens_details":null}}`, 12, -1},
		"no details":    {`{"usage":{"prompt_tokens":12,"total_tokens":13,"completion_tokens":1}}`, 12, -1},
		"details first": {`{"usage":{"prompt_tokens_details":{"cached_tokens":8},"completion_tokens":1,"prompt_tokens":12}}`, 12, 8},
		"details in full": {`{"usage":{"prompt_tokens":12,"prompt_tokens_details":{"audio_tokens":0,"cached_tokens":8,"multimodal_tokens":{"image":4}},` +
			`"completion_tokens_details":{"reasoning_tokens":3}}}`, 12, 8},
		"spaces": {"{ \"usage\" :\t{\r\n \"prompt_tokens\" : 12 ,\n\"prompt_tokens_details\" : { \"cached_tokens\" :\n 8 } } }", 12, 8},
		"null in each event": {"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n" +
			"data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}],\"usage\":null}\n\n" +
			"data: {\"choices\":[],\"usage\":" + chat + "}\n\ndata: [DONE]\n\n", 120, 64},
		"null with a space":     {"data: {\"usage\": null}\n\ndata: {\"usage\": " + chat + "}\n\n", 120, 64},
		"null after the counts": {"data: {\"usage\":" + chat + "}\n\ndata: {\"usage\":null}\n\n", 120, 64},
		"running counts": {"data: {\"usage\":{\"prompt_tokens\":120,\"completion_tokens\":1}}\n\n" +
			"data: {\"usage\":{\"prompt_tokens\":120,\"completion_tokens\":2}}\n\n" +
			"data: {\"choices\":[],\"usage\":" + chat + "}\n\n", 120, 64},
		"SGLang without a cache report": {`{"usage":{"prompt_tokens":12,"total_tokens":13,"completion_tokens":1,"prompt_tokens_details":null,"reasoning_tokens":0},"metadata":{"weight_version":"default"}}`, 12, -1},
		"SGLang with a cache report":    {`{"usage":{"prompt_tokens":12,"total_tokens":13,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":11},"reasoning_tokens":0}}`, 12, 11},
		"messages, streamed": {"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"content\":[],\"usage\":{\"input_tokens\":28,\"output_tokens\":0,\"cache_read_input_tokens\":160}}}\n\n" +
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"yes\"}}\n\n" +
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\n", 188, 160},
		"messages, counted at the end": {"data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":188,\"output_tokens\":0}}}\n\n" +
			"data: {\"type\":\"message_delta\",\"usage\":{\"input_tokens\":28,\"output_tokens\":4,\"cache_read_input_tokens\":160}}\n\n", 188, 160},
		"messages, the cache told once": {"data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":28,\"output_tokens\":0,\"cache_read_input_tokens\":160}}}\n\n" +
			"data: {\"type\":\"message_delta\",\"usage\":{\"input_tokens\":28,\"output_tokens\":4}}\n\n", 188, 160},
		"responses, streamed": {"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"status\":\"in_progress\",\"usage\":null}}\n\n" +
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":188,\"input_tokens_details\":{\"cached_tokens\":160,\"cached_tokens_per_turn\":[1,2]},\"output_tokens\":4}}}\n\n", 188, 160},
		"embeddings":                      {`{"id":"embd-1","object":"list","created":1,"model":"m","data":[{"index":0,"object":"embedding","embedding":[0.5,-1.5e-2]}],"usage":{"prompt_tokens":12,"total_tokens":12,"completion_tokens":0,"prompt_tokens_details":null}}`, 12, -1},
		"scores":                          {`{"id":"score-1","object":"list","model":"m","data":[{"index":0,"object":"score","score":0.5}],"usage":{"prompt_tokens":14,"total_tokens":14}}`, 14, -1},
		"a ranking":                       {`{"id":"rerank-1","model":"m","usage":{"total_tokens":56,"prompt_tokens":56},"results":[{"index":0,"document":{"text":"\"usage\":{\"prompt_tokens\":1}"},"relevance_score":0.5}]}`, 56, -1},
		"text that quotes a usage":        {`{"choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":1}}"}}],"usage":` + chat + `}`, 120, 64},
		"text that quotes one at the end": {`{"usage":` + chat + `,"choices":[{"text":"\"usage\":{\"prompt_tokens\":1}"}]}`, 120, 64},
		"text that is the key":            {`{"choices":[{"text":"usage"},"usage"],"usage":` + chat + `}`, 120, 64},
		"a key that ends in usage":        {`{"usage":` + chat + `,"my_usage":{"prompt_tokens":1},"usage2":{"prompt_tokens":2}}`, 120, 64},
		"strings with braces":             {`{"usage":{"service_tier":"}\"}{","prompt_tokens":12,"note":"\\"}}`, 12, -1},
		"a tool's schema before":          {`{"tools":[{"properties":{"usage":{"type":"object","properties":{"prompt_tokens":{"type":"integer"}}}}}],"usage":` + chat + `}`, 120, 64},
		"an object that counts nothing":   {`{"usage":` + chat + `,"more":{"usage":{"seconds":5}}}`, 120, 64},
		"the same names elsewhere":        {`{"usage":{"prompt_tokens":12,"completion_tokens_details":{"prompt_tokens":7,"cached_tokens":7},"list":[{"prompt_tokens":9}]}}`, 12, -1},
		"a list of names":                 {`{"usage":{"prompt_tokens":12,"prompt_tokens_details":["cached_tokens",5]}}`, 12, -1},
		"details of something else":       {`{"usage":{"prompt_tokens":12,"last":{"prompt_tokens_details":{"cached_tokens":7},"cached_tokens":7}}}`, 12, -1},
		"more cached than there is":       {`{"usage":{"prompt_tokens":12,"prompt_tokens_details":{"cached_tokens":13}}}`, 12, 12},
		"negative":                        {`{"usage":{"prompt_tokens":12,"prompt_tokens_details":{"cached_tokens":-1}}}`, 12, -1},
		"a fraction":                      {`{"usage":{"prompt_tokens":12,"prompt_tokens_details":{"cached_tokens":1.5}}}`, 12, -1},
		"an exponent":                     {`{"usage":{"prompt_tokens":12,"prompt_tokens_details":{"cached_tokens":1e5}}}`, 12, -1},
		"the largest count":               {`{"usage":{"prompt_tokens":1073741824}}`, maxCount, -1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			answer := []byte(test.answer)
			u := scanned(answer)
			require.True(t, u.seen)
			require.Equal(t, test.prompt, u.prompt)
			require.Equal(t, test.cached, u.cached)
			for i := range answer {
				require.Equal(t, u, scanned(answer[:i], answer[i:]), "cut at %d", i)
			}
			requireAnyCut(t, answer, u)
		})
	}
}

func TestWhatIsNoUsageIsNotTakenForOne(t *testing.T) {
	for _, answer := range []string{
		``, `{}`, `"usage"`, `"usage":`, `"usage":{`, `"usage":{}`, `"usage":null`, `"usage":7`, `"usage":"x"`,
		`"usage":[{"prompt_tokens":1}]`, `"usage"{"prompt_tokens":1}`, `"usage"::{"prompt_tokens":1`, `"usage":{"prompt_tokens":1`,
		`"usage":{"prompt_tokens":-1}`, `"usage":{"prompt_tokens":"1"}`, `"usage":{"prompt_tokens":1.0}`, `"usage":{"prompt_tokens":null}`,
		`"usage":{"prompt_tokens":1073741825}`, `"usage":{"prompt_tokens":99999999999999999999999999}`,
		`"usage":{"prompt_tokens":[1]}`, `"usage":{"prompt_tokens":{"n":1}}`, `"usage":{"a":"prompt_tokens","b":1}`,
		`"usage":{"completion_tokens":5}`, `"usage":{"output_tokens":5}`, `"usage":{"prompt_tokens_details":{"cached_tokens":1}}`,
		`"Usage":{"prompt_tokens":1}`, `'usage':{"prompt_tokens":1}`, `usage:{"prompt_tokens":1}`, `\"usage\":{"prompt_tokens":1}`,
		`{"content":"\"usage\":{\"prompt_tokens\":1}"}`,
	} {
		require.Equal(t, usage{}, scanned([]byte(answer)), answer)
		for i := range answer {
			require.Equal(t, usage{}, scanned([]byte(answer[:i]), []byte(answer[i:])), "%s cut at %d", answer, i)
		}
	}
}

func TestAKeyIsNotMadeOfPiecesThatAreApart(t *testing.T) {
	u := scanned([]byte(`... "us`), []byte(`less", "usage":{"prompt_tokens":5}`), []byte(`age":{"prompt_tokens":9}`))
	require.Equal(t, 5, u.prompt)
}

func TestAUsageBeyondTheLimitIsNotKept(t *testing.T) {
	const object = `:{"prompt_tokens":5,"padding":"%s"}`
	room := maxUsage - len(fmt.Sprintf(object, ""))
	for padding, seen := range map[int]bool{room - 1: true, room: true, room + 1: false, 100 * room: false} {
		answer := []byte(`{"usage"` + fmt.Sprintf(object, strings.Repeat("x", padding)) + "}")
		for _, size := range []int{len(answer), 1, 7, maxUsage, maxUsage + 8} {
			var s usageScanner
			for rest := answer; len(rest) > 0; rest = rest[min(size, len(rest)):] {
				s.write(rest[:min(size, len(rest))])
				require.LessOrEqual(t, len(s.object), maxUsage)
				require.LessOrEqual(t, cap(s.object), 2*maxUsage)
			}
			require.Equal(t, seen, s.last.seen, "%d bytes of padding, pieces of %d", padding, size)
			s.write([]byte(`{"usage":{"prompt_tokens":6}}`))
			require.Equal(t, 6, s.last.prompt, "the one after it")
		}
	}
}

// streamed is a chat streamed in n events, as vLLM writes them. each says what
// the events say of usage.
func streamed(n int, each string) [][]byte {
	events := make([][]byte, 0, n+2)
	for i := range n {
		events = append(events, fmt.Appendf(nil, `data: {"id":"chatcmpl-b3ec7f14e4d71b4d","object":"chat.completion.chunk","created":1795988832,"model":"m1",`+
			`"choices":[{"index":0,"delta":{"content":" word%d"},"logprobs":null,"finish_reason":null}]%s}`+"\n\n", i, each))
	}
	return append(events,
		[]byte(`data: {"id":"chatcmpl-b3ec7f14e4d71b4d","choices":[],"usage":{"prompt_tokens":411,"total_tokens":451,"completion_tokens":40,"prompt_tokens_details":{"cached_tokens":288}}}`+"\n\n"),
		[]byte("data: [DONE]\n\n"))
}

var streams = map[string]string{
	"no usage": ``,
	"null":     `,"usage":null`,
	"counts":   `,"usage":{"prompt_tokens":411,"total_tokens":412,"completion_tokens":1}`,
}

func TestAStreamIsScannedWithoutAllocations(t *testing.T) {
	for _, each := range streams {
		events := streamed(300, each)
		var cut [][]byte // each object in two pieces
		for _, e := range events {
			cut = append(cut, e[:len(e)-min(20, len(e))], e[len(e)-min(20, len(e)):])
		}
		for _, pieces := range [][][]byte{events, cut} {
			var s usageScanner
			scan := func() {
				for _, p := range pieces {
					s.write(p)
				}
			}
			scan()
			requireNoAllocations(t, 10, scan)
			require.Equal(t, 411, s.last.prompt)
			require.Equal(t, 288, s.last.cached)
		}
	}
}

func FuzzUsage(f *testing.F) {
	for name := range recorded {
		answer, err := os.ReadFile(filepath.Join("testdata", "usage", name))
		require.NoError(f, err)
		f.Add(answer, []byte{1, 7, 100, 3})
	}
	f.Add([]byte(`{"usage":{"a":"\"}","prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":1}},"usage":null}`), []byte{2, 5})
	f.Fuzz(func(t *testing.T, answer, cuts []byte) {
		whole := scanned(answer)
		var s usageScanner
		rest := answer
		for i := 0; len(rest) > 0; i++ {
			n := len(rest)
			if len(cuts) > 0 {
				n = min(n, int(cuts[i%len(cuts)]))
			}
			if n == 0 && i > len(cuts) {
				n = 1
			}
			s.write(rest[:n])
			rest = rest[n:]
			require.LessOrEqual(t, cap(s.object), 2*maxUsage)
		}
		require.Equal(t, whole, s.last)
		require.LessOrEqual(t, whole.cached, whole.prompt)
		require.GreaterOrEqual(t, whole.prompt, 0)
		require.LessOrEqual(t, whole.prompt, 2*maxCount)

		// Behind anything at all that is not itself in the middle of an object, a
		// usage object is found.
		if !s.inside {
			s.write([]byte(`{"usage":{"prompt_tokens":123,"prompt_tokens_details":{"cached_tokens":45}}}`))
			require.Equal(t, 123, s.last.prompt)
			require.Equal(t, 45, s.last.cached)
		}
	})
}

// FuzzReadCounts compares the counts of any object that is JSON with what
// encoding/json finds in it.
func FuzzReadCounts(f *testing.F) {
	f.Add([]byte(`{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":1},"x":[1,{"prompt_tokens":2}]}`))
	f.Add([]byte(`{"input_tokens": 5, "cache_read_input_tokens":7, "s":"a\"b", "t":[true,-1.5e9]}`))
	f.Fuzz(func(t *testing.T, object []byte) {
		c := readCounts(object)
		var m map[string]json.RawMessage
		if json.Unmarshal(object, &m) != nil || bytes.Contains(object, []byte(`\u`)) {
			return
		}
		for key, n := range map[string]int{"prompt_tokens": c.prompt, "input_tokens": c.input, "cache_read_input_tokens": c.read} {
			var expected int
			if raw := m[key]; n >= 0 && bytes.Count(object, []byte(key)) == 1 {
				require.NoError(t, json.Unmarshal(raw, &expected), "%s is taken for a count", raw)
				require.Equal(t, expected, n)
			}
			if raw := m[key]; n < 0 && json.Unmarshal(raw, &expected) == nil && string(raw) != "null" {
				require.True(t, raw[0] == '-' || expected > maxCount, "%s is not taken for a count", raw)
			}
		}
	})
}

func BenchmarkUsage(b *testing.B) {
	for name, each := range streams {
		b.Run("stream/"+name, func(b *testing.B) {
			events := streamed(300, each)
			size := 0
			for _, e := range events {
				size += len(e)
			}
			var s usageScanner
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				for _, e := range events {
					s.write(e)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(events)), "ns/event")
		})
	}
	answer, err := os.ReadFile("testdata/usage/vllm-chat.json")
	require.NoError(b, err)
	b.Run("whole", func(b *testing.B) {
		b.SetBytes(int64(len(answer)))
		b.ReportAllocs()
		for b.Loop() {
			var s usageScanner
			s.write(answer)
		}
	})
}
