package inference

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/zeebo/xxh3"
	"go.uber.org/zap"

	"github.com/caddy-inference/caddy-inference/prompt"
	"github.com/caddy-inference/caddy-inference/selection"
)

// Affinity is a place in which a request may say which session it belongs to. One of
// the fields is set.
type Affinity struct {
	// The name of a request header. Caddy drops headers with `_` or `.` in their names
	// before any module sees them, unless the server's options expect them; the log warns
	// of one that is dropped.
	Header string `json:"header,omitempty"`

	// The name of a cookie.
	Cookie string `json:"cookie,omitempty"`

	// A field of the body: `prompt_cache_key`, `user`, `metadata.user_id` or
	// `session_params.session_id`.
	Body string `json:"body,omitempty"`
}

const (
	// defaultLoadFactor is the load, relative to the mean, up to which an owner is chosen.
	// 1.25: with 1.5 conversations wait 4 to 7 % longer, with 1 they wait 7 % less, and more of
	// them leave their owner.
	defaultLoadFactor = 1.25

	// maxLoadFactor is as good as no bound.
	maxLoadFactor = 1000
)

// sessionFields are the fields of a body that may name a session.
var sessionFields = map[string]func(*prompt.Session) []byte{
	"prompt_cache_key":          func(s *prompt.Session) []byte { return s.PromptCacheKey },
	"user":                      func(s *prompt.Session) []byte { return s.User },
	"metadata.user_id":          func(s *prompt.Session) []byte { return s.UserID },
	"session_params.session_id": func(s *prompt.Session) []byte { return s.SessionID },
}

// sessionFieldNames are their names, for messages.
const sessionFieldNames = "prompt_cache_key, user, metadata.user_id and session_params.session_id"

// validateAffinity checks where sessions are looked for.
func (p *Policy) validateAffinity(name string) error {
	for i, a := range p.Affinity {
		if err := a.validate(); err != nil {
			return fmt.Errorf("%s: affinity %d: %w", name, i+1, err)
		}
		if slices.Contains(p.Affinity[:i], a) {
			return fmt.Errorf("%s: affinity %d: is there twice; keep one", name, i+1)
		}
	}
	return nil
}

func (a Affinity) validate() error {
	switch a {
	case Affinity{}:
		return errors.New("it is empty; it must have one of header, cookie and body")
	case Affinity{Header: a.Header}:
		if !isToken(a.Header) {
			return fmt.Errorf("'%s' is no name of a header; write one such as X-Session-ID", a.Header)
		}
	case Affinity{Cookie: a.Cookie}:
		if !isToken(a.Cookie) {
			return fmt.Errorf("'%s' is no name of a cookie; write one such as session", a.Cookie)
		}
	case Affinity{Body: a.Body}:
		if sessionFields[a.Body] == nil {
			return fmt.Errorf("'%s' is no field of a body that names a session; there are %s", a.Body, sessionFieldNames)
		}
	default:
		return errors.New("it has more than one of header, cookie and body; make each an entry of its own")
	}
	return nil
}

// warnOfDropped says which headers will never be there, as the server that the policy is in
// drops them.
func (p *Policy) warnOfDropped(ctx caddy.Context) {
	server, known := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !known {
		server = new(caddyhttp.Server)
	}
	for _, a := range p.Affinity {
		option := dropped(a.Header, server)
		if option == "" {
			continue
		}
		ctx.Logger().Warn("affinity has no effect: the server drops the header, as it does all with such a name",
			zap.String("header", a.Header),
			zap.String("hint", "name it in the server's option "+option+", or have clients send one with hyphens, such as X-Session-ID"))
	}
}

// dropped returns the option in which the server would have to name a header so that it does
// not drop it; nothing if it does not.
func dropped(header string, server *caddyhttp.Server) (option string) {
	underscore, dot := strings.Contains(header, "_"), strings.Contains(header, ".")
	expects := func(list []string) bool {
		return slices.ContainsFunc(list, func(entry string) bool {
			prefix, several := strings.CutSuffix(entry, "*")
			if !several || underscore && dot {
				return strings.EqualFold(header, entry)
			}
			return len(header) >= len(prefix) && strings.EqualFold(header[:len(prefix)], prefix)
		})
	}
	switch {
	case !underscore && !dot, underscore && expects(server.ExpectedUnderscoreHeaders), dot && expects(server.ExpectedDotHeaders):
		return ""
	case underscore:
		return "expected_underscore_headers"
	}
	return "expected_dot_headers"
}

// isToken reports whether headers and cookies may have that name.
func isToken(name string) bool {
	return (&http.Cookie{Name: name}).Valid() == nil //nolint:gosec // it is not sent
}

// session returns the key of the session that the request says it belongs to, 0 if it
// says nothing. In is the prompt of its body, nil if that was not read.
//
// What clients say here is theirs, of any length, and may be a secret: nothing of it is
// kept but this number.
func (p *Policy) session(r *http.Request, in *prompt.Prompt) uint64 {
	for i := range p.Affinity {
		if key, said := p.Affinity[i].key(r, in); said {
			return max(key, 1)
		}
	}
	return 0
}

// key returns a hash of what the request says here, the same in every process.
func (a *Affinity) key(r *http.Request, in *prompt.Prompt) (key uint64, said bool) {
	switch {
	case a.Header != "":
		value := strings.TrimSpace(r.Header.Get(a.Header))
		return xxh3.HashString(value), value != ""
	case a.Cookie != "":
		for _, cookie := range r.CookiesNamed(a.Cookie) {
			if cookie.Value != "" {
				return xxh3.HashString(cookie.Value), true
			}
		}
		return 0, false
	case in == nil:
		return 0, false
	}
	value := sessionFields[a.Body](&in.Session)
	return xxh3.Hash(value), len(value) > 0
}

// bySession is the rule for requests of a session: its owner, unless that is overloaded.
func (p *Policy) bySession(t *ticket) selection.Hash {
	return selection.Hash{Key: t.session, Next: t.session, LoadFactor: p.loadFactor, Reason: selection.Affinity}
}
