package main

import (
	"fmt"
	"strings"
	"sync/atomic"
)

// shape is a JSON body with gaps for text.
type shape struct {
	parts  []string // what stands before each text, and behind the last
	shares []int    // of all text, that each gap takes
}

// paths are those of the APIs.
var paths = map[string]string{"chat": "/v1/chat/completions", "completions": "/v1/completions"}

const (
	system    = `{"model":"sim","messages":[{"role":"system","content":"`
	user      = `"},{"role":"user","content":"`
	assistant = `"},{"role":"assistant","content":"`
	prompt    = `{"model":"sim","prompt":"`

	// Of two messages there is room for in the smallest bodies.
	shortChat = 512
)

// streamTokens is how long a streamed answer is.
const streamTokens = 300

// shape is that of the cell's bodies.
func (c cell) shape() shape {
	end := `,"max_tokens":1}`
	if c.Load != answers {
		end = fmt.Sprintf(`,"max_tokens":%d,"stream":true,"stream_options":{"include_usage":true}}`, streamTokens)
	}
	switch {
	case c.API == "completions":
		return shape{[]string{prompt, `"` + end}, []int{1}}
	case c.Bytes < shortChat:
		return shape{[]string{system, user, `"}]` + end}, []int{1, 2}}
	default:
		return shape{[]string{system, user, assistant, user, `"}]` + end}, []int{3, 2, 4, 1}}
	}
}

// appendBody appends a body of size bytes.
func (s shape) appendBody(b []byte, size int, a *author) []byte {
	last := len(s.shares) - 1
	total, text := 0, size
	for i, part := range s.parts {
		text -= len(part)
		if i <= last {
			total += s.shares[i]
		}
	}
	left := text
	for i, share := range s.shares {
		n := text * share / total
		if i == last {
			n = left
		}
		left -= n
		b = append(b, s.parts[i]...)
		if i == 0 {
			b = a.appendBeginning(b, n)
		} else {
			b = a.appendText(b, n)
		}
	}
	return append(b, s.parts[last+1]...)
}

// head is that of the cell's requests to an address, with what the libraries send.
func (c cell) head(address string) string {
	return strings.Join([]string{
		"POST " + paths[c.API] + " HTTP/1.1",
		"Host: " + address,
		"Accept: application/json",
		"Content-Type: application/json",
		"User-Agent: OpenAI/Python 2.8.1",
		"Authorization: Bearer sk-0123456789abcdef0123456789abcdef",
		fmt.Sprintf("Content-Length: %d", c.Bytes),
	}, "\r\n") + "\r\n\r\n"
}

// source makes the bytes of a client's next request. They hold until the one after.
type source func() []byte

// hotSource sends the same few requests in turn, from one of them on.
func hotSource(requests [][]byte, from int) source {
	return func() []byte {
		from++
		return requests[from%len(requests)]
	}
}

// coldSource makes every request anew.
func (c cell) coldSource(address string, a *author) source {
	s, head := c.shape(), c.head(address)
	var b []byte
	return func() []byte {
		b = append(b[:0], head...)
		b = s.appendBody(b, c.Bytes, a)
		return b
	}
}

// sources returns what each of the cell's clients sends to an address.
func (c cell) sources(address string, serial *atomic.Uint32) []source {
	list := make([]source, c.Clients)
	if c.Prompts == cold {
		for i := range list {
			list[i] = c.coldSource(address, newAuthor(uint64(serial.Add(1)), serial))
		}
		return list
	}
	// Every row gets the same prompts.
	next := c.coldSource(address, newAuthor(0, new(atomic.Uint32)))
	requests := make([][]byte, hotPrompts)
	for i := range requests {
		requests[i] = append([]byte(nil), next()...)
	}
	for i := range list {
		list[i] = hotSource(requests, i)
	}
	return list
}
