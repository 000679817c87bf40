package inference

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/zeebo/xxh3"

	"github.com/caddy-inference/caddy-inference/fleet"
	"github.com/caddy-inference/caddy-inference/prompt"
	"github.com/caddy-inference/caddy-inference/radix"
	"github.com/caddy-inference/caddy-inference/selection"
)

// PrefixHash is a selection policy for fleets of LLM engines behind several routers
// that know nothing of each other. The beginning of a prompt has an owner among the
// upstreams, which is found by hashing alone: every router sends a conversation to
// the same engine, and those that share a system prompt and a question too. An owner
// that is overloaded is passed over for another upstream that all routers agree on as
// well.
//
// The beginning is all that stands before the first user message, and the first part
// of that message. Of a bare prompt it is the first part.
//
// One router alone is better off with `cache_aware`, which weighs what each engine
// holds against what is queued there.
//
// Every choice is accounted for as by `cache_aware`, under the same names in the
// access log, the metrics and the placeholders `{http.inference.*}`.
type PrefixHash struct {
	// How many bytes of the first user message, or of a bare prompt, tell one beginning
	// from another. Default: 1 KiB.
	PrefixLength int64 `json:"prefix_length,omitempty"`

	// The same in tokens, in place of `prefix_length`. A token counts as 4 bytes,
	// whatever the model: owners must not move when more is learned of it, and must be
	// the same for routers that have learned different things.
	PrefixTokens int64 `json:"prefix_tokens,omitempty"`

	// How many times the mean load an upstream may have and still be chosen, at least 1.
	// Less makes loads more even, more lets more requests reach their owner. Load is the
	// predicted wait for the prefills that are queued and the number of requests in
	// flight. Default: 1.25.
	LoadFactor float64 `json:"load_factor,omitempty"`

	Policy
}

const (
	defaultPrefixLength = 1 << 10

	// tokenBytes is the bytes that a token of PrefixTokens stands for: what one of English
	// text takes.
	tokenBytes = 4

	// minPrefixLength keeps a slip of the pen, such as a size without its unit, from
	// giving all prompts one owner.
	minPrefixLength = 64

	// maxPrefixLength is beyond any prompt.
	maxPrefixLength = 1 << 28

	// longerOpening is how much longer the prefix is that tells prompts with one owner apart
	// when it is overloaded. 4: with 1 conversations that all begin alike for 1 KiB wait 10 to
	// 18 % longer behind one router, and 47 to 58 % behind two.
	longerOpening = 4
)

// CaddyModule returns the Caddy module information.
func (*PrefixHash) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.selection_policies.prefix_hash",
		New: func() caddy.Module { return new(PrefixHash) },
	}
}

// Provision sets up the policy.
func (p *PrefixHash) Provision(ctx caddy.Context) error {
	if p.PrefixTokens == 0 {
		p.PrefixLength = cmp.Or(p.PrefixLength, defaultPrefixLength)
	}
	p.LoadFactor = cmp.Or(p.LoadFactor, defaultLoadFactor)
	p.prefix, p.loadFactor = int(p.length()), p.LoadFactor
	app, err := loadApp(ctx)
	if err != nil {
		return err
	}
	return p.provision(ctx, app, "prefix_hash", p)
}

// length returns the length of a prefix in bytes.
func (p *PrefixHash) length() int64 {
	return cmp.Or(p.PrefixLength, min(p.PrefixTokens, maxPrefixLength)*tokenBytes)
}

// Validate checks the configuration.
func (p *PrefixHash) Validate() error {
	switch {
	case p.PrefixLength != 0 && p.PrefixTokens != 0:
		return errors.New("prefix_hash: prefix_length and prefix_tokens say the same; keep one")
	case p.PrefixTokens != 0 && (p.length() < minPrefixLength || p.length() > maxPrefixLength):
		return fmt.Errorf("prefix_hash: prefix_tokens %d: must be from %d to %d", p.PrefixTokens, minPrefixLength/tokenBytes, maxPrefixLength/tokenBytes)
	case p.length() < minPrefixLength || p.length() > maxPrefixLength:
		return fmt.Errorf("prefix_hash: prefix_length of %d bytes: must be from %d to %d; a unit may be missing, as in 1KiB", p.PrefixLength, minPrefixLength, maxPrefixLength)
	case !(p.LoadFactor >= 1 && p.LoadFactor <= maxLoadFactor): // nor NaN
		return fmt.Errorf("prefix_hash: load_factor of %v: must be from 1 to %v", p.LoadFactor, maxLoadFactor)
	}
	return p.validate("prefix_hash")
}

// Select chooses an upstream.
func (p *PrefixHash) Select(pool reverseproxy.UpstreamPool, r *http.Request, w http.ResponseWriter) *reverseproxy.Upstream {
	return p.route(p, pool, r, w)
}

// choose implements chooser.
func (p *PrefixHash) choose(t *ticket, candidates []selection.Candidate) (selection.Choice, *fleet.Reservation) {
	by := selection.Hash{Key: t.prefix, Next: t.longer, LoadFactor: p.loadFactor, Reason: selection.Owner}
	return selection.Place(by, t.tokens, candidates, t.state.clock.now())
}

// openings hashes the first bytes of a key stream on its way to a chunker, up to two
// lengths. There is no seed in the hashes, so they are the same in every process.
type openings struct {
	*radix.Chunker
	hasher  xxh3.Hasher
	hashed  int
	lengths [2]int // the second is no less
	sums    [2]uint64
}

// of readies o for a key stream with openings of such lengths.
func (o *openings) of(c *radix.Chunker, length, longer int) *openings {
	o.Chunker, o.hashed = c, 0
	o.lengths, o.sums = [2]int{length, longer}, [2]uint64{}
	o.hasher.Reset()
	return o
}

// Write implements io.Writer.
func (o *openings) Write(b []byte) (int, error) {
	rest := b
	for i, length := range o.lengths {
		if o.hashed >= length {
			continue
		}
		n := min(len(rest), length-o.hashed)
		o.hasher.Write(rest[:n]) //nolint:errcheck // a hash takes all
		o.hashed += n
		rest = rest[n:]
		if o.hashed < length {
			break
		}
		o.sums[i] = o.hasher.Sum64()
	}
	return o.Chunker.Write(b)
}

// writeKey writes the prompt's key stream to the chunker and returns how long it is. For
// a policy that wants them, it notes the keys of the prompt's openings, which are other
// ones for every model and for all else that keeps caches apart.
func (t *ticket) writeKey(p *prompt.Prompt, chunker *radix.Chunker) int {
	prefix := t.owner.prefix
	if prefix == 0 {
		n, _ := p.WriteTo(chunker) // a Chunker takes all
		return int(n)
	}
	o := t.scratch.openings.of(chunker, p.Opening(prefix), p.Opening(longerOpening*prefix))
	n, _ := p.WriteTo(o)
	t.prefix = space(o.sums[0], p)
	t.longer = space(cmp.Or(o.sums[1], o.sums[0]), p) // there may be no more of it
	return int(n)
}

var (
	_ caddy.Provisioner     = (*PrefixHash)(nil)
	_ caddy.Validator       = (*PrefixHash)(nil)
	_ caddy.CleanerUpper    = (*PrefixHash)(nil)
	_ reverseproxy.Selector = (*PrefixHash)(nil)
)
