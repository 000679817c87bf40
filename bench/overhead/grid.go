package main

import "fmt"

// cell is one kind of load that every row is measured under.
type cell struct {
	Load    load   `json:"load"`
	API     string `json:"api"`     // chat or completions
	Bytes   int    `json:"bytes"`   // of a request's body
	Prompts string `json:"prompts"` // hot or cold
	Clients int    `json:"clients"` // each sends its next request when it has its answer
}

// load is what clients do.
type load string

const (
	answers load = "answers" // take answers in one piece, of one token
	streams load = "streams" // take answers event by event, to the end
	leaving load = "leaving" // leave after the first event
)

const (
	hot  = "hot"  // one of a few prompts, which all engines have seen
	cold = "cold" // a prompt that nobody has seen, from its first bytes on
)

const (
	hotPrompts = 64 // how many hot ones there are
	few, many  = 1, 64

	// leaves is how many times each client leaves in a slice.
	leaves = 5
)

func (c cell) String() string {
	s := fmt.Sprintf("%s %d B %s", c.API, c.Bytes, c.Prompts)
	if c.Load != answers {
		s = fmt.Sprintf("%s, %s", c.Load, s)
	}
	return fmt.Sprintf("%s, %d at a time", s, c.Clients)
}

// grid is all cells.
func grid() (cells []cell) {
	for _, clients := range []int{few, many} {
		for _, api := range []string{"chat", "completions"} {
			for _, prompts := range []string{hot, cold} {
				for _, size := range []int{200, 2048, 16384} {
					cells = append(cells, cell{answers, api, size, prompts, clients})
				}
			}
		}
	}
	return append(cells,
		cell{streams, "chat", 2048, hot, many},
		cell{streams, "completions", 2048, hot, many},
		cell{leaving, "chat", 2048, hot, many},
	)
}

// quickGrid is a cell or two of every kind.
func quickGrid() []cell {
	return []cell{
		{answers, "chat", 200, hot, few},
		{answers, "completions", 16384, cold, many},
		{streams, "chat", 2048, hot, many},
		{leaving, "chat", 2048, hot, many},
	}
}
