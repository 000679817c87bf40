package inference

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-inference/caddy-inference/fleet"
	"github.com/caddy-inference/caddy-inference/selection"
)

// Policy is what the selection policies of this plugin have in common: the options
// that all of them take, and the way of a request through them.
type Policy struct {
	// How much of a request body is read to route on, and decoded if it is encoded,
	// in bytes. Of a longer one the first part is routed on and the rest streamed.
	// Default: 16 MiB.
	MaxBody int64 `json:"max_body,omitempty"`

	// The selection policy for requests with nothing to route on. Default: the
	// upstream with the least work in our own ledger.
	FallbackRaw json.RawMessage `json:"fallback,omitempty" caddy:"namespace=http.reverse_proxy.selection_policies inline_key=policy"`

	// Where requests may say which session they belong to; of several, the first one
	// that is there counts. Requests of a session go to the same upstream, unless it is
	// overloaded: then to the next one in an order that is the session's. Default: none.
	Affinity []Affinity `json:"affinity,omitempty"`

	// `off` leaves the reverse_proxy as you wrote it: nothing that was left unset
	// is filled in. Default: `on`.
	Tune string `json:"tune,omitempty"`

	name       string
	fallback   reverseproxy.Selector
	router     *router
	follow     *eventOptions // how engines are followed that say what they hold; nil if the policy does not go by it
	advised    bool          // another policy of this plugin chooses for it where nothing is known so
	source     tokenSource   // of prompts; nil if it does not go by their ids
	prefix     int           // bytes that the opening of a prompt is told by; 0 if nobody asks for it
	loadFactor float64       // up to which the owner of a session or of an opening is chosen
}

// minBody keeps a slip of the pen, such as a size without its unit, from making a
// router that sees nothing.
const minBody = 1 << 10

// chooser is what makes a policy: the choice of a worker for a request that there is
// something to route on.
type chooser interface {
	// choose chooses among the candidates and charges the choice. The reservation is
	// nil if none is available.
	choose(t *ticket, candidates []selection.Candidate) (selection.Choice, *fleet.Reservation)
}

// provision sets up what is common to policies, for the module of that name.
func (p *Policy) provision(ctx caddy.Context, app *App, name string, module any) error {
	p.name = name
	if isNested(ctx) {
		return p.provisionNested(ctx, name, module)
	}
	p.MaxBody = cmp.Or(p.MaxBody, defaultMaxBody)
	p.Tune = cmp.Or(p.Tune, "on")
	p.loadFactor = cmp.Or(p.loadFactor, defaultLoadFactor)
	p.warnOfDropped(ctx)
	var err error
	p.router, err = newRouter(ctx, app, p)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return p.loadFallback(ctx, name, module)
}

// isNested reports whether the module being provisioned is the fallback of another policy of
// this plugin.
func isNested(ctx caddy.Context) bool {
	modules := ctx.Modules()
	for _, m := range slices.Backward(modules[:len(modules)-1]) {
		switch m.(type) {
		case *reverseproxy.Handler:
			return false
		case *KVAware:
			return true
		}
	}
	return false
}

// provisionNested sets up a policy that chooses for another one, which has the requests.
func (p *Policy) provisionNested(ctx caddy.Context, name string, module any) error {
	if p.MaxBody != 0 || p.Tune != "" || p.Affinity != nil {
		return fmt.Errorf("%s: max_body, affinity and tune of a fallback mean nothing; write them in the policy that it is the fallback of", name)
	}
	p.MaxBody, p.Tune = defaultMaxBody, "on"
	p.loadFactor = cmp.Or(p.loadFactor, defaultLoadFactor)
	return p.loadFallback(ctx, name, module)
}

// loadFallback loads the fallback policy, if there is one.
func (p *Policy) loadFallback(ctx caddy.Context, name string, module any) error {
	if p.FallbackRaw == nil {
		return nil
	}
	loaded, err := ctx.LoadModule(module, "FallbackRaw")
	if err != nil {
		return fmt.Errorf("%s: loading fallback policy: %w", name, err)
	}
	p.fallback = loaded.(reverseproxy.Selector)
	return nil
}

// validate checks the options that are common to policies, for the module of that name.
func (p *Policy) validate(name string) error {
	if p.MaxBody < minBody {
		return fmt.Errorf("%s: max_body of %d bytes: must be at least %d; a unit may be missing, as in 16MiB", name, p.MaxBody, minBody)
	}
	if p.Tune != "on" && p.Tune != "off" {
		return fmt.Errorf("%s: tune '%s': must be on or off", name, p.Tune)
	}
	return p.validateAffinity(name)
}

// Cleanup ends the policy's use of its upstreams.
func (p *Policy) Cleanup() error {
	if p.router == nil {
		return nil
	}
	return p.router.close()
}

// route takes a request to the upstream that by chooses, or to nil.
func (p *Policy) route(by chooser, pool reverseproxy.UpstreamPool, r *http.Request, w http.ResponseWriter) *reverseproxy.Upstream {
	m := p.router.members(pool)
	t := p.ticket(r)
	t.again(pool)
	t.restore(r)
	t.identify(r)

	candidates := t.candidates(p.router, pool, m)
	choice, reservation := p.decide(by, t, pool, m, candidates, r, w)
	if reservation == nil {
		t.nowhere(choice)
		return nil
	}
	t.placed(p.router, m, reservation, choice)
	return pool[m.upstreams[choice.Index]]
}

// ticket returns the request's ticket with this policy, made on the first attempt.
func (p *Policy) ticket(r *http.Request) *ticket {
	if t := ticketOf(r.Context()); t != nil && t.owner == p {
		return t
	}
	return p.router.state.newTicket(r, p)
}

// decide chooses and charges a candidate.
func (p *Policy) decide(by chooser, t *ticket, pool reverseproxy.UpstreamPool, m *membership, candidates []selection.Candidate,
	r *http.Request, w http.ResponseWriter,
) (selection.Choice, *fleet.Reservation) {
	switch {
	case t.session != 0:
		return selection.Place(p.bySession(t), t.tokens, candidates, t.state.clock.now())
	case p.fallback != nil && t.uninformed():
		return p.fallBack(t, pool, m, candidates, r, w)
	case t.cause == "":
		return by.choose(t, candidates)
	}
	return selection.Place(selection.Cost{}, t.tokens, candidates, t.state.clock.now())
}

// fallBack lets the fallback policy choose among the upstreams that can be chosen,
// and charges its choice.
func (p *Policy) fallBack(t *ticket, pool reverseproxy.UpstreamPool, m *membership, candidates []selection.Candidate,
	r *http.Request, w http.ResponseWriter,
) (selection.Choice, *fleet.Reservation) {
	available := make(reverseproxy.UpstreamPool, 0, len(pool))
	for i := range candidates {
		u := pool[m.upstreams[i]]
		if candidates[i].Standing == selection.Available && (len(available) == 0 || available[len(available)-1] != u) {
			available = append(available, u)
		}
	}
	choice := selection.Choice{Index: -1, Best: -1, Tokens: t.tokens}
	if len(available) > 0 {
		choice.Index = m.idlest(slices.Index(pool, p.fallback.Select(available, r, w)), candidates)
	}
	if choice.Index < 0 {
		return choice, nil
	}
	choice.Held = candidates[choice.Index].Held
	for i := range candidates {
		if held := candidates[i].Held; held > choice.BestHeld {
			choice.Best, choice.BestHeld = i, held
		}
	}
	return choice, selection.Force(t.tokens, candidates[choice.Index], t.state.clock.now())
}
