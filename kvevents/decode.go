package kvevents

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/zeebo/xxh3"
)

// Limits of a batch. They are far above what an engine can do in a step, and keep the
// memory of a decoded batch within a few times its payload's.
const (
	maxEvents    = 1 << 16
	maxHashes    = 1 << 20
	maxTokens    = 1 << 23
	maxExtraKeys = 1 << 16
	maxWidth     = 4       // token ids at a position
	maxBlockSize = 1 << 20 // positions
	maxRank      = 1 << 16
	maxGroup     = 1 << 16
	keepBytes    = 1 << 20 // memory of each list that an idle batch keeps
)

// seed makes digests of long names ones that nobody can prepare.
var seed = rand.Uint64() //nolint:gosec // not a secret worth more

// Decode reads a batch. If it fails, the batch holds no events. Keys, fields and types of
// events that are not known here are stepped over.
func (b *Batch) Decode(payload []byte) error {
	b.reset()
	m := reader{payload}
	err := b.batch(&m)
	if err != nil {
		b.Events, b.Skipped = b.Events[:0], 0
		return fmt.Errorf("batch of %d bytes, %d bytes before its end: %w", len(payload), len(m.b), err)
	}
	return nil
}

// reset empties the batch and lets memory go that a very large one has needed.
func (b *Batch) reset() {
	b.Time, b.Rank, b.Skipped = 0, -1, 0
	b.Events = emptied(b.Events, 256)
	b.hashes = emptied(b.hashes, 8)
	b.tokens = emptied(b.tokens, 4)
	b.extra = emptied(b.extra, 128)
	b.blocks = emptied(b.blocks, 24)
}

// emptied empties a list of elements of so many bytes.
func emptied[T any](list []T, size int) []T {
	if cap(list)*size > keepBytes && len(list) < cap(list)/4 {
		return nil
	}
	return list[:0]
}

func (b *Batch) batch(m *reader) error {
	if m.next() == shapeMap {
		return b.batchMap(m)
	}
	n, err := m.array()
	if err != nil {
		return err
	}
	if n < 2 {
		return errType
	}
	if err := b.time(m); err != nil {
		return err
	}
	if err := b.events(m); err != nil {
		return err
	}
	if n > 2 {
		if err := b.rank(m); err != nil {
			return err
		}
	}
	for range n - 3 {
		if err := m.skip(); err != nil {
			return err
		}
	}
	return nil
}

func (b *Batch) batchMap(m *reader) error {
	n, err := m.mapping()
	if err != nil {
		return err
	}
	seen := false
	for range n {
		key, err := m.key()
		if err != nil {
			return err
		}
		switch string(key) {
		case "ts":
			err = b.time(m)
		case "events":
			seen = true
			err = b.events(m)
		case "data_parallel_rank", "attn_dp_rank":
			err = b.rank(m)
		default:
			err = m.skip()
		}
		if err != nil {
			return err
		}
	}
	if !seen {
		return errType
	}
	return nil
}

// key reads a map's key; one that is not text is none that we know.
func (m *reader) key() ([]byte, error) {
	if m.next() != shapeBytes {
		return nil, m.skip()
	}
	return m.bytes()
}

func (b *Batch) time(m *reader) error {
	if m.next() == shapeNil {
		return m.skip()
	}
	var err error
	b.Time, err = m.float()
	return err
}

func (b *Batch) rank(m *reader) error {
	if m.next() != shapeInt {
		return m.skip()
	}
	n, err := m.number(maxRank)
	b.Rank = n
	return err
}

func (b *Batch) events(m *reader) error {
	n, err := m.array()
	if err != nil {
		return err
	}
	for range n {
		if len(b.Events) == maxEvents {
			return errLimit
		}
		b.Events = append(b.Events, Event{})
		e := &b.Events[len(b.Events)-1]
		if m.next() == shapeMap {
			err = b.eventMap(m, e)
		} else {
			err = b.eventArray(m, e)
		}
		if err != nil {
			return err
		}
		if e.Kind == unknown {
			b.Events = b.Events[:len(b.Events)-1]
			b.Skipped++
			continue
		}
		if err := e.check(); err != nil {
			return err
		}
	}
	return nil
}

