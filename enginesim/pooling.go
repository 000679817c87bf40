package enginesim

import (
	"bytes"
	"cmp"
	"encoding/json/jsontext"
	"net/http"
	"slices"
)

// Requests that ask for no answer but for what a model makes of prompts: each prompt is
// computed, and the first token that comes of it is thrown away.

// embeddingSize is how many numbers an embedding has.
const embeddingSize = 8

// parseEmbeddings parses a body of /v1/embeddings.
func (s *Server) parseEmbeddings(r *http.Request, body []byte) (*job, *apiError) {
	var req struct {
		sampling
		conversation
		Input jsontext.Value `json:"input"`
	}
	if err := decode(body, &req); err != nil {
		return nil, err
	}
	if !present(req.Input) && len(req.Messages) > 0 {
		if req.AddGenerationPrompt == nil {
			req.AddGenerationPrompt = new(false)
		}
		p, err := req.render()
		if err != nil {
			return nil, badRequest(err.Error(), "messages")
		}
		return s.newPoolingJob(r, &req.sampling, []prompt{p}, embeddingsDialect{})
	}
	prompts, err := parsePrompts(req.Input)
	if err != nil {
		return nil, err
	}
	return s.newPoolingJob(r, &req.sampling, prompts, embeddingsDialect{})
}

// parseScore parses a body of /score.
func (s *Server) parseScore(r *http.Request, body []byte) (*job, *apiError) {
	var req struct {
		sampling
		One       jsontext.Value `json:"text_1"`
		Two       jsontext.Value `json:"text_2"`
		Queries   jsontext.Value `json:"queries"`
		Documents jsontext.Value `json:"documents"`
	}
	if err := decode(body, &req); err != nil {
		return nil, err
	}
	if !present(req.One) {
		req.One, req.Two = req.Queries, req.Documents
	}
	return s.newPairsJob(r, &req.sampling, req.One, req.Two, scoreDialect{})
}

// parseRerank parses a body of /rerank.
func (s *Server) parseRerank(r *http.Request, body []byte) (*job, *apiError) {
	var req struct {
		sampling
		Query     jsontext.Value `json:"query"`
		Documents jsontext.Value `json:"documents"`
	}
	if err := decode(body, &req); err != nil {
		return nil, err
	}
	return s.newPairsJob(r, &req.sampling, req.Query, req.Documents, rerankDialect{})
}

// newPairsJob makes a prompt of each pair of texts, of which either side may have one only.
func (s *Server) newPairsJob(r *http.Request, req *sampling, one, two jsontext.Value, d dialect) (*job, *apiError) {
	first, err := parsePrompts(one)
	if err != nil {
		return nil, err
	}
	second, err := parsePrompts(two)
	if err != nil {
		return nil, err
	}
	if len(first) == 1 {
		first = slices.Repeat(first, len(second))
	}
	if len(first) != len(second) {
		return nil, badRequest("Input lengths must be either 1:1, 1:N or N:N", "")
	}
	for i := range second {
		second[i].ids = slices.Concat(first[i].ids, []uint32{roleEnd}, second[i].ids)
	}
	return s.newPoolingJob(r, req, second, d)
}

func (s *Server) newPoolingJob(r *http.Request, req *sampling, prompts []prompt, d dialect) (*job, *apiError) {
	req.Stream, req.N, req.MaxTokens = false, nil, nil
	return s.newJob(r, req, prompts, d, 1)
}

// noStream is the dialect of answers that come in one piece only.
type noStream struct{}

func (noStream) start(*job, *output) error             { return nil }
func (noStream) delta(*job, *output, int, delta) error { return nil }
func (noStream) end(*job, *output) error               { return nil }

type poolingUsage struct {
	PromptTokens int `json:"prompt_tokens"`
	TotalTokens  int `json:"total_tokens"`
}

func (j *job) poolingUsage() poolingUsage { return poolingUsage{j.used.prompt, j.used.prompt} }

// number is a made-up number from 0 to 1 that depends on a prompt alone.
func (p *prompt) number(i int) float64 {
	h := mix(0, uint64(i)) //nolint:gosec // i is not negative
	h = fold(h, p.media, 0, len(p.ids))
	for _, id := range p.ids {
		h = mix(h, uint64(id))
	}
	return float64(h>>40) / (1 << 24)
}

// embeddingsDialect words answers of /v1/embeddings.
type embeddingsDialect struct{ noStream }

func (embeddingsDialect) whole(j *job) any {
	type embedding struct {
		Index     int       `json:"index"`
		Object    string    `json:"object"`
		Embedding []float64 `json:"embedding"`
	}
	data := make([]embedding, len(j.prompts))
	for i := range data {
		data[i] = embedding{Index: i, Object: "embedding"}
		for n := range embeddingSize {
			data[i].Embedding = append(data[i].Embedding, j.prompts[i].number(n))
		}
	}
	return &struct {
		ID      string      `json:"id"`
		Object  string      `json:"object"`
		Created int64       `json:"created"`
		Model   string      `json:"model"`
		Data    []embedding `json:"data"`
		Usage   usageBody   `json:"usage"`
	}{"embd-" + j.id, "list", j.created, j.model, data, usageBody{PromptTokens: j.used.prompt, TotalTokens: j.used.prompt}}
}

// scoreDialect words answers of /score.
type scoreDialect struct{ noStream }

func (scoreDialect) whole(j *job) any {
	type score struct {
		Index  int     `json:"index"`
		Object string  `json:"object"`
		Score  float64 `json:"score"`
	}
	data := make([]score, len(j.prompts))
	for i := range data {
		data[i] = score{i, "score", j.prompts[i].number(0)}
	}
	return &struct {
		ID      string       `json:"id"`
		Object  string       `json:"object"`
		Created int64        `json:"created"`
		Model   string       `json:"model"`
		Data    []score      `json:"data"`
		Usage   poolingUsage `json:"usage"`
	}{"embd-" + j.id, "list", j.created, j.model, data, j.poolingUsage()}
}

// rerankDialect words answers of /rerank.
type rerankDialect struct{ noStream }

func (rerankDialect) whole(j *job) any {
	type document struct {
		Text string `json:"text"`
	}
	type result struct {
		Index    int      `json:"index"`
		Document document `json:"document"`
		Score    float64  `json:"relevance_score"`
	}
	results := make([]result, len(j.prompts))
	for i := range results {
		results[i] = result{i, document{string(bytes.ToValidUTF8(j.prompts[i].text, nil))}, j.prompts[i].number(0)}
	}
	slices.SortStableFunc(results, func(a, b result) int { return cmp.Compare(b.Score, a.Score) })
	return &struct {
		ID      string       `json:"id"`
		Model   string       `json:"model"`
		Usage   poolingUsage `json:"usage"`
		Results []result     `json:"results"`
	}{"rerank-" + j.id, j.model, j.poolingUsage(), results}
}
