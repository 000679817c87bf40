package enginesim

import (
	"encoding/json/v2"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAnEventCarriesAnIntervalOfTokensAtTheTimeOfItsLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := DefaultOptions()
		opts.StreamInterval = 4
		r := newRig(t, opts)
		s, err := r.e.submit(prompt{ids: numbered(1, 8)}, namespace{}, 10, 0)
		require.NoError(t, err)
		var counts, positions []int
		var times []time.Duration
		require.NoError(t, s.run(t.Context(), func(d delta) error {
			require.Equal(t, d.pos+len(d.ids) == 10, d.last)
			counts = append(counts, len(d.ids))
			positions = append(positions, d.pos)
			times = append(times, time.Since(r.start))
			return nil
		}))
		const step = 6350 * time.Microsecond
		require.Equal(t, []int{1, 4, 4, 1}, counts)
		require.Equal(t, []int{0, 1, 5, 9}, positions)
		require.Equal(t, []time.Duration{ms, ms + 4*step, ms + 8*step, ms + 9*step}, times)
		r.idle()
	})
}

// TestAnswersEndWithAnyIntervalAboutWhenTheyEndWithOne has requests come and go
// while others run.
func TestAnswersEndWithAnyIntervalAboutWhenTheyEndWithOne(t *testing.T) {
	ends := func(interval int) (list []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			opts := DefaultOptions()
			opts.StreamInterval = interval
			r := newRig(t, opts)
			var all []*outcome
			for i := range 40 {
				all = append(all, r.send(t.Context(), numbered(i, 400), 100+i*37%400))
				pass(100 * ms)
			}
			pass(time.Minute)
			for i, o := range all {
				require.Len(t, o.tokens, 1+(99+i*37%400+interval-1)/interval, "one event for each interval")
				list = append(list, o.ended)
			}
			r.idle()
		})
		return list
	}
	one := ends(1)
	for _, interval := range []int{2, 8, 16} {
		for i, end := range ends(interval) {
			came := time.Duration(i) * 100 * ms
			require.InEpsilon(t, (one[i] - came).Seconds(), (end - came).Seconds(), 0.05, "interval %d, request %d", interval, i)
		}
	}
}

func TestTheIntervalChangesNothingButTheEvents(t *testing.T) {
	type chunk struct {
		Choices []struct {
			Index        int
			Text         string
			Delta        struct{ Content string }
			FinishReason *string  `json:"finish_reason"`
			TokenIDs     []uint32 `json:"token_ids"`
		}
		Delta struct{ Text string }
		Usage *struct {
			CompletionTokens int `json:"completion_tokens"`
			OutputTokens     int `json:"output_tokens"`
		}
	}
	type stream struct {
		texts  [2]string
		ids    [2][]uint32
		events [2][]int // tokens so far, at each
		ended  int
		usage  int
		stats  Stats
	}
	ask := func(path, body string, interval int) (got stream) {
		opts := instantOptions()
		opts.StreamInterval = interval
		s, err := NewServer(opts)
		require.NoError(t, err)
		for line := range strings.Lines(post(s, path, body).Body.String()) {
			data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: {")
			if !ok {
				continue
			}
			var c chunk
			require.NoError(t, json.Unmarshal([]byte("{"+data), &c, loose))
			got.texts[0] += c.Delta.Text
			if c.Usage != nil {
				got.usage = max(c.Usage.CompletionTokens, c.Usage.OutputTokens)
			}
			for _, choice := range c.Choices {
				i := choice.Index
				got.texts[i] += choice.Text + choice.Delta.Content
				got.ids[i] = append(got.ids[i], choice.TokenIDs...)
				if len(choice.TokenIDs) > 0 {
					require.Len(t, got.ids[i], c.Usage.CompletionTokens, "usage is that of the tokens so far")
					got.events[i] = append(got.events[i], len(got.ids[i]))
				}
				if choice.FinishReason != nil {
					got.ended++
				}
			}
		}
		got.stats = s.Stats()
		return got
	}
	openAI := `,"max_tokens":50,"n":2,"return_token_ids":true,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`
	for path, body := range map[string]string{
		"/v1/completions":      fmt.Sprintf(`{"prompt":%q%s`, english, openAI),
		"/v1/chat/completions": fmt.Sprintf(`{"messages":[{"role":"user","content":%q}]%s`, english, openAI),
		"/v1/messages":         fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":50,"stream":true}`, english),
	} {
		one, some := ask(path, body, 1), ask(path, body, 20)
		require.Equal(t, one.texts, some.texts, path)
		require.NotEmpty(t, some.texts[0], path)
		require.Equal(t, one.ids, some.ids, path)
		require.Equal(t, one.usage, some.usage, path)
		require.Equal(t, one.ended, some.ended, path)
		require.Equal(t, one.stats, some.stats, path)
		if path != "/v1/messages" {
			require.Equal(t, []int{1, 21, 41, 50}, some.events[1], path)
			require.Equal(t, 100, some.usage)
			require.Equal(t, 2, some.ended)
		}
		whole := strings.Replace(body, `"stream":true`, `"stream":false`, 1)
		require.Equal(t, ask(path, whole, 1).stats.BlocksStored, ask(path, whole, 20).stats.BlocksStored, path)
		require.Equal(t, one.stats.BlocksStored, ask(path, whole, 20).stats.BlocksStored, path)
	}
}

func TestAFaultCountsTheTokensOfAWholeAnswerWithAnyInterval(t *testing.T) {
	opts := instantOptions()
	opts.StreamInterval = 8
	s, err := NewServer(opts)
	require.NoError(t, err)
	for k, dies := range map[int]bool{9: true, 16: false} {
		require.NoError(t, s.faults.add(Fault{DieAfterEvents: &k}))
		ask := func() { post(s, "/v1/completions", `{"prompt":"x","max_tokens":16}`) }
		if dies {
			require.Panics(t, ask)
		} else {
			require.NotPanics(t, ask)
		}
	}
	require.Zero(t, s.Stats().Running)
}