// check says whether an event can be made sense of.
func (e *Event) check() error {
	if e.Kind == Cleared {
		return nil
	}
	if e.Hashes == nil {
		return fmt.Errorf("an event names no blocks: %w", errType)
	}
	if e.Kind == Stored && len(e.Tokens) > 0 && e.BlockSize == 0 {
		return fmt.Errorf("an event has no block size: %w", errType)
	}
	e.Tier = tierOf(e.Medium)
	return nil
}

func kindOf(tag []byte) Kind {
	switch string(tag) {
	case "BlockStored":
		return Stored
	case "BlockRemoved":
		return Removed
	case "AllBlocksCleared":
		return Cleared
	}
	return unknown
}

// field is what a value of an event is.
type field uint8

const (
	fieldUnknown field = iota
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoRAID
	fieldMedium
	fieldLoRAName
	fieldExtraKeys
	fieldGroup
	fieldAttention
	fieldWindow
	fieldLocality
	fieldOwnership
	fieldSessionID
	fieldCacheSalt
	fieldMetadata
)

// The fields of events that are arrays, after the tag.
var (
	storedFields = [...]field{
		fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoRAID, fieldMedium, fieldLoRAName,
		fieldExtraKeys, fieldGroup, fieldAttention, fieldWindow, fieldLocality, fieldOwnership, fieldSessionID,
	}
	removedFields = [...]field{fieldHashes, fieldMedium, fieldGroup, fieldLocality, fieldOwnership}
)

func (b *Batch) eventArray(m *reader, e *Event) error {
	n, err := m.array()
	if err != nil {
		return err
	}
	if n == 0 {
		return errType
	}
	tag, err := m.bytes()
	if err != nil {
		return err
	}
	e.Kind = kindOf(tag)
	var fields []field
	switch e.Kind {
	case Stored:
		fields = storedFields[:]
	case Removed:
		fields = removedFields[:]
	}
	for i := range n - 1 {
		f := fieldUnknown
		if i < len(fields) {
			f = fields[i]
		}
		if f == fieldLoRAName && m.next() == shapeMap { // SGLang's place for what came later
			f = fieldMetadata
		}
		if err := b.field(m, e, f); err != nil {
			return err
		}
	}
	return nil
}

func (b *Batch) eventMap(m *reader, e *Event) error {
	n, err := m.mapping()
	if err != nil {
		return err
	}
	for range n {
		key, err := m.key()
		if err != nil {
			return err
		}
		if string(key) == "type" {
			tag, err := m.bytes()
			if err != nil {
				return err
			}
			e.Kind = kindOf(tag)
			continue
		}
		if err := b.field(m, e, fieldOf(key)); err != nil {
			return err
		}
	}
	return nil
}

func fieldOf(key []byte) field {
	switch string(key) {
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoRAID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldLoRAName
	case "extra_keys":
		return fieldExtraKeys
	case "group_idx":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldAttention
	case "kv_cache_spec_sliding_window":
		return fieldWindow
	case "locality":
		return fieldLocality
	case "ownership":
		return fieldOwnership
	case "session_id":
		return fieldSessionID
	case "cache_salt":
		return fieldCacheSalt
	}
	return fieldUnknown
}

// field reads a value of an event. What must be right to know which blocks it speaks of
// has the type expected or the batch is wrong; the rest is stepped over if it has not.
func (b *Batch) field(m *reader, e *Event, f field) (err error) {
	if m.next() == shapeNil {
		m.b = m.b[1:]
		return nil
	}
	switch f {
	case fieldHashes:
		e.Hashes, err = b.hashList(m)
	case fieldParent:
		e.HasParent = true
		e.Parent, err = m.hash()
	case fieldTokens:
		err = b.tokenList(m, e)
	case fieldBlockSize:
		e.BlockSize, err = m.number(maxBlockSize)
	default:
		err = b.detail(m, e, f)
	}
	return err
}

