package trace

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// generators are those that can be asked for by name.
var generators = map[string]func(seed uint64) []Request{
	"agents": Agents,
	"burst":  Burst,
	"long":   Long,
	"shared": Shared,
	"unique": Unique,
}

// Names returns the names of the generators, sorted.
func Names() []string { return slices.Sorted(maps.Keys(generators)) }

// ByName returns the trace that a generator of that name makes of a seed. A name
// that is no generator's is a file's.
func ByName(name string, seed uint64) ([]Request, error) {
	if generate := generators[name]; generate != nil {
		return generate(seed), nil
	}
	requests, err := ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("trace %q is neither a file nor one of %s", name, strings.Join(Names(), ", "))
	}
	return requests, err
}
