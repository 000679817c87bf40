package enginesim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	caddy.RegisterModule(Handler{})
	httpcaddyfile.RegisterHandlerDirective("inference_sim", parseCaddyfile)
	httpcaddyfile.RegisterDirectiveOrder("inference_sim", httpcaddyfile.Before, "respond")
}

// Handler is a simulated inference engine that speaks as vLLM does: OpenAI chat,
// completions, responses and embeddings, Anthropic messages, scores and rankings,
// SGLang's own `/generate`, token ids and metrics, with a prefix cache, a prefill
// queue and decode steps. It is for trying out and testing
// routers; it answers every request itself and passes none on.
//
// An engine's state (cache, queue, counters, start time) lasts over config
// reloads as long as its settings stay the same. Handlers with the same name
// and settings are the same engine: give each its own name.
type Handler struct {
	// What tells this engine from others with the same settings. Default: `sim`
	// in JSON; in a Caddyfile `sim-1`, `sim-2` and so on, in order of appearance.
	Name string `json:"name,omitempty"`

	// The models it serves. Requests that name no model get the first, requests
	// for others are answered with 404. Prompts to one model do not hit what
	// another has cached. Default: `sim`.
	Models []string `json:"models,omitempty"`

	// The number of data parallel ranks, each with a cache and a queue of its own and
	// all the settings here. `X-Data-Parallel-Rank` names the one for a request; those
	// without it take turns. Default: 1.
	Ranks int `json:"ranks,omitempty"`

	// The size of the KV cache in tokens, rounded down to blocks. Default: 524288.
	Capacity int `json:"capacity,omitempty"`

	// The number of tokens in a block of the KV cache. Only whole blocks are
	// hit. Default: 16.
	BlockSize int `json:"block_size,omitempty"`

	// The most tokens that a prompt and its answer may have together. Default:
	// 131072, or what fits into the cache if that is less.
	MaxModelLen int `json:"max_model_len,omitempty"`

	// How many tokens a second are prefilled, of those that the cache does not
	// hold. One prompt is prefilled at a time. 0 takes all delays away, those of
	// decoding too, to measure what a proxy adds. Default: 8000.
	PrefillRate *float64 `json:"prefill_rate,omitempty"`

	// The time from one token of an answer to the next, apart from what the
	// running requests add. Default: 6ms.
	DecodeBase *caddy.Duration `json:"decode_base,omitempty"`

	// What each running request adds to the time between two tokens. Default:
	// 350us.
	DecodePerRunning *caddy.Duration `json:"decode_per_running,omitempty"`

	// How many times faster than these figures everything is. Default: 1.
	Speed float64 `json:"speed,omitempty"`

	// The number of tokens that an event of a streamed answer carries, as with the
	// `--stream-interval` of vLLM and SGLang: the first token comes at once, then so
	// many together, and what is left at the end. Default: 1.
	StreamInterval int `json:"stream_interval,omitempty"`

	// Whether answers show in `usage.prompt_tokens_details` how many tokens were
	// found in the cache. Without it the details are null, as they are in vLLM
	// unless it is started with `--enable-prompt-tokens-details`. Default: true.
	PromptTokensDetails *bool `json:"prompt_tokens_details,omitempty"`

	// How the engine publishes what its cache stores and lets go, as with the
	// `--kv-events-config` of vLLM and SGLang. Default: not at all.
	Events *EventOptions `json:"events,omitempty"`

	server *Server
	key    string
}

// engines are the engines of all configs that are loaded, so that a reload finds
// them again. Key: name and settings as JSON.
var engines = caddy.NewUsagePool()

// pooled is an engine in the pool.
type pooled struct{ server *Server }

