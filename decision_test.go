package inference

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-inference/caddy-inference/prompt"
	"github.com/caddy-inference/caddy-inference/selection"
)

// logged returns the fields of a decision as the access log has them.
func logged(t *testing.T, d *decision) map[string]any {
	t.Helper()
	enc := zapcore.NewMapObjectEncoder()
	d.logField().AddTo(enc)
	require.Len(t, enc.Fields, 1)
	return enc.Fields["inference"].(map[string]any)
}

// decided is a ticket with a choice made, for a model that nothing is known of.
func decided(t *testing.T) *ticket {
	t.Helper()
	s := newState()
	w := s.join("10.0.0.1:8000", nil)
	ticket := &ticket{
		state: s, api: prompt.Chat, model: s.models.Get(nil), modelName: "a secret name",
		tokens: 1000, attempts: 2, worker: w, decision: decision{policy: "cache_aware", cached: -1},
	}
	ticket.reservation.Store(w.Place(1000, time.Now()))
	ticket.decision.choose(ticket, selection.Choice{BestHeld: 800, Held: 600}, reason(selection.LoadOutweighed), 300)
	return ticket
}

func TestLogAndPlaceholdersTellTheSame(t *testing.T) {
	full := decided(t)
	full.answered(usage{seen: true, prompt: 2000, cached: 1100})
	full.decision.firstToken = 1500 * time.Millisecond
	full.decision.cause = "no_body"
	require.Equal(t, map[string]any{
		"policy": "cache_aware", "upstream": "10.0.0.1:8000", "api": full.api.String(), "model": "other",
		"reason": "load", "cause": "no_body", "prompt_tokens": 2000, "best_held_tokens": 1600,
		"held_tokens": 1200, "cached_tokens": 1100, "queued_tokens": 300, "attempts": 2,
		"first_token": 1500 * time.Millisecond,
	}, logged(t, &full.decision))

	fresh := decided(t)
	for _, d := range []*decision{&full.decision, &fresh.decision} {
		repl := caddy.NewReplacer()
		repl.Map(d.placeholder)
		fields := logged(t, d)
		for field := range logged(t, &full.decision) {
			value, known := repl.Get(placeholderPrefix + field)
			require.True(t, known, field)
			if said, logged := fields[field]; logged {
				require.Equal(t, said, value, field)
			} else {
				require.Empty(t, value, "%s is not in the log", field)
			}
		}
	}
	require.NotContains(t, logged(t, &fresh.decision), "cause")
	require.NotContains(t, logged(t, &fresh.decision), "cached_tokens")
	require.NotContains(t, logged(t, &fresh.decision), "first_token")
}

func TestNothingIsToldOfARequestThatWasNotPlaced(t *testing.T) {
	d := &decision{policy: "cache_aware", cached: -1}
	require.Equal(t, map[string]any{"policy": "cache_aware"}, logged(t, d))
	for _, name := range []string{"upstream", "model", "api", "cause", "cached_tokens", "first_token"} {
		value, known := d.placeholder(placeholderPrefix + name)
		require.True(t, known)
		require.Empty(t, value, name)
	}
	why, _ := d.placeholder(placeholderPrefix + "reason")
	require.Equal(t, "none", why)
}

func TestOtherPlaceholdersAreLeftToOthers(t *testing.T) {
	d := &decided(t).decision
	for _, name := range []string{"", "http", "http.inference", "http.inference.", "http.inference.prompt", "http.inference.policy2", "http.request.body", "policy"} {
		value, known := d.placeholder(name)
		require.False(t, known, name)
		require.Nil(t, value)
	}
}

func TestNothingOfThePromptIsTold(t *testing.T) {
	ticket := decided(t)
	ticket.body = &body{budget: &ticket.state.buffered, data: []byte("a secret prompt")}
	ticket.scratch = ticket.state.takeScratch()
	prompt.Parse(&ticket.scratch.prompt, "/v1/chat/completions", []byte(chatOf(message("user", "a secret prompt"))))
	told := fmt.Sprint(logged(t, &ticket.decision))
	for name := range logged(t, &ticket.decision) {
		value, _ := ticket.decision.placeholder(placeholderPrefix + name)
		told += fmt.Sprint(value)
	}
	enc := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	line, err := enc.EncodeEntry(zapcore.Entry{}, []zapcore.Field{ticket.decision.logField()})
	require.NoError(t, err)
	told += line.String()
	require.Contains(t, told, "10.0.0.1:8000")
	require.NotContains(t, strings.ToLower(told), "secret", "neither the prompt nor a name that no engine answered for")

	ticket.accepted()
	require.Equal(t, "a secret name", logged(t, &ticket.decision)["model"], "the engine answers by this name")
}

func TestTheEnginesCountsReplaceTheEstimate(t *testing.T) {
	tests := map[string]struct {
		said     usage
		cause    string
		expected tokenCounts
	}{
		"nothing said":        {usage{}, "", tokenCounts{1000, 800, 600, -1}},
		"the same":            {usage{seen: true, prompt: 1000, cached: 500}, "", tokenCounts{1000, 800, 600, 500}},
		"more":                {usage{seen: true, prompt: 1500, cached: 900}, "", tokenCounts{1500, 1200, 900, 900}},
		"less":                {usage{seen: true, prompt: 10, cached: 0}, "", tokenCounts{10, 8, 6, 0}},
		"not the cached":      {usage{seen: true, prompt: 500, cached: -1}, "", tokenCounts{500, 400, 300, -1}},
		"only the cached":     {usage{seen: true, cached: 0}, "", tokenCounts{1000, 800, 600, 0}},
		"the largest":         {usage{seen: true, prompt: 2 * maxCount, cached: maxCount}, "", tokenCounts{2 * maxCount, 1717986918, 1288490188, maxCount}},
		"nothing to route on": {usage{seen: true, prompt: 1500, cached: 900}, "no_body", tokenCounts{1500, 1200, 900, 900}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ticket := decided(t)
			ticket.cause = test.cause
			ticket.decision.answered(ticket, test.said)
			require.Equal(t, test.expected, ticket.decision.tokenCounts)
		})
	}
}

// TestWhatIsHeldOfTheFirstOfSeveralPromptsIsNoMoreThanThat has an engine count the query of
// a ranking for each of its documents.
func TestWhatIsHeldOfTheFirstOfSeveralPromptsIsNoMoreThanThat(t *testing.T) {
	for counted, expected := range map[int]tokenCounts{
		13_700: {13_700, 800, 600, -1},
		500:    {500, 400, 300, -1},
	} {
		ticket := decided(t)
		ticket.several = true
		ticket.decision.answered(ticket, usage{seen: true, prompt: counted, cached: -1})
		require.Equal(t, expected, ticket.decision.tokenCounts)
	}
}

func BenchmarkDecisionLogged(b *testing.B) {
	d := &decision{policy: "cache_aware", upstream: "10.0.0.1:8000", model: newState().models.Get(nil), reason: reason(selection.Hit), cached: -1}
	enc := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	b.ReportAllocs()
	for b.Loop() {
		line, err := enc.EncodeEntry(zapcore.Entry{}, []zapcore.Field{d.logField()})
		if err != nil {
			b.Fatal(err)
		}
		line.Free()
	}
}
