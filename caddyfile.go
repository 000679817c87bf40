package inference

import (
	"math"

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
//	}
func parseApp(d *caddyfile.Dispenser, existing any) (any, error) {
	if existing != nil {
		return nil, d.Err("inference: the global option is there twice")
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
		return d.ArgErr()
	}
	for d.NextBlock(0) {
		switch d.Val() {
		case "max_buffered":
			if err := parseSize(d, &a.MaxBuffered); err != nil {
				return err
			}
		default:
			return d.Errf("inference: unrecognized option '%s'", d.Val())
		}
	}
	return nil
}

// UnmarshalCaddyfile sets up the policy from Caddyfile tokens:
//
//	lb_policy cache_aware {
//		max_tree_size     <size>
//		eviction_interval <duration>
//		max_body          <size>
//		fallback          <policy> [<options>]
//	}
func (c *CacheAware) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume policy name
	if d.NextArg() {
		return d.ArgErr()
	}
	for d.NextBlock(0) {
		switch d.Val() {
		case "max_tree_size":
			if err := parseSize(d, &c.MaxTreeSize); err != nil {
				return err
			}
		case "eviction_interval":
			if err := parseDuration(d, &c.EvictionInterval); err != nil {
				return err
			}
		case "max_body":
			if err := parseSize(d, &c.MaxBody); err != nil {
				return err
			}
		case "fallback":
			if c.FallbackRaw != nil {
				return d.Err("cache_aware: fallback is there twice")
			}
			raw, err := parseFallback(d)
			if err != nil {
				return err
			}
			c.FallbackRaw = raw
		default:
			return d.Errf("cache_aware: unrecognized option '%s'", d.Val())
		}
	}
	return nil
}

// parseSize parses the one argument of an option as a size such as 256MiB.
func parseSize(d *caddyfile.Dispenser, size *int64) error {
	option := d.Val()
	if *size != 0 {
		return d.Errf("%s is there twice", option)
	}
	var text string
	if !d.AllArgs(&text) {
		return d.ArgErr()
	}
	n, err := humanize.ParseBytes(text)
	if err != nil || n == 0 || n > math.MaxInt64 {
		return d.Errf("%s '%s': not a size such as 256MiB", option, text)
	}
	*size = int64(n)
	return nil
}

// parseDuration parses the one argument of an option as a duration such as 2m.
func parseDuration(d *caddyfile.Dispenser, duration *caddy.Duration) error {
	option := d.Val()
	if *duration != 0 {
		return d.Errf("%s is there twice", option)
	}
	var text string
	if !d.AllArgs(&text) {
		return d.ArgErr()
	}
	n, err := caddy.ParseDuration(text)
	if err != nil || n <= 0 {
		return d.Errf("%s '%s': not a duration such as 2m", option, text)
	}
	*duration = caddy.Duration(n)
	return nil
}

// parseFallback parses the selection policy that stands after its option.
func parseFallback(d *caddyfile.Dispenser) ([]byte, error) {
	if !d.NextArg() {
		return nil, d.ArgErr()
	}
	name := d.Val()
	module, err := caddyfile.UnmarshalModule(d, "http.reverse_proxy.selection_policies."+name)
	if err != nil {
		return nil, err
	}
	policy, ok := module.(reverseproxy.Selector)
	if !ok {
		return nil, d.Errf("'%s' is not a selection policy", name)
	}
	return caddyconfig.JSONModuleObject(policy, "policy", name, nil), nil
}

var (
	_ caddyfile.Unmarshaler = (*App)(nil)
	_ caddyfile.Unmarshaler = (*CacheAware)(nil)
)
