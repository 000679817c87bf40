package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// client sends requests over connections that stay open, one to each address in
// turn. It is no http.Client: that takes as long as what is measured. It belongs
// to one goroutine.
type client struct {
	addresses   []string
	connections []*connection // by address; nil if there is none
	turn        int           // of the addresses
	next        source
	api         string
	object      []byte // what answers of the API have in them as engines write them
	body        bytes.Buffer
	tally       tally
}

// connection is an open one.
type connection struct {
	net.Conn
	in *bufio.Reader
}

// tally is what a client has seen in a slice.
type tally struct {
	times   []float64 // of requests that went well: to the end of the answer or to the first event, in µs
	events  int
	errors  int
	failure error // the first one
}

// patience is how long an answer may take.
const patience = 20 * time.Second

// newClient returns the client with a number, by which clients begin with
// different addresses.
func newClient(number int, addresses []string, next source, api string) *client {
	return &client{
		addresses:   addresses,
		connections: make([]*connection, len(addresses)),
		turn:        number,
		next:        next,
		api:         api,
		object:      []byte(`"object":"` + objects[api] + `"`),
	}
}

func (c *client) close() {
	for at := range c.connections {
		c.drop(at)
	}
}

// drop cuts off a connection that is of no more use. Its port is free again at
// once: clients that leave would use up all of them otherwise.
func (c *client) drop(at int) {
	connection := c.connections[at]
	if connection == nil {
		return
	}
	c.connections[at] = nil
	if tcp, ok := connection.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // it is closed next, in one way or the other
	}
	_ = connection.Close()
}

// dial makes sure that there is a connection to an address.
func (c *client) dial(at int) (*connection, error) {
	if c.connections[at] == nil {
		conn, err := net.Dial("tcp", c.addresses[at])
		if err != nil {
			return nil, err
		}
		c.connections[at] = &connection{conn, bufio.NewReaderSize(conn, 16<<10)}
	}
	return c.connections[at], c.connections[at].SetDeadline(time.Now().Add(patience))
}

// exchange sends a request to the next address and lets take read the answer's
// body. A connection that anything went wrong on is not used again.
func (c *client) exchange(request []byte, take func(io.Reader) error) error {
	c.turn++
	at := c.turn % len(c.addresses)
	err := c.try(at, request, take)
	if err != nil {
		c.drop(at)
	}
	return err
}

func (c *client) try(at int, request []byte, take func(io.Reader) error) error {
	connection, err := c.dial(at)
	if err != nil {
		return err
	}
	if _, err := connection.Write(request); err != nil {
		return err
	}
	response, err := http.ReadResponse(connection.in, nil) //nolint:bodyclose // closing would read on to the end, also of a stream that is left
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return fmt.Errorf("status %d: %s", response.StatusCode, text)
	}
	return take(response.Body)
}

// note takes down a request that took a time, or went wrong.
func (c *client) note(took time.Duration, err error) {
	if err == nil {
		c.tally.times = append(c.tally.times, float64(took)/float64(time.Microsecond))
		return
	}
	c.tally.errors++
	if c.tally.failure == nil {
		c.tally.failure = err
	}
}

// takeAnswers sends requests until it is time, and one in any case.
func (c *client) takeAnswers(ctx context.Context, until time.Time) {
	for {
		request := c.next()
		start := time.Now()
		err := c.exchange(request, c.readAnswer)
		end := time.Now()
		if err == nil { // looking at it is none of the router's time
			err = c.checkAnswer()
		}
		c.note(end.Sub(start), err)
		if ctx.Err() != nil || !end.Before(until) {
			return
		}
	}
}

// readAnswer reads an answer in one piece.
func (c *client) readAnswer(body io.Reader) error {
	c.body.Reset()
	_, err := c.body.ReadFrom(body)
	return err
}

// checkAnswer sees that what was read is an answer to the request.
func (c *client) checkAnswer() error {
	if answer := c.body.Bytes(); !c.looksRight(answer) && !c.isRight(answer) {
		return fmt.Errorf("this is no answer: %.200q", answer)
	}
	return nil
}

// looksRight reports whether an answer is right by a quick look, which is enough
// for those that arrive as engines write them.
func (c *client) looksRight(answer []byte) bool {
	return bytes.Contains(answer, c.object) &&
		bytes.Contains(answer, []byte(`"completion_tokens":1,`)) &&
		bytes.HasSuffix(answer, []byte("}"))
}

// isRight reports whether an answer is right, however a router has written it anew.
func (c *client) isRight(answer []byte) bool {
	var a struct {
		Object string `json:"object"`
		Usage  struct {
			CompletionTokens int `json:"completion_tokens"`
		} `json:"usage"`
	}
	return json.Unmarshal(answer, &a) == nil && a.Object == objects[c.api] && a.Usage.CompletionTokens == 1
}

// objects are what answers call themselves.
var objects = map[string]string{"chat": "chat.completion", "completions": "text_completion"}

// takeStream sends one request and takes the whole stream.
func (c *client) takeStream() {
	var took time.Duration
	start := time.Now()
	err := c.exchange(c.next(), func(body io.Reader) error {
		in := bufio.NewReader(body)
		if err := readEvent(in); err != nil {
			return err
		}
		took = time.Since(start)
		return c.readStream(in)
	})
	c.note(took, err)
}

// extraEvents are those of a stream that carry no token: the one at the beginning
// of a chat, the usage and the end.
var extraEvents = map[string]int{"chat": 3, "completions": 2}

// readStream reads the events behind the first, and sees that they are all there.
func (c *client) readStream(in *bufio.Reader) error {
	n := 1
	for {
		err := readEvent(in)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		n++
	}
	if want := streamTokens + extraEvents[c.api]; n != want {
		return fmt.Errorf("a stream of %d events, not %d", n, want)
	}
	c.tally.events += n
	return nil
}

// readEvent reads the next event with data. After the last there is io.EOF.
func readEvent(in *bufio.Reader) error {
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if bytes.HasPrefix(line, []byte("data:")) {
			return nil
		}
	}
}

// errLeft is what a client ends with that leaves.
var errLeft = errors.New("left")

// leave sends one request over a connection of its own, and leaves after the
// first event.
func (c *client) leave() {
	var took time.Duration
	start := time.Now()
	err := c.exchange(c.next(), func(body io.Reader) error {
		if err := readEvent(bufio.NewReader(body)); err != nil {
			return err
		}
		took = time.Since(start)
		return errLeft
	})
	if errors.Is(err, errLeft) {
		err = nil
	}
	c.note(took, err)
}
