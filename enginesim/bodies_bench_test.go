package enginesim

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// BenchmarkLongPrompt is what an engine does for a prompt that is new from its
// first word, apart from waiting: read, hash, parse, tokenize, chain, and make
// room for it in the cache.
func BenchmarkLongPrompt(b *testing.B) {
	for _, size := range []int{16 << 10, 140 << 10, 480 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			s := instantServer(b)
			w := &discard{header: http.Header{}}
			const number, words = "1000000000", " the cat sat and the dog ran for all day"
			text := strings.Repeat(words, size/len(words)+1)[:size]
			body := fmt.Appendf(nil, `{"prompt":"%s%s","max_tokens":16,"stream":true}`, number, text)
			at, n := bytes.Index(body, []byte(number)), int64(1e9)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				n++
				strconv.AppendInt(body[:at], n, 10)
				s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/completions", bytes.NewReader(body)))
			}
		})
	}
}