// Destruct closes the sockets that events are published on. There is nothing else to
// end: an engine runs nothing but the requests that it is in, and those may still be
// finishing after their config is gone.
func (p pooled) Destruct() error {
	p.server.CloseEvents()
	return nil
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.inference_sim",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision fills in what was left unset, and takes up the engine of an earlier
// config if it has the same name and settings. A port that another process
// listens on is an error.
func (h *Handler) Provision(ctx caddy.Context) error {
	if err := requireOwnPorts(ctx); err != nil {
		return fmt.Errorf("inference_sim: %w", err)
	}
	h.setDefaults()
	key, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("inference_sim %s: settings as JSON: %w", h.Name, err)
	}
	value, _, err := engines.LoadOrNew(string(key), func() (caddy.Destructor, error) {
		return pooled{newServer(h.options())}, nil
	})
	if err != nil {
		return fmt.Errorf("inference_sim %s: %w", h.Name, err)
	}
	h.key, h.server = string(key), value.(pooled).server
	return h.register(ctx)
}

func (h *Handler) setDefaults() {
	defaults := DefaultOptions()
	if h.Name == "" {
		h.Name = "sim"
	}
	if len(h.Models) == 0 {
		h.Models = defaults.Models
	}
	if h.Ranks == 0 {
		h.Ranks = defaults.Ranks
	}
	if h.Events != nil {
		h.Events.setDefaults()
	}
	if h.Capacity == 0 {
		h.Capacity = defaults.Capacity
	}
	if h.BlockSize == 0 {
		h.BlockSize = defaults.BlockSize
	}
	if h.MaxModelLen == 0 && h.BlockSize > 0 {
		h.MaxModelLen = min(defaults.MaxModelLen, h.Capacity/h.BlockSize*h.BlockSize)
	}
	if h.PrefillRate == nil {
		h.PrefillRate = &defaults.PrefillRate
	}
	if h.DecodeBase == nil {
		h.DecodeBase = new(caddy.Duration(defaults.DecodeBase))
	}
	if h.DecodePerRunning == nil {
		h.DecodePerRunning = new(caddy.Duration(defaults.DecodePerRunning))
	}
	if h.Speed == 0 {
		h.Speed = defaults.Speed
	}
	if h.StreamInterval == 0 {
		h.StreamInterval = defaults.StreamInterval
	}
	if h.PromptTokensDetails == nil {
		h.PromptTokensDetails = &defaults.PromptTokensDetails
	}
}

// Validate checks the settings.
func (h *Handler) Validate() error {
	if err := h.options().Validate(); err != nil {
		return fmt.Errorf("inference_sim %s: %w", h.Name, err)
	}
	return nil
}

// options are the settings of the engine behind a handler that has its defaults.
func (h *Handler) options() Options {
	return Options{
		Models:              h.Models,
		Ranks:               h.Ranks,
		Events:              h.Events,
		Capacity:            h.Capacity,
		BlockSize:           h.BlockSize,
		MaxModelLen:         h.MaxModelLen,
		PrefillRate:         *h.PrefillRate,
		DecodeBase:          time.Duration(*h.DecodeBase),
		DecodePerRunning:    time.Duration(*h.DecodePerRunning),
		Speed:               h.Speed,
		StreamInterval:      h.StreamInterval,
		PromptTokensDetails: *h.PromptTokensDetails,
	}
}

// Cleanup lets go of the engine. Its state ends with the last config that has it.
func (h *Handler) Cleanup() error {
	if h.key == "" {
		return nil
	}
	_, err := engines.Delete(h.key)
	h.key = ""
	return err
}

// ServeHTTP answers a request as the engine would.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	h.server.ServeHTTP(w, r)
	return nil
}

// defaultNames is the key of the number of engines without a name so far, in
// what directives of one Caddyfile share.
const defaultNames = "inference_sim.default_names"

