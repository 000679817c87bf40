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
	const most = float64(maxAt / time.Microsecond)
	at := min(max(math.Round(l.Timestamp*1000), -1), most+1) // within what a Duration holds
	r := Request{At: time.Duration(at) * time.Microsecond, Input: l.Input, Output: l.Output, Blocks: l.Blocks}
	return r, r.check()
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
		r := &requests[i]
		l := line{Timestamp: float64(r.At.Round(time.Microsecond)/time.Microsecond) / 1000, Input: r.Input, Output: r.Output, Blocks: r.Blocks}
		if err := lines.Encode(l); err != nil {
			return err
		}
	}
	return buffered.Flush()
}
