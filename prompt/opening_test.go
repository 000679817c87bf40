package prompt

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// openingOf returns the part of a body's key stream that is its opening.
func openingOf(t testing.TB, path, body string, most int) string {
	t.Helper()
	var p Prompt
	stream := streamOf(t, &p, path, []byte(body))
	n := p.Opening(most)
	require.LessOrEqual(t, n, len(stream))
	return stream[:n]
}

func TestTheOpeningIsAllBeforeTheFirstUserAndTheBeginningOfWhatTheyAsk(t *testing.T) {
	const tool = `"tools":[{"type":"function","function":{"name":"f","parameters":{"a":1}}}]`
	const toolStream = `"Of"P{"a":1}`
	for _, test := range []struct {
		name, path, body string
		most             int
		want             string
	}{
		{"short question", chatPath, `{"messages":[{"role":"user","content":"hi"}]}`, 100, `"Ruser"Thi`},
		{"long question", chatPath, `{"messages":[{"role":"user","content":"hello you"}]}`, 13, `"Ruser"Thello`},
		{"cut in its frame", chatPath, `{"messages":[{"role":"user","content":"hello"}]}`, 7, `"Ruser"`},
		{"nothing of it", chatPath, `{"messages":[{"role":"system","content":"s"},{"role":"user","content":"hello"}]}`, 0, `"Rsystem"Ts`},
		{"system text and tools count whole", chatPath, `{"messages":[{"role":"system","content":"` + strings.Repeat("s", 5000) + `"},{"role":"user","content":"hello"}],` + tool + `}`, 8, toolStream + `"Rsystem"T` + strings.Repeat("s", 5000) + `"Ruser"T`},
		{"what steers the template", chatPath, `{"messages":[{"role":"user","content":"hi"}],"reasoning_effort":"low"}`, 100, `"Hreasoning_effort"V"low""Ruser"Thi`},
		{"what comes after the question does not", chatPath, `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yes"},{"role":"user","content":"and"}]}`, 100, `"Ruser"Thi`},
		{"a greeting before it counts", chatPath, `{"messages":[{"role":"assistant","content":"Hello!"},{"role":"user","content":"hi"}]}`, 100, `"Rassistant"THello!"Ruser"Thi`},
		{"the role is spelled otherwise", chatPath, `{"messages":[{"role":"system","content":"s"},{"role":"\u0075s\u0065r","content":"hi"},{"role":"user","content":"no"}]}`, 100, `"Rsystem"Ts"Ruser"Thi`},
		{"a name like it is none", chatPath, `{"messages":[{"role":"\u0075sed","content":"s"},{"role":"user","content":"hi"}]}`, 100, `"Rused"Ts"Ruser"Thi`},
		{"no user at all", chatPath, `{"messages":[{"role":"human","content":"hi"},{"role":"bot","content":"yes"}],` + tool + `}`, 100, toolStream + `"Rhuman"Thi`},
		{"no messages", chatPath, `{"messages":[],` + tool + `}`, 100, toolStream},
		{"Anthropic's system text", messagesPath, `{"messages":[{"role":"user","content":"hello"}],"system":"s"}`, 9, `"Rsystem"Ts"Ruser"Th`},
		{"a bare question of the responses API", "/v1/responses", `{"input":"hello","instructions":"s"}`, 9, `"Rsystem"Ts"Ruser"Th`},
		{"items of the responses API", "/v1/responses", `{"input":[{"role":"user","content":"hello"},{"role":"assistant","content":"yes"}]}`, 100, `"Ruser"Thello`},
		{"SGLang's own API", "/generate", `{"text":"hello"}`, 4, `"The`},
		{"bare text", completionsPath, `{"prompt":"hello"}`, 4, `"The`},
		{"bare token ids", completionsPath, `{"prompt":[1, 23, 4]}`, 6, `"i1,23`},
		{"bare text after what steers it", completionsPath, `{"prompt":"hello","add_special_tokens":false}`, 4, `"Hadd_special_tokens"Vfalse"The`},
		{"nothing", chatPath, `{}`, 100, ``},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, test.want, openingOf(t, test.path, test.body, test.most))
		})
	}
}

// TestTheOpeningStaysAsTheConversationGoesOn adds turns to conversations with first
// messages of all lengths, and spells each turn another way.
func TestTheOpeningStaysAsTheConversationGoesOn(t *testing.T) {
	random := rand.New(rand.NewPCG(71, 72))
	for range tries(300, 30_000) {
		m := maker{random}
		most := random.IntN(300)
		head := m.head(unordered{})
		messages := []any{
			unordered{{"role", "system"}, {"content", m.text()}},
			unordered{{"role", "user"}, {"content", m.text()}},
		}
		first := openingOf(t, chatPath, spell(random, append(head, member{"messages", messages})), most)
		for range 3 {
			messages = append(messages, m.message())
			body := spell(random, append(head, member{"messages", messages}))
			require.Equal(t, first, openingOf(t, chatPath, body, most), body)
		}
	}
}

// TestTheOpeningDoesNotLookAtContents takes the content of a message away after it was
// parsed.
func TestTheOpeningDoesNotLookAtContents(t *testing.T) {
	const before = `{"messages":[{"role":"user","content":"`
	var p Prompt
	Parse(&p, chatPath, []byte(before+strings.Repeat(`\u00e9\n`, 1<<20)+`"}]}`))
	p.scan.body = p.scan.body[:len(before)]
	require.Equal(t, 1024, p.Opening(1024))
	require.Zero(t, testing.AllocsPerRun(100, func() { p.Opening(1024) }))
}
