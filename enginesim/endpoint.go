package enginesim

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// endpoint is a socket's address as ZeroMQ writes it, taken apart.
type endpoint struct {
	network string // tcp or unix
	host    string // as written, with * for all interfaces; of a unix socket its path
	port    int    // of tcp; 0 is any that is free
}

func parseEndpoint(text string) (endpoint, error) {
	scheme, rest, _ := strings.Cut(text, "://")
	switch {
	case scheme == "ipc" && rest != "":
		return endpoint{network: "unix", host: rest}, nil
	case scheme != "tcp":
		return endpoint{}, fmt.Errorf("endpoint is %q: write tcp://*:<port> or ipc://<path>", text)
	}
	colon := strings.LastIndexByte(rest, ':')
	if colon < 1 {
		return endpoint{}, fmt.Errorf("endpoint is %q: it must have a host, or *, and a port", text)
	}
	port, err := strconv.ParseUint(rest[colon+1:], 10, 16)
	if err != nil {
		return endpoint{}, fmt.Errorf("endpoint is %q: its port must be a number from 0 to 65535", text)
	}
	return endpoint{network: "tcp", host: rest[:colon], port: int(port)}, nil
}

func (e endpoint) anyPort() bool { return e.network == "tcp" && e.port == 0 }

// validate reports why so many ranks cannot have the endpoint.
func (e endpoint) validate(ranks int) error {
	if e.network == "unix" && ranks > 1 {
		return fmt.Errorf("endpoint %s is for one rank, there are %d: use tcp", e, ranks)
	}
	if e.port+ranks-1 > 65535 {
		return fmt.Errorf("endpoint %s has no ports above it for %d ranks", e, ranks)
	}
	return nil
}

// overlaps reports whether some rank would have one endpoint that another has, too.
func (e endpoint) overlaps(other endpoint, ranks int) bool {
	if e.network != other.network {
		return false
	}
	if e.network == "unix" {
		return e.host == other.host
	}
	return !e.anyPort() && !other.anyPort() && e.port < other.port+ranks && other.port < e.port+ranks
}

// of is the endpoint of a rank.
func (e endpoint) of(rank int) endpoint {
	if e.network == "tcp" && e.port != 0 {
		e.port += rank
	}
	return e
}

// address is what the net package calls it. A port that may be any is one of the
// loopback interface, as nobody can have meant to show it to others.
func (e endpoint) address() string {
	if e.network == "unix" {
		return e.host
	}
	host := strings.TrimSuffix(strings.TrimPrefix(e.host, "["), "]")
	if host == "*" {
		host = ""
	}
	if host == "" && e.port == 0 {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, strconv.Itoa(e.port))
}

// bound is the endpoint with the port that it has got.
func (e endpoint) bound(to net.Addr) endpoint {
	tcp, ok := to.(*net.TCPAddr)
	if !ok || !e.anyPort() {
		return e
	}
	if e.host == "*" {
		e.host = "127.0.0.1"
	}
	e.port = tcp.Port
	return e
}

func (e endpoint) String() string {
	if e.network == "unix" {
		return "ipc://" + e.host
	}
	return "tcp://" + e.host + ":" + strconv.Itoa(e.port)
}
