package kvevents

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/kvevents/zmtp"
)

// script runs the commands of a file in testdata/stream. A batch is written as a letter for
// the engine's life and a number, "a7"; "a7!" is one that cannot be read, "a7*" one that
// clears all.
//
//	new [no-replay]         a stream, and how it is told of replays
//	up, down [why]          the link
//	live a0 a1              batches published; those that have to wait come again after a replay
//	replay [a0 a1 [fail]]   a request and what is answered
//	after 10s               time passes
//	overflow                live batches were let go
type script struct {
	t       *testing.T
	now     time.Time
	stream  *stream
	count   *counters
	waiting []string
	said    strings.Builder
}

func (s *script) say(format string, args ...any) { fmt.Fprintf(&s.said, format+"\n", args...) }

func (s *script) Apply(b *Batch) {
	life, seq := rune(int(b.Time)/1000), int(b.Time)%1000
	s.say("  apply %c%d", life, seq)
}

func (s *script) Clear(why Reason) { s.say("  clear: %s", why) }

func (s *script) State(status Status) {
	if status.Reason == ReasonNone {
		s.say("  state: %s", status.State)
		return
	}
	s.say("  state: %s, %s", status.State, status.Reason)
}

// batchOf makes the batch that a word stands for.
func (s *script) batchOf(word string) (seq uint64, payload []byte) {
	life := word[0]
	number := strings.TrimRight(word[1:], "!*")
	if number == "END" {
		return endOfReplay, nil
	}
	seq, err := strconv.ParseUint(number, 10, 64)
	require.NoError(s.t, err)
	switch word[len(word)-1] {
	case '!':
		return seq, []byte{0xc1, life, byte(seq)}
	case '*':
		return seq, pack(s.t, array{int(life)*1000 + int(seq), array{array{"AllBlocksCleared"}}})
	}
	return seq, pack(s.t, array{int(life)*1000 + int(seq), array{array{"BlockRemoved", array{seq}}}})
}

func TestStreamDoesAsTheScriptsSay(t *testing.T) {
	datadriven.Walk(t, "testdata/stream", func(t *testing.T, path string) {
		s := &script{now: time.Unix(1_000_000, 0)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			s.said.Reset()
			words := make([]string, len(d.CmdArgs))
			for i, a := range d.CmdArgs {
				words[i] = a.Key
			}
			s.run(d.Cmd, words)
			return s.said.String()
		})
	})
}

func (s *script) run(command string, words []string) {
	switch command {
	case "new":
		s.count, s.waiting = &counters{}, nil
		s.stream = newStream(s, s.count, len(words) == 0, s.now)
	case "up":
		s.stream.connected(s.now)
	case "down":
		s.waiting = nil
		s.stream.interrupt()
		s.stream.disconnected(s.now, s.fault(words))
	case "live":
		s.waiting = append(s.waiting, words...)
		s.drain()
	case "replay":
		s.replay(words)
		s.drain()
	case "overflow":
		s.stream.overflowed(s.now)
	case "after":
		d, err := time.ParseDuration(words[0])
		require.NoError(s.t, err)
		s.now = s.now.Add(d)
		s.stream.tick(s.now)
	case "count":
		s.counts()
	default:
		s.t.Fatalf("unknown command %s", command)
	}
}

func (s *script) fault(words []string) error {
	if len(words) == 0 {
		return errors.New("closed")
	}
	switch words[0] {
	case "protocol":
		return zmtp.ErrProtocol
	case "silent":
		return zmtp.ErrSilent
	case "large":
		return zmtp.ErrTooLarge
	}
	s.t.Fatalf("unknown fault %s", words[0])
	return nil
}

func (s *script) drain() {
	for len(s.waiting) > 0 {
		seq, payload := s.batchOf(s.waiting[0])
		if !s.stream.live(s.now, seq, payload) {
			s.say("  %d waiting", len(s.waiting))
			return
		}
		s.waiting = s.waiting[1:]
	}
}

func (s *script) replay(words []string) {
	if !s.stream.repair.on {
		s.say("  no replay is wanted")
		return
	}
	if wait := s.stream.repair.notBefore.Sub(s.now); wait > 0 {
		s.say("  after %s", wait)
		s.now = s.now.Add(wait)
	}
	s.say("  from %d", s.stream.request())
	var err error
	for _, word := range words {
		if word == "fail" {
			err = zmtp.ErrSilent
			break
		}
		seq, payload := s.batchOf(word)
		if err = s.stream.reply(seq, payload); err != nil {
			s.say("  at %s: %s", word, err)
			break
		}
	}
	s.stream.ended(s.now, err)
}

func (s *script) counts() {
	c := s.count.stats()
	for _, n := range []struct {
		name  string
		value uint64
	}{
		{"batches", c.Batches},
		{"replayed", c.Replayed},
		{"gaps", c.Gaps},
		{"lost", c.Lost},
		{"duplicates", c.Duplicates},
		{"restarts", c.Restarts},
		{"decode errors", c.DecodeErrors},
		{"overflows", c.Overflows},
		{"replays", c.Replays},
		{"replay errors", c.ReplayErrors},
		{"links lost", c.Links[LinkLost]},
	} {
		if n.value > 0 {
			s.say("  %d %s", n.value, n.name)
		}
	}
}
