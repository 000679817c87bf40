package fleet

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"unicode/utf8"
)

const (
	// DefaultRatio is the bytes of prompt text a token stands for until an
	// engine has said how many tokens it counted.
	DefaultRatio = 4.0

	// MaxModels is the number of models that are known by name. Names come from
	// clients, and only those that an engine answered for are kept.
	MaxModels = 128

	// MaxModelName is the longest name, in bytes, by which a model is known.
	MaxModelName = 256

	// OtherModels is the name of the entry that stands for all the rest.
	OtherModels = "other"

	minRatio, maxRatio = 0.25, 64.0

	// minLearnedText is the least text of a prompt that says something about a
	// ratio; below it the chat template is most of the prompt.
	minLearnedText = 256

	// ratioBytes is the bytes of prompts a ratio is averaged over.
	ratioBytes = 4 << 20
)

// Models knows the models that the fleet serves. The zero Models is ready to use.
type Models struct {
	mu    sync.Mutex                        // held to add a model
	known atomic.Pointer[map[string]*Model] // copied on write, so that a look-up takes no lock
	other Model
	all   Model // learns from every model, in stored bytes
}

// Model is what was learned about one model, or about all that are not known by
// name.
type Model struct {
	name  string
	ratio atomic.Uint64 // float64 bits; 0 until learned

	mu            sync.Mutex
	bytes, tokens float64
}

// Get returns the model of that name, or the one that stands for all the rest.
func (m *Models) Get(name []byte) *Model {
	if known := m.known.Load(); known != nil {
		if model, ok := (*known)[string(name)]; ok {
			return model
		}
	}
	return &m.other
}

// Admit makes a model known by name, if there is room and the name can be shown,
// and returns it as Get does. An engine must have answered for the name.
func (m *Models) Admit(name string) *Model {
	if name == "" || len(name) > MaxModelName || !utf8.ValidString(name) {
		return &m.other
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	known := make(map[string]*Model)
	if old := m.known.Load(); old != nil {
		if model, ok := (*old)[name]; ok {
			return model
		}
		if len(*old) >= MaxModels {
			return &m.other
		}
		maps.Copy(known, *old)
	}
	model := &Model{name: name}
	known[name] = model
	m.known.Store(&known)
	return model
}

// Learn takes an engine's word that textBytes bytes of a prompt for model were
// tokens tokens, and that they count as storedBytes bytes where prompts are
// remembered. Answers that cannot be about text, and short prompts, are left out.
func (m *Models) Learn(model *Model, textBytes, storedBytes, tokens int) {
	model.learn(textBytes, tokens)
	m.all.learn(storedBytes, tokens)
}

// StoredRatio returns the bytes that a token of the whole fleet's prompts counts
// as where prompts are remembered.
func (m *Models) StoredRatio() float64 { return m.all.Ratio() }

// Len returns the number of models known by name.
func (m *Models) Len() int {
	if known := m.known.Load(); known != nil {
		return len(*known)
	}
	return 0
}

// Name returns the model's name, OtherModels for those not known by name.
func (m *Model) Name() string {
	if m.name == "" {
		return OtherModels
	}
	return m.name
}

// Known reports whether the model is known by name.
func (m *Model) Known() bool { return m.name != "" }

// Ratio returns the bytes of prompt text that a token of this model stands for.
func (m *Model) Ratio() float64 {
	if bits := m.ratio.Load(); bits != 0 {
		return math.Float64frombits(bits)
	}
	return DefaultRatio
}

// Tokens estimates the tokens that this much prompt text is.
func (m *Model) Tokens(textBytes int) int {
	return int(float64(textBytes)/m.Ratio() + 0.5)
}

func (m *Model) learn(textBytes, tokens int) {
	if textBytes < minLearnedText || tokens <= 0 {
		return
	}
	b, n := float64(textBytes), float64(tokens)
	if b/n < minRatio || b/n > maxRatio {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	keep := max(0, 1-b/ratioBytes)
	m.bytes = m.bytes*keep + b
	m.tokens = m.tokens*keep + n
	m.ratio.Store(math.Float64bits(m.bytes / m.tokens))
}