// parseCaddyfile sets up a handler from a directive. See UnmarshalCaddyfile.
func parseCaddyfile(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Handler)
	if err := handler.UnmarshalCaddyfile(h.Dispenser); err != nil {
		return nil, err
	}
	if handler.Name == "" {
		prefix := "sim-"
		if h.IsNamedRoute() { // it counts apart from the sites
			prefix = "sim-named-"
		}
		n, _ := h.State[defaultNames].(int)
		h.State[defaultNames] = n + 1
		handler.Name = prefix + strconv.Itoa(n+1)
	}
	return handler, nil
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	inference_sim [<matcher>] {
//		name                  <name>
//		model                 <names...>
//		ranks                 <number>
//		capacity              <tokens>
//		block_size            <tokens>
//		max_model_len         <tokens>
//		prefill_rate          <tokens per second>
//		decode_base           <duration>
//		decode_per_running    <duration>
//		speed                 <factor>
//		stream_interval       <tokens>
//		prompt_tokens_details on|off
//		events {
//			shape        vllm|vllm-array|sglang|sglang-array
//			endpoint     <endpoint>
//			replay       <endpoint>
//			topic        <topic>
//			buffer_steps <batches>
//			hashes       int|bytes
//		}
//	}
//
// All lines are optional; model may be repeated. An empty events block, or none but the
// word, has events published with the defaults.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume directive name
	if d.NextArg() {
		return d.ArgErr()
	}
	for d.NextBlock(0) {
		option := d.Val()
		args := d.RemainingArgs()
		if option == "model" {
			if len(args) == 0 {
				return d.ArgErr()
			}
			h.Models = append(h.Models, args...)
			continue
		}
		if option == "events" && len(args) == 0 {
			if err := h.unmarshalEvents(d); err != nil {
				return err
			}
			continue
		}
		if len(args) != 1 {
			return d.ArgErr()
		}
		if err := h.setOption(option, args[0]); err != nil {
			return d.Errf("%s: %v", option, err)
		}
	}
	return nil
}

// setOption sets one option of the Caddyfile syntax that takes one value.
func (h *Handler) setOption(option, value string) (err error) {
	switch option {
	case "name":
		h.Name = value
	case "ranks":
		h.Ranks, err = parseCount(value)
	case "capacity":
		h.Capacity, err = parseTokens(value)
	case "block_size":
		h.BlockSize, err = parseTokens(value)
	case "max_model_len":
		h.MaxModelLen, err = parseTokens(value)
	case "prefill_rate":
		h.PrefillRate, err = parseFactor(value)
	case "decode_base":
		h.DecodeBase, err = parseDuration(value)
	case "decode_per_running":
		h.DecodePerRunning, err = parseDuration(value)
	case "speed":
		var speed *float64
		if speed, err = parseFactor(value); err == nil {
			h.Speed = *speed
		}
		if err == nil && h.Speed == 0 {
			err = errors.New("0 would stop time: use prefill_rate 0 for no delays")
		}
	case "stream_interval":
		h.StreamInterval, err = parseTokens(value)
	case "prompt_tokens_details":
		if value != "on" && value != "off" {
			return fmt.Errorf("%q is neither on nor off; write one of them", value)
		}
		h.PromptTokensDetails = new(value == "on")
	default:
		return errors.New("unrecognized option; there are name, model, ranks, events, capacity, block_size, max_model_len, prefill_rate, decode_base, decode_per_running, speed, stream_interval and prompt_tokens_details")
	}
	return err
}

// parseTokens parses a number of tokens; underscores may group its digits.
func parseTokens(value string) (int, error) {
	n, err := strconv.Atoi(strings.ReplaceAll(value, "_", ""))
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is not a number of tokens, 1 or more", value)
	}
	return n, nil
}

func parseFactor(value string) (*float64, error) {
	f, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return nil, fmt.Errorf("%q is not a number; write one such as 8000 or 0.5", value)
	}
	return &f, nil
}

func parseDuration(value string) (*caddy.Duration, error) {
	duration, err := caddy.ParseDuration(value)
	if err != nil {
		return nil, fmt.Errorf("%q is not a duration; write one such as 6ms", value)
	}
	return new(caddy.Duration(duration)), nil
}

var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddyfile.Unmarshaler       = (*Handler)(nil)
)
