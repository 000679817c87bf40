package enginesim

import (
	"net/http"
)

func empty(_ *Server, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

func version(_ *Server, w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"version": Version})
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	type card struct {
		ID          string  `json:"id"`
		Object      string  `json:"object"`
		Created     int64   `json:"created"`
		OwnedBy     string  `json:"owned_by"`
		Root        string  `json:"root"`
		Parent      *string `json:"parent"`
		MaxModelLen int     `json:"max_model_len"`
	}
	cards := make([]card, 0, len(s.opts.Models))
	for _, name := range s.opts.Models {
		cards = append(cards, card{ID: name, Object: "model", Created: s.life.Load().engine.started.Unix(), OwnedBy: "enginesim", Root: name, MaxModelLen: s.opts.MaxModelLen})
	}
	writeJSON(w, http.StatusOK, struct {
		Object string `json:"object"`
		Data   []card `json:"data"`
	}{"list", cards})
}

func (s *Server) load(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]int64{"server_load": s.life.Load().open.Load()})
}

func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(s.life.Load().engine.appendMetrics(nil)) // a scraper that left needs no answer
}

// resetPrefixCache answers 200 whether there was something in use or not, as
// vLLM does.
func (s *Server) resetPrefixCache(w http.ResponseWriter, _ *http.Request) {
	s.life.Load().engine.resetCache()
	w.WriteHeader(http.StatusOK)
}

func (s *Server) stats(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.Stats())
}

func (s *Server) restart(w http.ResponseWriter, _ *http.Request) {
	s.Restart()
	w.WriteHeader(http.StatusNoContent)
}

// tokenize answers with the ids of a text or a conversation.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Model  string  `json:"model"`
		Prompt *string `json:"prompt"`
		conversation
	}
	body, apiErr := readBody(w, r)
	defer keepBody(body)
	if apiErr == nil {
		apiErr = decode(body.Bytes(), &req)
	}
	if apiErr == nil {
		_, apiErr = s.modelFor(req.Model)
	}
	if apiErr != nil {
		writeError(w, apiErr)
		return
	}
	var p prompt
	if req.Prompt != nil {
		p.ids = appendTokens(nil, *req.Prompt)
	} else {
		var err error
		if p, err = req.render(); err != nil {
			writeError(w, badRequest(err.Error(), "messages"))
			return
		}
	}
	if p.ids == nil {
		p.ids = []uint32{}
	}
	writeJSON(w, http.StatusOK, struct {
		Count       int      `json:"count"`
		MaxModelLen int      `json:"max_model_len"`
		Tokens      []uint32 `json:"tokens"`
		TokenStrs   []string `json:"token_strs"`
	}{len(p.ids), s.opts.MaxModelLen, p.ids, nil})
}
