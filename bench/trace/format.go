package trace

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"
)

// maxLine is the longest line that is read, in bytes.
const maxLine = 16 << 20

// Limits of what is believed of a trace.
const (
	maxTokens = 1 << 24              // of a prompt or an answer
	maxAt     = 366 * 24 * time.Hour // more is a date, not a time from the start
)

// line is a request as it stands in a file.
type line struct {
	Timestamp float64  `json:"timestamp"` // ms, exact to a thousandth
	Input     int      `json:"input_length"`
	Output    int      `json:"output_length"`
	Blocks    []uint64 `json:"hash_ids"`
}

// Read reads a trace: one JSON object a line, with timestamp (ms from the start),
// input_length and output_length (tokens) and hash_ids (one for each 512 tokens of
// the prompt). Other fields and empty lines mean nothing. The requests are returned
// in order of time. The error names the first line that is wrong.
func Read(r io.Reader) ([]Request, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	var requests []Request
	number := 1
	for ; lines.Scan(); number++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		request, err := parse(lines.Bytes())
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		requests = append(requests, request)
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, fmt.Errorf("line %d is longer than %d bytes", number, maxLine)
	} else if err != nil {
		return nil, fmt.Errorf("line %d: %w", number, err)
	}
	if len(requests) == 0 {
		return nil, errors.New("there is no request in it")
	}
	slices.SortStableFunc(requests, byTime)
	return requests, nil
}

func byTime(a, b Request) int { return cmp.Compare(a.At, b.At) }

// parse reads a line.
func parse(b []byte) (Request, error) {
	var l line
	if err := json.Unmarshal(b, &l); err != nil {
		return Request{}, err
	}
	if err := l.check(); err != nil {
		return Request{}, err
	}
	at := time.Duration(math.Round(l.Timestamp*1000)) * time.Microsecond
	return Request{At: at, Input: l.Input, Output: l.Output, Blocks: l.Blocks}, nil
}

// check reports the first value that no trace can have.
func (l *line) check() error {
	if most := float64(maxAt.Milliseconds()); l.Timestamp < 0 || l.Timestamp > most {
		return fmt.Errorf("timestamp is %.15g ms: it must be between 0, the start of the trace, and %.15g", l.Timestamp, most)
	}
	if l.Input < 1 || l.Input > maxTokens {
		return fmt.Errorf("input_length is %d: it must be between 1 and %d tokens", l.Input, maxTokens)
	}
	if l.Output < 0 || l.Output > maxTokens {
		return fmt.Errorf("output_length is %d: it must be between 0 and %d tokens", l.Output, maxTokens)
	}
	if needed := (l.Input + BlockTokens - 1) / BlockTokens; len(l.Blocks) < needed {
		return fmt.Errorf("%d hash_ids for an input_length of %d: it takes %d, one for each %d tokens", len(l.Blocks), l.Input, needed, BlockTokens)
	}
	return nil
}

// ReadFile reads the trace in a file.
func ReadFile(name string) ([]Request, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	requests, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("trace %s: %w", name, err)
	}
	return requests, nil
}

// Write writes a trace as Read reads it. Times are written to the microsecond.
func Write(w io.Writer, requests []Request) error {
	buffered := bufio.NewWriter(w)
	lines := json.NewEncoder(buffered)
	for i := range requests {
		if err := lines.Encode(lineOf(&requests[i])); err != nil {
			return err
		}
	}
	return buffered.Flush()
}

// lineOf returns the line that a request is written as.
func lineOf(r *Request) *line {
	at := float64(r.At.Round(time.Microsecond)/time.Microsecond) / 1000
	return &line{Timestamp: at, Input: r.Input, Output: r.Output, Blocks: r.Blocks}
}
