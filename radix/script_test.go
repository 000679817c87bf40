package radix

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

// script runs the commands of a file in testdata. Each letter of a prompt
// stands for a chunk; small letters are a prompt shorter than one chunk. fill
// inserts prompts that share nothing, numbered from on.
type script struct {
	tree    *Tree
	chunker *Chunker
	names   []string // of the workers, in order of their appearance
	workers map[string]Worker
}

func TestTreeAnswersAsTheScriptsSay(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{tree: New(Options{}), chunker: NewChunker(7), workers: map[string]Worker{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			defer check(t, s.tree)
			return s.run(t, d)
		})
	})
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "add":
		for _, arg := range d.CmdArgs {
			if !slices.Contains(s.names, arg.Key) {
				s.names = append(s.names, arg.Key)
			}
			s.workers[arg.Key] = s.tree.Add()
		}
	case "remove":
		s.tree.Remove(s.worker(t, d))
	case "insert":
		for range s.number(t, d, "times", 1) {
			s.tree.Insert(s.worker(t, d), s.key(t, d))
		}
	case "fill":
		for i := range s.number(t, d, "prompts", 0) {
			chunks := make([]uint64, s.number(t, d, "chunks", 1))
			chunks[0] = uint64(s.number(t, d, "from", 0) + i)
			s.tree.Insert(s.worker(t, d), Key{Space: 99, Chunks: chunks, Bytes: len(chunks) * ChunkBytes})
		}
	case "retract":
		s.tree.Retract(s.worker(t, d), s.key(t, d), s.number(t, d, "keep", 0))
	case "capacity":
		s.tree.SetCapacity(s.worker(t, d), int64(s.number(t, d, "bytes", 0)))
	case "limit":
		s.tree.SetMaxBytes(int64(s.number(t, d, "bytes", 0)))
	case "tend":
		for s.tree.Tend() {
		}
	case "match":
		return s.match(t, d)
	case "stats":
		return s.stats()
	default:
		d.Fatalf(t, "unknown command %q", d.Cmd)
	}
	return ""
}

func (s *script) worker(t *testing.T, d *datadriven.TestData) Worker {
	var name string
	d.ScanArgs(t, "worker", &name)
	require.Contains(t, s.names, name)
	return s.workers[name]
}

func (s *script) number(t *testing.T, d *datadriven.TestData, key string, n int) int {
	d.MaybeScanArgs(t, key, &n)
	return n
}

func (s *script) key(t *testing.T, d *datadriven.TestData) Key {
	var prompt string
	d.ScanArgs(t, "prompt", &prompt)
	if strings.ToLower(prompt) != prompt {
		var long strings.Builder
		for _, letter := range prompt {
			long.WriteString(strings.Repeat(string(letter), ChunkBytes))
		}
		prompt = long.String()
	}
	s.chunker.Reset()
	_, err := s.chunker.WriteString(prompt)
	require.NoError(t, err)
	return s.chunker.Key(uint64(s.number(t, d, "space", 0)))
}

func (s *script) match(t *testing.T, d *datadriven.TestData) string {
	var m Matches
	s.tree.Match(s.key(t, d), &m)
	var out strings.Builder
	for _, name := range s.names {
		w := s.workers[name]
		fmt.Fprintf(&out, "%s: %d", name, m.Bytes(w))
		if m.Shared(w) {
			out.WriteString(" shared")
		}
		out.WriteByte('\n')
	}
	return out.String()
}

func (s *script) stats() string {
	stats := s.tree.Stats()
	var out strings.Builder
	fmt.Fprintf(&out, "nodes=%d workers=%d held=%d\n", stats.Nodes, stats.Workers, stats.Held)
	for _, name := range s.names {
		fmt.Fprintf(&out, "%s holds %d\n", name, s.tree.Held(s.workers[name]))
	}
	if stats.Evicted > 0 {
		out.WriteString("something was evicted\n")
	}
	if stats.Bytes > stats.MaxBytes {
		out.WriteString("the limit is exceeded\n")
	}
	return out.String()
}