// detail reads a value that an event can do without.
func (b *Batch) detail(m *reader, e *Event, f field) (err error) {
	switch s := m.next(); {
	case s == shapeInt && f == fieldLoRAID:
		var v uint64
		v, _, err = m.integer()
		e.LoRAID, e.HasLoRAID = int64(v), true //nolint:gosec // two's complement
	case s == shapeInt && f == fieldGroup:
		e.HasGroup = true
		e.Group, err = m.number(maxGroup)
	case s == shapeInt && f == fieldWindow:
		e.Window, err = m.number(math.MaxInt32)
	case s == shapeArray && f == fieldExtraKeys:
		err = b.extraKeys(m, e)
	case s == shapeMap && f == fieldMetadata:
		err = b.metadata(m, e)
	case s == shapeBytes:
		var text []byte
		text, err = m.bytes()
		e.setText(f, text)
	default:
		err = m.skip()
	}
	return err
}

func (e *Event) setText(f field, text []byte) {
	switch f {
	case fieldMedium:
		e.Medium = text
	case fieldLoRAName:
		e.LoRAName = text
	case fieldAttention:
		e.Attention = attentionOf(text)
	case fieldLocality:
		e.Locality = text
	case fieldOwnership:
		e.Ownership = text
	case fieldSessionID:
		e.SessionID = text
	case fieldCacheSalt:
		e.CacheSalt = text
	}
}

// metadata reads a map within an event that is an array.
func (b *Batch) metadata(m *reader, e *Event) error {
	n, err := m.mapping()
	if err != nil {
		return err
	}
	for range n {
		key, err := m.key()
		if err != nil {
			return err
		}
		f := fieldOf(key)
		if f < fieldMedium { // those have places of their own
			f = fieldUnknown
		}
		if err := b.detail(m, e, f); err != nil {
			return err
		}
	}
	return nil
}

// hash reads a block's name.
func (m *reader) hash() (Hash, error) {
	if m.next() == shapeBytes {
		name, err := m.bytes()
		return Hash(xxh3.HashSeed(name, seed)), err
	}
	v, _, err := m.integer()
	return Hash(v), err
}

func (b *Batch) hashList(m *reader) ([]Hash, error) {
	n, err := m.array()
	if err != nil {
		return nil, err
	}
	if n > maxHashes-len(b.hashes) {
		return nil, errLimit
	}
	if b.hashes == nil { // an empty list is not nil
		b.hashes = make([]Hash, 0, max(n, 16))
	}
	from := len(b.hashes)
	for range n {
		h, err := m.hash()
		if err != nil {
			return nil, err
		}
		b.hashes = append(b.hashes, h)
	}
	return b.hashes[from:len(b.hashes):len(b.hashes)], nil
}

func (b *Batch) tokenList(m *reader, e *Event) error {
	n, err := m.array()
	if err != nil {
		return err
	}
	from := len(b.tokens)
	e.TokenWidth = 1
	if m.next() == shapeArray && n > 0 {
		err = b.wideTokens(m, e, n)
	} else {
		err = b.appendTokens(m, n)
	}
	e.Tokens = b.tokens[from:len(b.tokens):len(b.tokens)]
	return err
}

// wideTokens reads n positions of several token ids each.
func (b *Batch) wideTokens(m *reader, e *Event, n int) error {
	for i := range n {
		width, err := m.array()
		if err != nil {
			return err
		}
		if i == 0 {
			e.TokenWidth = width
		}
		if width != e.TokenWidth || width == 0 || width > maxWidth {
			return errType
		}
		if err := b.appendTokens(m, width); err != nil {
			return err
		}
	}
	return nil
}

