package enginesim

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// askRank sends a completion to the rank that a header names.
func askRank(s *Server, header string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"prompt":"one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen","max_tokens":1}`))
	if header != "" {
		r.Header.Set("X-Data-Parallel-Rank", header)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func TestRanksHaveTheirOwnCaches(t *testing.T) {
	opts := instantOptions()
	opts.Ranks = 2
	s, err := NewServer(opts)
	require.NoError(t, err)
	for _, rank := range []string{"0", "1"} {
		require.Zero(t, asWhole(t, askRank(s, rank)).Usage.PromptDetails.CachedTokens, "rank %s", rank)
		require.NotZero(t, asWhole(t, askRank(s, rank)).Usage.PromptDetails.CachedTokens, "rank %s", rank)
	}
	require.Equal(t, 200, post(s, "/reset_prefix_cache", "").Code)
	require.Empty(t, cached(s, 0))
	require.Empty(t, cached(s, 1))
}

func TestRankThatIsNotThereIsAnError(t *testing.T) {
	opts := instantOptions()
	opts.Ranks = 2
	s, err := NewServer(opts)
	require.NoError(t, err)
	for header, want := range map[string]string{
		"2":  `{"error":{"message":"data_parallel_rank 2 is out of range [0, 2).","type":"BadRequestError","param":null,"code":400}}`,
		"-1": `{"error":{"message":"data_parallel_rank -1 is out of range [0, 2).","type":"BadRequestError","param":null,"code":400}}`,
	} {
		w := askRank(s, header)
		require.Equal(t, 400, w.Code)
		require.JSONEq(t, want, w.Body.String())
	}
	require.Equal(t, 200, askRank(s, "first").Code, "what is no number names none")
}

func TestRequestsThatNameNoRankTakeTurns(t *testing.T) {
	opts := instantOptions()
	opts.Ranks = 3
	s, err := NewServer(opts)
	require.NoError(t, err)
	for range 6 {
		askRank(s, "")
	}
	families := scraped(t, s)
	for _, rank := range []string{"0", "1", "2"} {
		require.Equal(t, 2.0, value(t, families["vllm:generation_tokens_total"], "engine", rank))
		require.Equal(t, 1.0, value(t, families["vllm:cache_config_info"], "engine", rank))
	}
	require.Equal(t, 6, s.Stats().Finished, "all ranks together")
}
