package enginesim

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// requireOwnPorts reports the first address that the config is to listen on and
// another process already does. Caddy itself would not notice: it opens its
// sockets with SO_REUSEPORT, and a simulator that was left running would go on
// to answer part of the connections, with a cache of its own.
func requireOwnPorts(ctx caddy.Context) error {
	running := runningPorts()
	for _, module := range ctx.Modules() {
		app, ok := module.(*caddyhttp.App)
		if !ok {
			continue
		}
		for _, address := range listenAddresses(app) {
			for offset := range address.PortRangeSize() {
				if err := requireOwnPort(address, offset, running); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// requireOwnPort tries to listen on one port of an address, without sharing it.
// What else can be wrong with an address is for Caddy to say.
func requireOwnPort(address caddy.NetworkAddress, offset uint, running map[uint]bool) error {
	hostPort := address.JoinHostPort(offset)
	if running[address.StartPort+offset] || caddy.ListenerUsage(address.Network, hostPort) > 0 {
		return nil
	}
	listener, err := net.Listen(address.Network, hostPort)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s is in use by another process: end that one, or listen elsewhere", hostPort)
	}
	if err == nil {
		_ = listener.Close() // nobody has connected yet
	}
	return nil
}

// runningPorts are the TCP ports that the config to be replaced listens on. A
// new one may bind them to other hosts.
func runningPorts() map[uint]bool {
	ports := make(map[uint]bool)
	app, err := caddy.ActiveContext().AppIfConfigured("http")
	if err != nil {
		return ports
	}
	for _, address := range listenAddresses(app.(*caddyhttp.App)) {
		for offset := range address.PortRangeSize() {
			ports[address.StartPort+offset] = true
		}
	}
	return ports
}

// listenAddresses are the TCP addresses that an app's servers listen on, those
// that cannot be parsed left out.
func listenAddresses(app *caddyhttp.App) []caddy.NetworkAddress {
	var addresses []caddy.NetworkAddress
	replacer := caddy.NewReplacer()
	for _, server := range app.Servers {
		for _, listen := range server.Listen {
			address, err := caddy.ParseNetworkAddress(replacer.ReplaceAll(listen, ""))
			if err != nil {
				continue
			}
			switch address.Network {
			case "tcp", "tcp4", "tcp6":
				addresses = append(addresses, address)
			}
		}
	}
	return addresses
}
