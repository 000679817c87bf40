package inference

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/dustin/go-humanize"
)

// parseApp parses the inference global option:
//
//	inference {
//		max_buffered <size>
//		time_scale   <factor>
//	}
func parseApp(d *caddyfile.Dispenser, existing any) (any, error) {
	if existing != nil {
		d.Next() // to say where
		return nil, d.Err("inference: the global option is there twice; make it one")
	}
	app := new(App)
	if err := app.UnmarshalCaddyfile(d); err != nil {
		return nil, err
	}
	return httpcaddyfile.App{Name: "inference", Value: caddyconfig.JSON(app, nil)}, nil
}

// UnmarshalCaddyfile sets up the app from Caddyfile tokens. See parseApp for the
// syntax.
func (a *App) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume option name
	if d.NextArg() {
		return d.Errf("inference: unexpected argument '%s'; options go in a block", d.Val())
	}
	for d.NextBlock(0) {
		switch d.Val() {
		case "max_buffered":
			if err := parseSize(d, "inference", &a.MaxBuffered); err != nil {
				return err
			}
		case "time_scale":
			if err := parseFactor(d, "inference", &a.TimeScale); err != nil {
				return err
			}
		default:
			return d.Errf("inference: unrecognized option '%s'; there are max_buffered and time_scale", d.Val())
		}
	}
	return nil
}

// UnmarshalCaddyfile sets up the policy from Caddyfile tokens:
//
//	lb_policy cache_aware {
//		max_tree_size     <size>
//		eviction_interval <duration>
//		scoring           cost|threshold
//		cache_threshold       <share>
//		balance_abs_threshold <requests>
//		balance_rel_threshold <factor>
//		<options of all policies>
//	}
//
// See parsePolicyOption for the latter.
func (c *CacheAware) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume policy name
	if d.NextArg() {
		return d.Errf("cache_aware: unexpected argument '%s'; options go in a block", d.Val())
	}
	for d.NextBlock(0) {
		switch d.Val() {
		case "max_tree_size":
			if err := parseSize(d, "cache_aware", &c.MaxTreeSize); err != nil {
				return err
			}
		case "eviction_interval":
			if err := parseDuration(d, "cache_aware", &c.EvictionInterval); err != nil {
				return err
			}
		case "scoring":
			if err := parseWord(d, "cache_aware", &c.Scoring, byCost, byThreshold); err != nil {
				return err
			}
		case "cache_threshold":
			if err := parseNumber(d, "cache_aware", &c.CacheThreshold, parseFloat); err != nil {
				return err
			}
		case "balance_abs_threshold":
			if err := parseNumber(d, "cache_aware", &c.BalanceAbsThreshold, strconv.Atoi); err != nil {
				return err
			}
		case "balance_rel_threshold":
			if err := parseNumber(d, "cache_aware", &c.BalanceRelThreshold, parseFloat); err != nil {
				return err
			}
		default:
			if err := parsePolicyOption(d, "cache_aware", &c.Policy, cacheAwareOptions); err != nil {
				return err
			}
		}
	}
	return nil
}

const cacheAwareOptions = "max_tree_size, eviction_interval, scoring, cache_threshold, balance_abs_threshold, balance_rel_threshold"

// UnmarshalCaddyfile sets up the policy from Caddyfile tokens:
//
//	lb_policy prefix_hash {
//		prefix_length <size>
//		prefix_tokens <number>
//		load_factor   <factor>
//		<options of all policies>
//	}
//
// See parsePolicyOption for the latter.
func (p *PrefixHash) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume policy name
	if d.NextArg() {
		return d.Errf("prefix_hash: unexpected argument '%s'; options go in a block", d.Val())
	}
	for d.NextBlock(0) {
		switch d.Val() {
		case "prefix_length":
			if err := parseSize(d, "prefix_hash", &p.PrefixLength); err != nil {
				return err
			}
		case "prefix_tokens":
			if err := parseCount(d, "prefix_hash", &p.PrefixTokens); err != nil {
				return err
			}
		case "load_factor":
			if err := parseFactor(d, "prefix_hash", &p.LoadFactor); err != nil {
				return err
			}
		default:
			if err := parsePolicyOption(d, "prefix_hash", &p.Policy, "prefix_length, prefix_tokens, load_factor"); err != nil {
				return err
			}
		}
	}
	return nil
}

