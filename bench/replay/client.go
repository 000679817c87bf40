package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// client sends the requests of a trace to a router, streaming, as the OpenAI
// libraries do.
type client struct {
	http  *http.Client
	api   api
	model string // as JSON
}

func newClient(a api, model string) *client {
	name, _ := json.Marshal(model) // of a string, this cannot fail
	return &client{
		http: &http.Client{Transport: &http.Transport{
			MaxIdleConns:        4096,
			MaxIdleConnsPerHost: 4096,
			IdleConnTimeout:     30 * time.Second,
			DisableCompression:  true,
		}},
		api:   a,
		model: string(name),
	}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// api is how a prompt is put into a request's body.
type api struct {
	path          string
	before, after string // of the prompt's text
}

// apis are the endpoints that can be replayed to. A trace does not say where its
// messages end: a chat has one.
var apis = map[string]api{
	"completions": {path: "/v1/completions", before: `"prompt":"`, after: `"`},
	"chat":        {path: "/v1/chat/completions", before: `"messages":[{"role":"user","content":"`, after: `"}]`},
}

// answer is what a client saw of one request.
type answer struct {
	first, whole time.Duration // from the moment it was due, in real time
	late         time.Duration // of these, what this program was late
	prompt       int           // tokens, as the engine counts them; 0 if it does not say
	cached       int           // of these, found in its cache
	events       int
	err          error
}

// body returns a request's body, to be read any number of times, and its length.
func (c *client) body(r *trace.Request) (length int64, body func() io.ReadCloser) {
	output := max(r.Output, 1) // less is refused
	head := fmt.Sprintf(`{"model":%s,"max_tokens":%d,"min_tokens":%d,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},%s`,
		c.model, output, output, c.api.before)
	tail := c.api.after + "}"
	length = int64(len(head) + r.Prompt().Len() + len(tail))
	return length, func() io.ReadCloser {
		return io.NopCloser(io.MultiReader(strings.NewReader(head), r.Prompt(), strings.NewReader(tail)))
	}
}

// send sends one request, which was due at a time, and reads its answer to the end.
func (c *client) send(ctx context.Context, url string, r *trace.Request, due time.Time) (a answer) {
	a.late = time.Since(due)
	length, body := c.body(r)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+c.api.path, body())
	if err != nil {
		a.err = err
		return a
	}
	request.GetBody = func() (io.ReadCloser, error) { return body(), nil }
	request.ContentLength = length
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		a.err = err
		return a
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		a.err = fmt.Errorf("status %d: %s", response.StatusCode, text)
		return a
	}
	a.err = a.read(response.Body, due)
	a.whole = time.Since(due)
	io.Copy(io.Discard, response.Body) //nolint:errcheck // so that the connection can be used again
	return a
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 16<<10) }}

// read reads a stream of server-sent events up to its [DONE].
func (a *answer) read(body io.Reader, due time.Time) error {
	reader := readers.Get().(*bufio.Reader)
	reader.Reset(body)
	defer readers.Put(reader)
	for {
		line, err := reader.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return errors.New("the answer breaks off")
		}
		if err != nil {
			return fmt.Errorf("reading the answer: %w", err)
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		switch {
		case !ok:
			continue
		case bytes.HasPrefix(data, []byte("[DONE]")):
			return nil
		case a.events == 0:
			a.first = time.Since(due)
		}
		a.events++
		if bytes.Contains(data, []byte(`"usage":{`)) {
			if err := a.readUsage(data); err != nil {
				return err
			}
		}
	}
}

// readUsage reads what an engine counted.
func (a *answer) readUsage(event []byte) error {
	var e struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(event, &e); err != nil {
		return fmt.Errorf("reading usage: %w", err)
	}
	a.prompt, a.cached = e.Usage.Prompt, e.Usage.Details.Cached
	return nil
}
