package inference

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestKeptBuffersNeverMixBodies sends bodies of which each has a letter of its own to
// engines that answer before they read, that read slowly, that refuse and that cut
// the connection off, and looks for a foreign letter in what arrives.
func TestKeptBuffersNeverMixBodies(t *testing.T) {
	var mixed, whole atomic.Int64
	var addresses []string
	for i := range 4 {
		engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost {
				return
			}
			control := http.NewResponseController(w)
			_ = control.EnableFullDuplex()
			switch rand.IntN(5) {
			case 0: // answer first
				fmt.Fprint(w, `{"usage":{"prompt_tokens":9}}`)
				_ = control.Flush()
			case 1: // read slowly
				time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
			case 2: // refuse, and read what comes all the same
				w.WriteHeader(http.StatusTooManyRequests)
				_ = control.Flush()
			case 3:
				if i%2 == 0 { // be gone in the middle
					_, _ = io.CopyN(io.Discard, r.Body, 3000)
					panic(http.ErrAbortHandler)
				}
			}
			body, err := io.ReadAll(r.Body)
			_, text, found := bytes.Cut(body, []byte(`"prompt":"`))
			if found && len(bytes.Trim(text, string(text[:1]))) > len(`"}`) {
				mixed.Add(1)
			}
			if err == nil {
				whole.Add(1)
			}
		}))
		t.Cleanup(engine.Close)
		addresses = append(addresses, engine.Listener.Addr().String())
	}
	s := startSite(t, "lb_policy cache_aware\nlb_retries 3", addresses...)
	var group sync.WaitGroup
	for client := range 16 {
		group.Go(func() {
			random := rand.New(rand.NewPCG(uint64(client), 0))
			for range 60 {
				letter := string(rune('a' + random.IntN(26)))
				body := `{"prompt":"` + strings.Repeat(letter, 3000+random.IntN(60_000)) + `"}`
				response, err := s.client.Post(s.url+"/v1/completions", "application/json", strings.NewReader(body))
				if err != nil {
					continue // an engine that is gone, or answered and left
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
		})
	}
	group.Wait()
	require.Zero(t, mixed.Load(), "bodies arrived with bytes of others")
	require.Positive(t, whole.Load())
	requireIdle(t)
}
