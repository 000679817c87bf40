package enginesim

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTokenizeGivesTheIDsThatEventsTell(t *testing.T) {
	chat := fmt.Sprintf(`{"tools":[{"a":1}],"messages":[{"role":"system","content":%q},
		{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"https://example.com/a"}},{"type":"text","text":"y"}]}]`, english)
	text := fmt.Sprintf(`{"prompt":%q`, english)
	for _, shape := range shapes {
		for path, body := range map[string]string{"/v1/chat/completions": chat, "/v1/completions": text} {
			s := publishingServer(t, publishing(shape))
			sub := subscribe(t, s, 0)
			require.Equal(t, 200, post(s, path, body+`,"max_tokens":1}`).Code)
			stored := sub.next().batch.events[0].tokens
			for _, page := range []string{"/tokenize", "/v1/tokenize"} {
				var got tokenized
				decodeAnswer(t, post(s, page, body+`}`), &got)
				require.Equal(t, got.Tokens[:got.Count/16*16], stored, "%s %s", shape, page)
				require.Equal(t, s.opts.MaxModelLen, got.MaxModelLen)
			}
		}
	}
}

func TestTokenizeTakesAListWhereSGLangDoes(t *testing.T) {
	s := instantServer(t)
	one, two := pieceID("one", 0, 3), pieceID("two", 0, 3)
	require.JSONEq(t, fmt.Sprintf(`{"tokens":[[%d],[%d]],"count":[1,1],"max_model_len":131072}`, one, two),
		post(s, "/v1/tokenize", `{"prompt":["one","two"]}`).Body.String())
	require.JSONEq(t, fmt.Sprintf(`{"tokens":[[%d]],"count":[1],"max_model_len":131072}`, one),
		post(s, "/v1/tokenize", `{"prompt":["one"]}`).Body.String())
	for path, body := range map[string]string{"/tokenize": `{"prompt":["one"]}`, "/v1/tokenize": `{"prompt":[1]}`} {
		w := post(s, path, body)
		require.Equal(t, 400, w.Code)
		require.Contains(t, w.Body.String(), "prompt must be a text")
	}
}
