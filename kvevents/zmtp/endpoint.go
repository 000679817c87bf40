package zmtp

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// ParseEndpoint takes an endpoint as ZeroMQ writes it apart, into a network and an
// address of the net package: "tcp://host:port", with IPv6 addresses in brackets or not
// and * for all addresses to listen on, or "ipc://path".
func ParseEndpoint(endpoint string) (network, address string, err error) {
	scheme, rest, _ := strings.Cut(endpoint, "://")
	switch scheme {
	case "tcp":
		address, err = parseTCP(rest)
		if err != nil {
			return "", "", fmt.Errorf("endpoint %q: %w", endpoint, err)
		}
		return "tcp", address, nil
	case "ipc":
		if rest == "" {
			return "", "", fmt.Errorf("endpoint %q has no path after ipc://", endpoint)
		}
		return "unix", rest, nil
	}
	return "", "", fmt.Errorf("endpoint %q: want tcp://host:port or ipc://path", endpoint)
}

func parseTCP(s string) (address string, err error) {
	host, port, ok := strings.CutLast(s, ":")
	if !ok {
		return "", errors.New("no port after the host")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", fmt.Errorf("port %q is not a number from 0 to 65535", port)
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	switch host {
	case "":
		return "", errors.New("no host before the port; * is all addresses")
	case "*":
		host = ""
	}
	return net.JoinHostPort(host, port), nil
}
