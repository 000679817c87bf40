package enginesim

import (
	"encoding/json/jsontext"
	"net/http"
)

// tokenizeRequest is a body of /tokenize: a text, or a conversation as chat has it.
type tokenizeRequest struct {
	Model  string         `json:"model"`
	Prompt jsontext.Value `json:"prompt"`
	conversation
}

// tokenized is an answer of /tokenize.
type tokenized struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []uint32 `json:"tokens"`
	TokenStrs   []string `json:"token_strs"`
}

// tokenize answers with the ids of a text or a conversation: those by which a request
// with the same is cached.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	ids, list, apiErr := s.tokensOf(w, r)
	if apiErr == nil && list {
		apiErr = badRequest("prompt must be a text", "prompt")
	}
	if apiErr != nil {
		writeError(w, apiErr)
		return
	}
	writeJSON(w, http.StatusOK, tokenized{len(ids[0]), s.opts.MaxModelLen, ids[0], nil})
}

// tokenizeAll is SGLang's page, which takes a list of texts, too.
func (s *Server) tokenizeAll(w http.ResponseWriter, r *http.Request) {
	ids, list, apiErr := s.tokensOf(w, r)
	if apiErr != nil {
		writeError(w, apiErr)
		return
	}
	if !list {
		writeJSON(w, http.StatusOK, tokenized{len(ids[0]), s.opts.MaxModelLen, ids[0], nil})
		return
	}
	counts := make([]int, len(ids))
	for i := range ids {
		counts[i] = len(ids[i])
	}
	writeJSON(w, http.StatusOK, struct {
		Tokens      [][]uint32 `json:"tokens"`
		Count       []int      `json:"count"`
		MaxModelLen int        `json:"max_model_len"`
	}{ids, counts, s.opts.MaxModelLen})
}

// tokensOf reads a body of /tokenize and returns the ids of its texts, and whether they
// came as a list.
func (s *Server) tokensOf(w http.ResponseWriter, r *http.Request) (ids [][]uint32, list bool, apiErr *apiError) {
	var req tokenizeRequest
	body, apiErr := readBody(w, r)
	defer keepBody(body)
	if apiErr == nil {
		apiErr = decode(body.Bytes(), &req)
	}
	if apiErr == nil {
		_, apiErr = s.modelFor(req.Model)
	}
	if apiErr != nil {
		return nil, false, apiErr
	}
	if len(req.Prompt) == 0 || req.Prompt.Kind() == 'n' {
		ids, apiErr := s.conversationTokens(&req.conversation)
		return [][]uint32{ids}, false, apiErr
	}
	texts := make([]string, 1)
	if list = req.Prompt.Kind() == '['; list {
		apiErr = decode(req.Prompt, &texts)
	} else {
		apiErr = decode(req.Prompt, &texts[0])
	}
	if apiErr != nil {
		return nil, list, badRequest("prompt must be a text", "prompt")
	}
	for _, text := range texts {
		ids = append(ids, appendTokens([]uint32{}, text))
	}
	return ids, list, nil
}

func (s *Server) conversationTokens(c *conversation) ([]uint32, *apiError) {
	p, err := c.render()
	if err != nil {
		return nil, badRequest(err.Error(), "messages")
	}
	if s.opts.radix() {
		p.pad()
	}
	return p.ids, nil
}
