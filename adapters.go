package inference

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/caddy-inference/caddy-inference/prompt"
)

const (
	// maxAdapters bounds the names of adapters that are remembered.
	maxAdapters = 1024

	// maxAdapterName is how much of the name of an unknown adapter is kept.
	maxAdapterName = 256
)

// adapters are the names of LoRA adapters that cache events have told of. To vLLM a
// request names its adapter in place of its model, so they are what tells such a name
// from a model's. Until the first event of an adapter its requests are taken for the
// model's own.
type adapters struct {
	mu    sync.Mutex // of whoever adds one
	names atomic.Pointer[map[string]string]
}

// learn takes note of an adapter.
func (a *adapters) learn(name string) {
	if name == "" || a.named([]byte(name)) != "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	names := map[string]string{}
	if known := a.names.Load(); known != nil {
		names = maps.Clone(*known)
	}
	if len(names) < maxAdapters {
		names[name] = name
		a.names.Store(&names)
	}
}

// named returns the name if it is an adapter's.
func (a *adapters) named(name []byte) string {
	names := a.names.Load()
	if names == nil {
		return ""
	}
	return (*names)[string(name)]
}

// of returns the name of the adapter that a prompt is for, or nothing.
func (a *adapters) of(p *prompt.Prompt) string {
	if name := a.named(p.Model); name != "" || len(p.LoRA) == 0 {
		return name
	}
	if name := a.named(p.LoRA); name != "" {
		return name
	}
	return string(p.LoRA[:min(len(p.LoRA), maxAdapterName)])
}
