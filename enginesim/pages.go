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
		cards = append(cards, card{ID: name, Object: "model", Created: s.life.Load().ranks[0].started.Unix(), OwnedBy: "enginesim", Root: name, MaxModelLen: s.opts.MaxModelLen})
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
	_, _ = w.Write(s.life.Load().appendMetrics(nil)) // a scraper that left needs no answer
}

// resetPrefixCache answers 200 whether there was something in use or not, as
// vLLM does.
func (s *Server) resetPrefixCache(w http.ResponseWriter, _ *http.Request) {
	s.resetCaches()
	w.WriteHeader(http.StatusOK)
}

// flushCache is SGLang's way to do that; it says when something was in use.
func (s *Server) flushCache(w http.ResponseWriter, _ *http.Request) {
	if !s.resetCaches() {
		http.Error(w, "Flush cache failed.", http.StatusBadRequest)
		return
	}
	_, _ = w.Write([]byte("Cache flushed.\n")) // a client that left needs no answer
}

// resetCaches resets the cache of each rank, and reports whether none was in use.
func (s *Server) resetCaches() bool {
	all := true
	for _, e := range s.life.Load().ranks {
		all = e.resetCache() && all
	}
	return all
}

func (s *Server) stats(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.Stats())
}

func (s *Server) restart(w http.ResponseWriter, _ *http.Request) {
	s.Restart()
	w.WriteHeader(http.StatusNoContent)
}