// UnmarshalCaddyfile sets up the policy from Caddyfile tokens:
//
//	lb_policy kv_aware {
//		engine           vllm|sglang|auto
//		events           [<upstream>] <endpoint>
//		replay           [<upstream>] <endpoint>
//		tokenizer        remote|none
//		tokenize_timeout <duration>
//		max_index_size   <size>
//		<options of all policies>
//	}
//
// events and replay may be there several times, for one upstream each. See
// parsePolicyOption for the options of all policies.
func (k *KVAware) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume policy name
	if d.NextArg() {
		return d.Errf("kv_aware: unexpected argument '%s'; options go in a block", d.Val())
	}
	for d.NextBlock(0) {
		if err := k.unmarshalOption(d); err != nil {
			return err
		}
	}
	return nil
}

const kvAwareOptions = "engine, events, replay, tokenizer, tokenize_timeout, max_index_size"

func (k *KVAware) unmarshalOption(d *caddyfile.Dispenser) error {
	switch d.Val() {
	case "engine":
		return parseWord(d, "kv_aware", &k.Engine, anyEngine, vllm, sglang)
	case "events":
		return k.parseEndpoint(d, func(e *EventSource) *string { return &e.Endpoint })
	case "replay":
		return k.parseEndpoint(d, func(e *EventSource) *string { return &e.Replay })
	case "tokenizer":
		return parseWord(d, "kv_aware", &k.Tokenizer, remoteTokenizing, noTokenizing)
	case "tokenize_timeout":
		return parseDuration(d, "kv_aware", &k.TokenizeTimeout)
	case "max_index_size":
		return parseSize(d, "kv_aware", &k.MaxIndexSize)
	}
	return parsePolicyOption(d, "kv_aware", &k.Policy, kvAwareOptions)
}

// parseEndpoint parses the arguments of an option that names an endpoint, of one upstream or
// of all others.
func (k *KVAware) parseEndpoint(d *caddyfile.Dispenser, of func(*EventSource) *string) error {
	option, args := d.Val(), d.RemainingArgs()
	if len(args) != 1 && len(args) != 2 {
		return d.Errf("kv_aware: %s takes an endpoint, such as tcp://*:5557, after the upstream if it is of that one alone", option)
	}
	upstream, endpoint := "", args[len(args)-1]
	if len(args) == 2 {
		upstream = args[0]
	}
	i := slices.IndexFunc(k.Events, func(e EventSource) bool { return e.Upstream == upstream })
	if i < 0 {
		i = len(k.Events)
		k.Events = append(k.Events, EventSource{Upstream: upstream})
	}
	place := of(&k.Events[i])
	if *place != "" {
		return d.Errf("kv_aware: %s is there twice for the same upstream; keep one", option)
	}
	*place = endpoint
	return nil
}

// parsePolicyOption parses an option that all policies of this plugin take. others
// are the options that the module takes besides:
//
//	max_body <size>
//	fallback <policy> [<options>]
//	affinity header|cookie|body <name>
//	tune     on|off
//
// affinity may be there several times.
func parsePolicyOption(d *caddyfile.Dispenser, module string, p *Policy, others string) error {
	switch d.Val() {
	case "max_body":
		return parseSize(d, module, &p.MaxBody)
	case "max_buffered":
		return d.Errf("%s: max_buffered is an option of the global option inference, not of the policy", module)
	case "fallback":
		if p.FallbackRaw != nil {
			return errTwice(d, module)
		}
		raw, err := parseFallback(d, module)
		p.FallbackRaw = raw
		return err
	case "affinity":
		a, err := parseAffinity(d, module)
		p.Affinity = append(p.Affinity, a)
		return err
	case "tune":
		return parseWord(d, module, &p.Tune, "on", "off")
	}
	return d.Errf("%s: unrecognized option '%s'; there are %s, max_body, fallback, affinity and tune", module, d.Val(), others)
}

// parseAffinity parses the arguments of an affinity option: where, and by what name.
func parseAffinity(d *caddyfile.Dispenser, module string) (a Affinity, err error) {
	var where, name string
	if !d.AllArgs(&where, &name) {
		return a, d.Errf("%s: affinity takes one of header, cookie and body, and a name, such as header X-Session-ID", module)
	}
	switch where {
	case "header":
		a.Header = name
	case "cookie":
		a.Cookie = name
	case "body":
		a.Body = name
	default:
		return a, d.Errf("%s: affinity '%s': must be header, cookie or body", module, where)
	}
	if err := a.validate(); err != nil {
		return a, d.Errf("%s: affinity: %v", module, err)
	}
	return a, nil
}

// parseNumber parses the one argument of an option of the module as a number that may
// be 0.
func parseNumber[N int | float64](d *caddyfile.Dispenser, module string, number **N, parse func(string) (N, error)) error {
	if *number != nil {
		return errTwice(d, module)
	}
	option := d.Val()
	var text string
	if !d.AllArgs(&text) {
		return d.Errf("%s: %s takes one number", module, option)
	}
	n, err := parse(text)
	if err != nil {
		return d.Errf("%s: %s '%s' is not such a number; write one such as %v", module, option, text, N(1))
	}
	*number = &n
	return nil
}