// appendTokens reads n token ids. Most of a batch is read here.
func (b *Batch) appendTokens(m *reader, n int) error {
	if n > maxTokens-len(b.tokens) {
		return errLimit
	}
	tokens, p := b.tokens, m.b
	for range n {
		switch {
		case len(p) >= 3 && p[0] == mpUint16:
			tokens = append(tokens, uint32(p[1])<<8|uint32(p[2]))
			p = p[3:]
		case len(p) >= 5 && p[0] == mpUint32:
			tokens = append(tokens, uint32(p[1])<<24|uint32(p[2])<<16|uint32(p[3])<<8|uint32(p[4]))
			p = p[5:]
		case len(p) >= 1 && p[0] <= 0x7f:
			tokens = append(tokens, uint32(p[0]))
			p = p[1:]
		default:
			m.b = p
			v, err := m.number(math.MaxUint32)
			if err != nil {
				return err
			}
			tokens = append(tokens, uint32(v)) //nolint:gosec // under the limit
			p = m.b
		}
	}
	b.tokens, m.b = tokens, p
	return nil
}

// extraKeys reads a list of keys, or nil, for each block.
func (b *Batch) extraKeys(m *reader, e *Event) error {
	n, err := m.array()
	if err != nil {
		return err
	}
	if n > maxHashes-len(b.blocks) {
		return errLimit
	}
	blocks, extra := len(b.blocks), len(b.extra)
	for range n {
		from := len(b.extra)
		if err := b.blockKeys(m); err != nil {
			return err
		}
		b.blocks = append(b.blocks, b.extra[from:len(b.extra):len(b.extra)])
	}
	if len(b.extra) > extra {
		e.ExtraKeys = b.blocks[blocks:len(b.blocks):len(b.blocks)]
	}
	return nil
}

// blockKeys reads the keys of a block: nil, a list, or one key alone.
func (b *Batch) blockKeys(m *reader) error {
	if m.next() == shapeNil {
		m.b = m.b[1:]
		return nil
	}
	n := 1
	if m.next() == shapeArray {
		var err error
		if n, err = m.array(); err != nil {
			return err
		}
	}
	if n > maxExtraKeys-len(b.extra) {
		return errLimit
	}
	for range n {
		k, err := m.extraKey()
		if err != nil {
			return err
		}
		b.extra = append(b.extra, k)
	}
	return nil
}

// extraKey reads a key: text, bytes, an identifier and an offset, or these after a tag.
func (m *reader) extraKey() (k ExtraKey, err error) {
	whole := m.b
	switch m.next() {
	case shapeBytes:
		k.Kind = textOrBytes(m.b[0])
		k.Text, err = m.bytes()
	case shapeArray:
		k, err = m.extraTuple()
	default:
		err = m.skip()
	}
	n := len(whole) - len(m.b)
	k.Raw = whole[:n:n]
	return k, err
}

func textOrBytes(first byte) ExtraKind {
	if first >= mpBin8 && first <= mpBin32 {
		return ExtraBytes
	}
	return ExtraText
}

// extraTuple reads a key of several values: up to two texts and then an offset.
func (m *reader) extraTuple() (k ExtraKey, err error) {
	n, err := m.array()
	if err != nil {
		return k, err
	}
	texts := 0
	for i := range n {
		switch s := m.next(); {
		case s == shapeBytes && texts < 2 && k.Kind != ExtraMedia:
			k.Tag = k.Text
			k.Kind = textOrBytes(m.b[0])
			k.Text, err = m.bytes()
			texts++
		case s == shapeInt && i == n-1 && texts > 0:
			var v uint64
			v, _, err = m.integer()
			k.Kind, k.Offset = ExtraMedia, int64(v) //nolint:gosec // two's complement
		default:
			err = m.skip()
		}
		if err != nil {
			return k, err
		}
	}
	return k, nil
}
