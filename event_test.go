package inference

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheFirstEventWithDataIsTheFirstToken(t *testing.T) {
	tests := map[string]struct{ before, first string }{
		"at once":              {"", "data: {}\n\n"},
		"without a space":      {"", "data:{}\n\n"},
		"after a comment":      {": ping\n\n", "data: {}\n\n"},
		"after blank lines":    {"\n\r\n\r", "data: {}\n\n"},
		"after retry":          {"retry: 3000\n\n", "data: {}\n\n"},
		"after an id":          {"id: 1\n", "data: {}\n\n"},
		"lines end in CRLF":    {": ping\r\n\r\n", "data: {}\r\n\r\n"},
		"after a ping":         {"event: ping\ndata: {\"type\": \"ping\"}\n\n", "event: message_start\ndata: {}\n\n"},
		"after a tight ping":   {"event:ping\ndata:{}\n\n", "data: {}\n\n"},
		"after a long ping":    {"event: ping\ndata: a\ndata: b\n\n", "data: {}\n\n"},
		"after a ping in CRLF": {"event: ping\r\ndata: a\r\n\r\n", "data: {}\r\n\r\n"},
		"after a named event":  {"", "event: message_start\ndata: {}\n\n"},
		"data in a comment":    {":data: no\n", "data: {}\n\n"},
		"data in a long line":  {"x: " + strings.Repeat("data: ", 100) + "\n", "data: {}\n\n"},
		"an event called pong": {"", "event: pinging\ndata: {}\n\n"},
		"a message begins":     {"", "event: message_start\ndata: {}\n\n"},
		"a response begins": {"event: response.created\ndata: {}\n\nevent: response.queued\ndata: {}\n\nevent: response.in_progress\ndata: {}\n\n",
			"event: response.output_text.delta\ndata: {}\n\n"},
		"a response says what it will fill": {"event: response.output_item.added\r\ndata: {}\r\n\r\nevent: response.content_part.added\r\ndata: {}\r\n\r\n",
			"event: response.reasoning_text.delta\r\ndata: {}\r\n\r\n"},
		"a response's reasoning": {"event: response.reasoning_summary_part.added\ndata: {}\n\nevent:response.reasoning_part.added\ndata: {}\n\n",
			"event: response.reasoning_summary_text.delta\ndata: {}\n\n"},
		"a call's arguments":           {"event: response.output_item.added\ndata: {}\n\n", "event: response.function_call_arguments.delta\ndata: {}\n\n"},
		"a response that ends at once": {"event: response.created\ndata: {}\n\n", "event: response.completed\ndata: {}\n\n"},
		"a name that goes on":          {"", "event: response.reasoning_summary_part.added.too\ndata: {}\n\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			stream := test.before + test.first
			data := len(test.before) + strings.Index(test.first, "data:") + len("data:")
			for piece := 1; piece <= len(stream); piece++ {
				var f firstEvent
				at := 0
				for ; at < len(stream); at += piece {
					if f.in([]byte(stream[at:min(at+piece, len(stream))])) {
						break
					}
				}
				require.Less(t, at, data, "pieces of %d: found too late or not at all", piece)
				require.GreaterOrEqual(t, at+piece, data, "pieces of %d: found too early", piece)
			}
		})
	}
}

func FuzzFirstEvent(f *testing.F) {
	f.Add(": ping\n\nevent: ping\ndata: {}\n\ndata: {}\n\n", 3)
	f.Add("event: response.created\ndata: {}\n\nevent: response.output_text.delta\ndata: {}\n\n", 7)
	f.Fuzz(func(t *testing.T, stream string, piece int) {
		var whole, cut firstEvent
		expected := whole.in([]byte(stream))
		found := false
		for piece = max(piece, 1); len(stream) > 0 && !found; {
			n := min(piece, len(stream))
			found = cut.in([]byte(stream[:n]))
			stream = stream[n:]
		}
		require.Equal(t, expected, found)
	})
}