func parseFloat(text string) (float64, error) {
	n, err := strconv.ParseFloat(text, 64)
	if err == nil && (math.IsNaN(n) || math.IsInf(n, 0)) {
		err = strconv.ErrRange
	}
	return n, err
}

// parseWord parses the one argument of an option of the module as one of some words.
func parseWord(d *caddyfile.Dispenser, module string, word *string, words ...string) error {
	if *word != "" {
		return errTwice(d, module)
	}
	option := d.Val()
	var text string
	if !d.AllArgs(&text) || !slices.Contains(words, text) {
		return d.Errf("%s: %s takes one of %s", module, option, strings.Join(words, ", "))
	}
	*word = text
	return nil
}

// parseSize parses the one argument of an option of the module as a size such as
// 256MiB.
func parseSize(d *caddyfile.Dispenser, module string, size *int64) error {
	if *size != 0 {
		return errTwice(d, module)
	}
	option := d.Val()
	var text string
	if !d.AllArgs(&text) {
		return d.Errf("%s: %s takes one size, such as 256MiB", module, option)
	}
	n, err := humanize.ParseBytes(text)
	if err != nil || n == 0 || n > math.MaxInt64 {
		return d.Errf("%s: %s '%s' is not a size; write one such as 256MiB", module, option, text)
	}
	*size = int64(n)
	return nil
}

// parseCount parses the one argument of an option of the module as a number of at least
// 1.
func parseCount(d *caddyfile.Dispenser, module string, count *int64) error {
	if *count != 0 {
		return errTwice(d, module)
	}
	option := d.Val()
	var text string
	if !d.AllArgs(&text) {
		return d.Errf("%s: %s takes one number, such as 256", module, option)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return d.Errf("%s: %s '%s' is not a number of them; write one such as 256", module, option, text)
	}
	*count = n
	return nil
}

// parseDuration parses the one argument of an option of the module as a duration
// such as 2m.
func parseDuration(d *caddyfile.Dispenser, module string, duration *caddy.Duration) error {
	if *duration != 0 {
		return errTwice(d, module)
	}
	option := d.Val()
	var text string
	if !d.AllArgs(&text) {
		return d.Errf("%s: %s takes one duration, such as 2m", module, option)
	}
	n, err := caddy.ParseDuration(text)
	if err != nil || n <= 0 {
		return d.Errf("%s: %s '%s' is not a duration; write one such as 2m", module, option, text)
	}
	*duration = caddy.Duration(n)
	return nil
}

// parseFactor parses the one argument of an option of the module as a factor such
// as 20.
func parseFactor(d *caddyfile.Dispenser, module string, factor *float64) error {
	if *factor != 0 {
		return errTwice(d, module)
	}
	option := d.Val()
	var text string
	if !d.AllArgs(&text) {
		return d.Errf("%s: %s takes one factor, such as 20", module, option)
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0) || math.IsInf(n, 1) { // nor NaN
		return d.Errf("%s: %s '%s' is not a factor; write one such as 20", module, option, text)
	}
	*factor = n
	return nil
}

// parseFallback parses the selection policy that stands after its option.
func parseFallback(d *caddyfile.Dispenser, module string) ([]byte, error) {
	if !d.NextArg() {
		return nil, d.Errf("%s: fallback takes a selection policy, such as least_conn", module)
	}
	name := d.Val()
	unmarshaler, err := caddyfile.UnmarshalModule(d, "http.reverse_proxy.selection_policies."+name)
	if err != nil {
		return nil, fmt.Errorf("%s: fallback '%s': %w; name a selection policy, such as least_conn, and its options", module, name, err)
	}
	policy, ok := unmarshaler.(reverseproxy.Selector)
	if !ok {
		return nil, d.Errf("%s: fallback '%s' is not a selection policy; name one, such as least_conn", module, name)
	}
	return caddyconfig.JSONModuleObject(policy, "policy", name, nil), nil
}

// errTwice says that the current option of the module was there before.
func errTwice(d *caddyfile.Dispenser, module string) error {
	return d.Errf("%s: %s is there twice; keep one", module, d.Val())
}

var (
	_ caddyfile.Unmarshaler = (*App)(nil)
	_ caddyfile.Unmarshaler = (*CacheAware)(nil)
	_ caddyfile.Unmarshaler = (*PrefixHash)(nil)
	_ caddyfile.Unmarshaler = (*KVAware)(nil)
)
