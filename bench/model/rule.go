package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caddy-inference/caddy-inference/bench/trace"
)

// Rule makes what places the requests of one router.
type Rule func(Options) Placement

// Placement places a request that comes now.
type Placement func(r *trace.Request, now time.Time) Decision

// Decision is where a request was placed, and who wants to know what becomes of it.
type Decision struct {
	Engine int // by number, from 0

	// FirstToken is told when the first token comes, and of how many tokens of the
	// prompt were computed before it. It may be nil.
	FirstToken func(uncached int, now time.Time)

	// End is told when the answer has ended. It may be nil.
	End func(now time.Time)
}

// rules are those that can be asked for by name.
var rules = map[string]Rule{
	"cache_aware":    CacheAware,
	"least_conn":     LeastConn,
	"least_uncached": LeastUncached,
	"prefix_hash":    PrefixHash,
	"round_robin":    RoundRobin,
	"thresholds":     Thresholds,
}

// Names returns the names of the rules, sorted.
func Names() []string { return slices.Sorted(maps.Keys(rules)) }

// ByName returns the rule of that name.
func ByName(name string) (Rule, error) {
	if rule := rules[name]; rule != nil {
		return rule, nil
	}
	return nil, fmt.Errorf("there is no rule %q, only %s", name, strings.Join(Names(), ", "))
}
