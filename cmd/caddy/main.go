// Command caddy is Caddy with its standard modules, the inference modules, and
// the simulated engine that the quickstart runs against. A Caddy for production is built without the simulator, by xcaddy; see the README.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-inference/caddy-inference"
	_ "github.com/caddy-inference/caddy-inference/enginesim"
)

func main() {
	caddycmd.Main()
}
