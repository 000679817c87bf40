package model

import (
	"cmp"
	"time"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// RoundRobin places requests on each engine in turn.
func RoundRobin(o Options) Placement {
	next := -1
	return func(*trace.Request, time.Time) Decision {
		next = (next + 1) % o.Engines
		return Decision{Engine: next}
	}
}

// LeastConn places a request on the engine with the fewest requests in flight, of
// several on the one that was sent the fewest.
func LeastConn(o Options) Placement {
	type account struct{ inFlight, sent int }
	accounts := make([]account, o.Engines)
	return func(*trace.Request, time.Time) Decision {
		least := 0
		for i, a := range accounts {
			if cmp.Or(a.inFlight-accounts[least].inFlight, a.sent-accounts[least].sent) < 0 {
				least = i
			}
		}
		a := &accounts[least]
		a.inFlight++
		a.sent++
		return Decision{Engine: least, End: func(time.Time) { a.inFlight-- }}
	}
}
