package trace

import (
	"fmt"
	"time"
)

// Summary tells what a trace is like.
type Summary struct {
	Requests int
	Length   time.Duration // until the last request
	Input    float64       // mean tokens of a prompt
	Output   float64       // mean tokens of an answer

	// Repeated is the share of the prompts' tokens that had been seen before: what
	// one cache without end would find in it, in whole blocks.
	Repeated float64
}

// Summarize looks through a trace.
func Summarize(requests []Request) Summary {
	s := Summary{Requests: len(requests)}
	input, output, repeated := 0, 0, 0
	seen := make(map[uint64]bool)
	for i := range requests {
		r := &requests[i]
		s.Length = max(s.Length, r.At)
		input, output = input+r.Input, output+r.Output
		repeated += r.Cached(func(id uint64) bool { return seen[id] })
		for _, id := range r.Blocks {
			seen[id] = true
		}
	}
	s.Input = float64(input) / float64(max(s.Requests, 1))
	s.Output = float64(output) / float64(max(s.Requests, 1))
	s.Repeated = float64(repeated) / float64(max(input, 1))
	return s
}

// String returns the summary in a line.
func (s Summary) String() string {
	return fmt.Sprintf("%d requests in %v, on average %.0f tokens in (%.1f %% of them seen before) and %.0f out",
		s.Requests, s.Length.Round(time.Second), s.Input, 100*s.Repeated, s.Output)
}
