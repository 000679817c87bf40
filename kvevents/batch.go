package kvevents

// Batch is a batch of events, decoded. Decode fills it again and again without
// allocating; what a batch holds is valid until the next Decode, and text in it as long
// as the payload is not written to.
type Batch struct {
	// Time is when the engine published the batch, in seconds since 1970.
	Time float64

	// Rank is the data parallel rank that published it, -1 if it does not say.
	Rank int

	// Events are what happened, in order.
	Events []Event

	// Skipped is the number of events of a type that is not known here.
	Skipped int

	hashes []Hash
	tokens []uint32
	extra  []ExtraKey
	blocks [][]ExtraKey
}

// Kind is what an event says.
type Kind uint8

const (
	unknown Kind = iota
	Stored       // blocks have come to a tier
	Removed      // blocks have left a tier
	Cleared      // all blocks are gone
)

var kinds = map[Kind]string{Stored: "stored", Removed: "removed", Cleared: "cleared"}

func (k Kind) String() string { return kinds[k] }

// Hash is an engine's name for a block in its place: the block's tokens and all before
// them. It means something to that engine alone. Integers keep their 64 bits, longer
// names are digested, differently in each process.
type Hash uint64

// Event is one event. Fields that the engine did not send are zero.
type Event struct {
	Kind Kind

	// Hashes are the blocks, in order. A sliding window group may name only the last
	// blocks of Tokens, or none.
	Hashes []Hash

	// Parent is the block before the first token, if HasParent.
	Parent    Hash
	HasParent bool

	// Tokens are the token ids of the blocks, TokenWidth numbers for each position:
	// 2 where an engine publishes pairs of tokens, else 1.
	Tokens     []uint32
	TokenWidth int

	// BlockSize is the number of positions in a block.
	BlockSize int

	// LoRAID is the adapter's number and LoRAName its name, if HasLoRAID and if not nil.
	LoRAID    int64
	HasLoRAID bool
	LoRAName  []byte

	// Tier is where the blocks are, Medium what the engine calls it.
	Tier   Tier
	Medium []byte

	// ExtraKeys are what besides its tokens tells a block apart, for each block of
	// Hashes. Nil if no block has any.
	ExtraKeys [][]ExtraKey

	// Group is the number of the KV cache group, Attention its kind and Window the
	// positions that it looks back, if it is a sliding window. HasGroup is false from
	// engines that have but one group.
	Group     int
	HasGroup  bool
	Attention Attention
	Window    int

	// CacheSalt separates caches; nil is none. SGLang sends it here, vLLM among the
	// extra keys.
	CacheSalt []byte

	// SessionID is the session whose request stored the blocks.
	SessionID []byte

	// Locality and Ownership say more about blocks that are not in the engine's own
	// memory.
	Locality  []byte
	Ownership []byte
}

// Tier is where blocks are, from fast to slow.
type Tier uint8

const (
	TierUnknown  Tier = iota // of a medium that is not known here
	TierDevice               // the accelerator's memory; also if the engine does not say
	TierHost                 // the host's memory
	TierDisk                 // local disks
	TierExternal             // storage shared with other engines
)

var tierNames = [...]string{"unknown", "device", "host", "disk", "external"}

func (t Tier) String() string { return tierNames[t] }

// tierOf returns the tier of a medium.
func tierOf(medium []byte) Tier {
	switch string(medium) {
	case "", "GPU":
		return TierDevice
	case "CPU", "CPU_PINNED", "CPU_TIER1", "CPU_TIER2":
		return TierHost
	case "DISK":
		return TierDisk
	case "STORAGE", "EXTERNAL":
		return TierExternal
	}
	return TierUnknown
}

// Attention is the kind of a KV cache group.
type Attention uint8

const (
	AttentionUnsaid  Attention = iota // the engine does not say; it has one kind
	AttentionFull                     // every block back to the first is needed
	AttentionSliding                  // only the blocks within the window are
	AttentionOther                    // a kind that is not known here
)

func attentionOf(kind []byte) Attention {
	switch string(kind) {
	case "":
		return AttentionUnsaid
	case "full_attention", "mla_attention":
		return AttentionFull
	case "sliding_window", "sliding_window_mla":
		return AttentionSliding
	}
	return AttentionOther
}

// ExtraKey is something besides tokens that tells a block apart.
type ExtraKey struct {
	// Kind is what it is, as far as its shape tells.
	Kind ExtraKind

	// Tag is the word that newer engines put first: "lora", "mm", "cache_salt".
	Tag []byte

	// Text is the name, the salt, the digest or the identifier.
	Text []byte

	// Offset is where a medium begins, in tokens from the block's start; it is
	// negative if it began in a block before.
	Offset int64

	// Raw is the key as it was sent.
	Raw []byte
}

// ExtraKind is the shape of an [ExtraKey].
type ExtraKind uint8

const (
	ExtraOther ExtraKind = iota // a shape that is not known here: see Raw
	ExtraText                   // an adapter's name or a salt
	ExtraBytes                  // a digest
	ExtraMedia                  // an identifier and an offset
)
