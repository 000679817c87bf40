package enginesim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

func init() {
	caddy.RegisterModule(new(eventsApp))
}

// eventsApp opens the sockets of all engines of a config when the config starts: what is
// only validated must open none, and a handler is not told which of the two it is for.
// Handlers load it by themselves.
type eventsApp struct {
	handlers []*Handler
}

// CaddyModule returns the Caddy module information.
func (*eventsApp) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "inference_sim",
		New: func() caddy.Module { return new(eventsApp) },
	}
}

// Start opens the sockets. Those of engines that the config before had, too, are open.
func (a *eventsApp) Start() error {
	owners := make(map[string]*Server)
	for _, h := range a.handlers {
		for _, address := range h.server.eventAddresses() {
			owner := owners[address]
			if owner != nil && owner != h.server {
				return fmt.Errorf("inference_sim %s: events at %s, as those of another engine: give each its own endpoint", h.Name, address)
			}
			owners[address] = h.server
		}
		if err := h.server.OpenEvents(listenAsCaddy); err != nil {
			return fmt.Errorf("inference_sim %s: %w", h.Name, err)
		}
	}
	return nil
}

// Stop has nothing to do: sockets are closed with the last config that has their engine.
func (*eventsApp) Stop() error { return nil }

// register has the engine's sockets opened when the config starts.
func (h *Handler) register(ctx caddy.Context) error {
	if h.Events == nil {
		return nil
	}
	app, err := ctx.App("inference_sim")
	if err != nil {
		return fmt.Errorf("inference_sim %s: %w", h.Name, err)
	}
	events := app.(*eventsApp)
	events.handlers = append(events.handlers, h)
	return nil
}

// eventAddresses are those that the engine listens on, apart from ports that may be any.
func (s *Server) eventAddresses() []string {
	var addresses []string
	for _, p := range s.publishers {
		live, replay := p.endpoints()
		if listens(p.options.Endpoint) && !live.anyPort() {
			addresses = append(addresses, live.address())
		}
		if p.options.Replay != "" && !replay.anyPort() {
			addresses = append(addresses, replay.address())
		}
	}
	return addresses
}

// listenAsCaddy opens an address as Caddy opens its own, so that the config to come can
// have it before the one that goes has let go of it.
func listenAsCaddy(network, address string) (net.Listener, error) {
	if network != "tcp" || strings.HasSuffix(address, ":0") {
		return listenTCP(network, address)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	parsed, err := caddy.ParseNetworkAddress(caddy.JoinNetworkAddress(network, host, port))
	if err != nil {
		return nil, err
	}
	if err := requireOwnPort(parsed, 0, nil); err != nil {
		return nil, err
	}
	opened, err := parsed.Listen(context.Background(), 0, net.ListenConfig{})
	if err != nil {
		return nil, err
	}
	listener, ok := opened.(net.Listener)
	if !ok {
		return nil, fmt.Errorf("%s cannot be listened on", address)
	}
	return listener, nil
}

// unmarshalEvents sets up events from the block behind the word, if there is one.
func (h *Handler) unmarshalEvents(d *caddyfile.Dispenser) error {
	h.Events = new(EventOptions)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option := d.Val()
		args := d.RemainingArgs()
		if len(args) != 1 {
			return d.ArgErr()
		}
		if err := h.Events.set(option, args[0]); err != nil {
			return d.Errf("events: %s: %v", option, err)
		}
	}
	return nil
}

func (o *EventOptions) set(option, value string) (err error) {
	switch option {
	case "shape":
		o.Shape = Shape(value)
	case "endpoint":
		o.Endpoint = value
	case "replay":
		o.Replay = value
	case "topic":
		o.Topic = value
	case "buffer_steps":
		o.BufferSteps, err = parseCount(value)
	case "hashes":
		o.Hashes = HashForm(value)
	default:
		return errors.New("unrecognized option; there are shape, endpoint, replay, topic, buffer_steps and hashes")
	}
	return err
}

func parseCount(value string) (int, error) {
	n, err := strconv.Atoi(strings.ReplaceAll(value, "_", ""))
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is not a number, 1 or more", value)
	}
	return n, nil
}

var _ caddy.App = (*eventsApp)(nil)
