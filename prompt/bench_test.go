package prompt

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// counter is the cheapest writer there is.
type counter struct{ bytes, writes int64 }

func (c *counter) Write(b []byte) (int, error) {
	c.bytes += int64(len(b))
	c.writes++
	return len(b), nil
}

var benchSizes = []struct {
	name string
	size int
}{{"200B", 200}, {"2KiB", 2 << 10}, {"16KiB", 16 << 10}, {"128KiB", 128 << 10}, {"1MiB", 1 << 20}}

var benchTexts = []string{"english", "chinese", "agent", "escaped"}

// benchText returns JSON string content of about size bytes.
func benchText(rnd *rand.Rand, text string, size int) string {
	var b strings.Builder
	words := strings.Fields("the quick model reads a prompt and then it answers with some words that follow from what was said before")
	for b.Len() < size {
		switch text {
		case "english":
			b.WriteString(words[rnd.IntN(len(words))])
			b.WriteByte(' ')
		case "chinese":
			b.WriteString(string(rune(0x4e00 + rnd.IntN(0x2000))))
		case "agent":
			fmt.Fprintf(&b, `    if %s == \"%s\" {\n\t\treturn %d\n}\n`, words[rnd.IntN(len(words))], words[rnd.IntN(len(words))], rnd.IntN(1000))
		case "escaped":
			fmt.Fprintf(&b, `\u%04x`, 0x4e00+rnd.IntN(0x2000))
		}
	}
	return b.String()
}

// benchBody is a chat of about size bytes: a system message of a third of it, then turns.
func benchBody(text string, size int) []byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	fmt.Fprintf(&b, `{"model":"llama-3.1-70b","stream":true,"messages":[{"role":"system","content":"%s"}`, benchText(rnd, text, max(size/3-60, 10)))
	for turn := 0; b.Len() < size-60; turn++ {
		fmt.Fprintf(&b, `,{"role":"%s","content":"%s"}`, []string{"user", "assistant"}[turn%2], benchText(rnd, text, min(size-60-b.Len(), max(size/8, 40))))
	}
	b.WriteString(`],"temperature":0.7,"max_tokens":512}`)
	return []byte(b.String())
}

func forEachBody(b *testing.B, run func(b *testing.B, body []byte)) {
	for _, text := range benchTexts {
		for _, size := range benchSizes {
			b.Run(fmt.Sprintf("text=%s/size=%s", text, size.name), func(b *testing.B) {
				body := benchBody(text, size.size)
				require.True(b, json.Valid(body) && utf8.Valid(body))
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				run(b, body)
			})
		}
	}
}

func BenchmarkParse(b *testing.B) {
	forEachBody(b, func(b *testing.B, body []byte) {
		var p Prompt
		for b.Loop() {
			Parse(&p, "/v1/chat/completions", body)
		}
	})
}

func BenchmarkWriteTo(b *testing.B) {
	forEachBody(b, func(b *testing.B, body []byte) {
		var p Prompt
		Parse(&p, "/v1/chat/completions", body)
		var w counter
		for b.Loop() {
			if _, err := p.WriteTo(&w); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(w.writes)/float64(b.N), "writes/op")
	})
}

// otherBodies are those that are not mostly message text.
func otherBodies() map[string]struct {
	path string
	body []byte
} {
	rnd := rand.New(rand.NewPCG(3, 4))
	var ids, tools strings.Builder
	for range 24_000 {
		fmt.Fprintf(&ids, ",%d", rnd.IntN(150_000))
	}
	for i := range 80 {
		fmt.Fprintf(&tools, `,{"type":"function","function":{"name":"tool_%d","description":"%s","parameters":{"type":"object","properties":{`, i, benchText(rnd, "english", 400))
		for j := range 8 {
			fmt.Fprintf(&tools, `"field_%d":{"type":"string","description":"%s","enum":["a","b","c"]},`, j, benchText(rnd, "english", 60))
		}
		tools.WriteString(`"last":{"type":"integer","minimum":0}},"required":["field_0","field_1"]}}}`)
	}
	toolBody := `{"model":"m","tools":[` + tools.String()[1:] + `],"messages":[{"role":"user","content":"hi"}]}`
	return map[string]struct {
		path string
		body []byte
	}{
		"ids=24k":       {"/v1/completions", []byte(`{"model":"m","prompt":[` + ids.String()[1:] + `]}`)},
		"ids=24kSpaced": {"/v1/completions", []byte(`{"model":"m","prompt":[` + strings.ReplaceAll(ids.String()[1:], ",", ", ") + `]}`)},
		"image=8MB":     {"/v1/chat/completions", []byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("iVBORw0KGgo1", 700_000) + `"}}]}]}`)},
		"skipped=8MB":   {"/v1/embeddings", []byte(`{"model":"m","input":"` + strings.Repeat("iVBORw0KGgo1", 700_000) + `"}`)},
		"tools=80":      {"/v1/chat/completions", []byte(toolBody)},
		"tools=80Loose": {"/v1/chat/completions", []byte(strings.ReplaceAll(strings.ReplaceAll(toolBody, `":`, `": `), `,"`, `, "`))},
		"messages=2000": {"/v1/chat/completions", []byte(`{"messages":[` + strings.Repeat(`{"role":"user","content":"hello there"},`, 1999) + `{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}]}`)},
	}
}

func BenchmarkOtherBodies(b *testing.B) {
	for name, body := range otherBodies() {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body.body)))
			b.ReportAllocs()
			var p Prompt
			var w counter
			for b.Loop() {
				Parse(&p, body.path, body.body)
				if _, err := p.WriteTo(&w); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
