package enginesim

import (
	"encoding/json/v2"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rendered is the prompt of a conversation given as JSON.
func rendered(t *testing.T, body string) prompt {
	t.Helper()
	var c conversation
	require.NoError(t, json.Unmarshal([]byte(body), &c, lenient))
	p, err := c.render()
	require.NoError(t, err)
	return p
}

func TestContinuedConversationExtendsTheEarlierOnesIDs(t *testing.T) {
	turns := []string{
		`{"role":"system","content":"Be brief."}`,
		`{"role":"user","content":"What is a prefix?"}`,
		`{"role":"assistant","content":"the part that comes first"}`,
		`{"role":"user","content":[{"type":"text","text":"And"},{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}]}`,
		`{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]}`,
		`{"role":"tool","tool_call_id":"c1","content":"42"}`,
	}
	tools := `[{"type":"function","function":{"name":"f","parameters":{}}}]`
	var before []uint32
	for n := 1; n <= len(turns); n++ {
		p := rendered(t, fmt.Sprintf(`{"tools":%s,"messages":[%s],"add_generation_prompt":false}`, tools, strings.Join(turns[:n], ",")))
		require.Greater(t, len(p.ids), len(before))
		require.True(t, slices.Equal(before, p.ids[:len(before)]), "turn %d", n)
		before = p.ids
	}
}

func TestAnswerFollowsTheGenerationPrompt(t *testing.T) {
	question := rendered(t, `{"messages":[{"role":"user","content":"Hello"}]}`)
	answer, id := word(7, 0)
	next := rendered(t, `{"messages":[{"role":"user","content":"Hello"},{"role":"assistant","content":"`+answer+`"},{"role":"user","content":"Go on"}]}`)
	require.Equal(t, append(slices.Clone(question.ids), id, messageEnd), next.ids[:len(question.ids)+2])
}

func TestWhatChangesThePromptSetsItApart(t *testing.T) {
	const plain = `{"messages":[{"role":"user","content":"Hello"}]}`
	bodies := []string{
		plain,
		`{"messages":[{"role":"system","content":"Hello"}]}`,
		`{"messages":[{"role":"user","content":"Hello","name":"Ann"}]}`,
		`{"tools":[{"a":1,"b":2}],"messages":[{"role":"user","content":"Hello"}]}`,
		`{"tools":[{"b":2,"a":1}],"messages":[{"role":"user","content":"Hello"}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AB=="}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"AA=="}}]}]}`,
		`{"messages":[{"role":"user","content":"Hello"}],"continue_final_message":true}`,
		`{"messages":[{"role":"user","content":"Hello"}],"add_generation_prompt":false}`,
	}
	for i, a := range bodies {
		for _, b := range bodies[:i] {
			require.NotEqual(t, rendered(t, a), rendered(t, b), "%s\n%s", a, b)
		}
	}
	for _, same := range []string{
		`{ "messages" : [ {"content":"Hello", "role":"user"} ] , "temperature":1}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"Hello"}]}]}`,
		`{"messages":[{"role":"user","content":["Hello"]}]}`,
		`{"tools":[ ],"messages":[{"role":"user","content":"Hello"}]}`,
		`{"tools":null,"messages":[{"role":"user","content":"H\u0065llo"}]}`,
	} {
		require.Equal(t, rendered(t, plain).ids, rendered(t, same).ids, same)
	}
}

func TestClientsNameForAnImageStandsForIt(t *testing.T) {
	const body = `{"messages":[{"role":"user","content":[{"type":"image_url","uuid":%q,"image_url":{"url":%q}}]}]}`
	one := rendered(t, fmt.Sprintf(body, "cat", "https://example.com/1"))
	require.Equal(t, imageTokens, one.images)
	require.Equal(t, one, rendered(t, fmt.Sprintf(body, "cat", "https://example.com/2")))
	require.NotEqual(t, one, rendered(t, fmt.Sprintf(body, "dog", "https://example.com/1")))
}

func TestTextPartsAreJoinedByLineFeeds(t *testing.T) {
	parts := rendered(t, `{"messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}]}`)
	require.Equal(t, rendered(t, `{"messages":[{"role":"user","content":"one\ntwo"}]}`), parts)
}

func TestMalformedConversationsAreErrorsWithoutTheirText(t *testing.T) {
	for body, want := range map[string]string{
		`{"messages":[]}`:                     "at least one message",
		`{}`:                                  "at least one message",
		`{"messages":[{"content":"secret"}]}`: "message 0: role",
		`{"messages":[{"role":"user","content":5}]}`:                                                              "message 0: content must be",
		`{"messages":[{"role":"user","content":["secret",7]}]}`:                                                   "content part 1",
		`{"messages":[{"role":"user","content":"x"}],"continue_final_message":true,"add_generation_prompt":true}`: "cannot set both",
	} {
		var c conversation
		require.NoError(t, json.Unmarshal([]byte(body), &c, lenient))
		_, err := c.render()
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "secret")
	}
}
