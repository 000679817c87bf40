package inference

import "bytes"

// usage is what an engine said it counted.
type usage struct {
	seen   bool
	prompt int  // tokens of the prompt
	cached int  // of those, found in its cache; -1 if it did not say
	one    bool // of one prompt, where there may be several

	// The messages API tells the prompt in two parts.
	input, read int // tokens computed, and found in the cache
}

const (
	usageKey = `"usage"`

	// metaKey is where SGLang's own API tells what it counted, for each prompt apart. A
	// stream repeats it in every event.
	metaKey = `"meta_info"`

	// maxUsage bounds what is kept of a response to read a usage object from.
	// Engines write up to 400 bytes.
	maxUsage = 1 << 10

	// maxCount is the largest number taken for a count of tokens. What is
	// reckoned with counts cannot overflow below it.
	maxCount = 1 << 30
)

// usageScanner finds the last usage object of a response that passes by in
// pieces, JSON or server-sent events alike. Inside a JSON string the quotes of
// the key would be escaped, so generated text cannot be taken for it. Nothing
// is kept but an object that is cut between pieces, and the few bytes a key may
// be cut at.
type usageScanner struct {
	last usage
	meta bool // the key is metaKey

	inside bool // behind a key, looking for the end of its object
	shape  objectShape
	object []byte // of what follows the key, the pieces before; the memory is used again

	carry [len(metaKey) - 1]byte
	held  int // bytes in carry
}

func (s *usageScanner) key() string {
	if s.meta {
		return metaKey
	}
	return usageKey
}

// write looks at the next piece.
func (s *usageScanner) write(p []byte) {
	if !s.inside && s.held > 0 {
		p = s.join(p)
	}
	for len(p) > 0 {
		if !s.inside {
			i := bytes.Index(p, []byte(s.key()))
			if i < 0 {
				s.keep(p)
				return
			}
			p = p[i+len(s.key()):]
			s.begin()
		}
		p = s.collect(p)
	}
}

func (s *usageScanner) begin() {
	s.inside = true
	s.shape = objectShape{}
	s.object = s.object[:0]
}

// join looks for a key that is cut by the border between two pieces, and returns
// what is left of the second one.
func (s *usageScanner) join(p []byte) []byte {
	var border [2 * len(s.carry)]byte
	key := s.key()
	n := copy(border[:], s.carry[:s.held])
	n += copy(border[n:], p[:min(len(p), len(key)-1)])
	i := bytes.Index(border[:n], []byte(key))
	if i < 0 {
		if len(p) < len(key)-1 { // the border may move on
			s.keep(border[:n])
			return nil
		}
		s.held = 0
		return p
	}
	used := i + len(key) - s.held
	s.held = 0
	s.begin()
	return p[used:]
}

// keep remembers the end of a piece that a key may begin in.
func (s *usageScanner) keep(p []byte) {
	s.held = copy(s.carry[:], p[max(len(p)-len(s.key())+1, 0):])
}

// collect takes bytes of an object until it is whole, and returns what follows.
func (s *usageScanner) collect(p []byte) []byte {
	n := min(len(p), maxUsage-len(s.object))
	for i, c := range p[:n] {
		switch s.shape.next(c) {
		case objectWhole:
			s.finish(p[:i+1])
			return p[i+1:]
		case objectBad:
			s.inside = false
			return p[i:]
		}
	}
	s.object = append(s.object, p[:n]...)
	s.inside = len(s.object) < maxUsage
	return p[n:]
}

// finish reads the object that ends with p.
func (s *usageScanner) finish(p []byte) {
	s.inside = false
	if len(s.object) > 0 {
		s.object = append(s.object, p...)
		p = s.object
	}
	s.last.take(readCounts(p))
	s.last.one = s.meta && s.last.seen
}

type objectState uint8

const (
	objectOpen objectState = iota
	objectWhole
	objectBad // null, or no object at all
)

// objectShape follows `: {…}` byte by byte to its end.
type objectShape struct {
	colon, quoted, escaped bool
	depth                  int
}

func (o *objectShape) next(c byte) objectState {
	switch {
	case o.escaped:
		o.escaped = false
	case o.quoted:
		o.escaped = c == '\\'
		o.quoted = c != '"'
	case c == ' ' || c == '\n' || c == '\r' || c == '\t':
	case !o.colon:
		if c != ':' {
			return objectBad
		}
		o.colon = true
	case c == '{':
		o.depth++
	case o.depth == 0:
		return objectBad
	case c == '"':
		o.quoted = true
	case c == '}':
		o.depth--
		if o.depth == 0 {
			return objectWhole
		}
	}
	return objectOpen
}

// usageCounts are the numbers of one usage object in any of the engines' forms;
// -1 is one that is not there.
type usageCounts struct {
	prompt int // all of the prompt, but for the next two
	input  int // OpenAI's responses: all of the prompt; messages: what was computed of it
	read   int // messages: what was not
	cached int // OpenAI's: of the prompt, found in the cache
}

// take takes in one object. Messages tell the prompt first and the output last,
// and some engines the cached tokens in one of two objects only, so what is
// missing keeps its value.
func (u *usage) take(c usageCounts) {
	if c.prompt < 0 && c.input < 0 && c.read < 0 {
		return
	}
	if !u.seen {
		*u = usage{seen: true, cached: -1}
	}
	if c.cached >= 0 {
		u.cached = c.cached
	}
	if c.read >= 0 {
		u.read = c.read
		u.cached = c.read
	}
	if c.input >= 0 {
		u.input = c.input
	}
	u.prompt = u.input + u.read
	if c.prompt >= 0 {
		u.prompt = c.prompt
	}
	u.cached = min(u.cached, u.prompt)
}

// readCounts reads the counts of an object whose end was found. What is not a
// count, it leaves out.
func readCounts(p []byte) usageCounts {
	c := usageCounts{-1, -1, -1, -1}
	var key, parent []byte
	depth := 0
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '{', '[':
			depth++
			if depth == 2 {
				parent = key
			}
		case '}', ']':
			depth--
		case ',':
			key = nil
		case '"':
			end := stringEnd(p, i+1)
			key = p[i+1 : end]
			i = end
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			end := numberEnd(p, i)
			c.set(depth, parent, key, p[i:end])
			i = end - 1
		}
	}
	return c
}

// set takes in a number that stands under key, in the object under parent if that
// is one level down.
func (c *usageCounts) set(depth int, parent, key, number []byte) {
	n, ok := count(number)
	if !ok {
		return
	}
	if depth == 2 {
		details := string(parent) == "prompt_tokens_details" || string(parent) == "input_tokens_details"
		if details && string(key) == "cached_tokens" {
			c.cached = n
		}
		return
	}
	if depth != 1 {
		return
	}
	switch string(key) {
	case "prompt_tokens":
		c.prompt = n
	case "input_tokens":
		c.input = n
	case "cache_read_input_tokens":
		c.read = n
	case "cached_tokens":
		c.cached = n
	}
}

// stringEnd returns where the string that begins at i has its closing quote.
func stringEnd(p []byte, i int) int {
	for ; i < len(p) && p[i] != '"'; i++ {
		if p[i] == '\\' {
			i++
		}
	}
	return min(i, len(p))
}

// numberEnd returns where the number that begins at i ends.
func numberEnd(p []byte, i int) int {
	for ; i < len(p); i++ {
		switch p[i] {
		case ',', '}', ']', ' ', '\n', '\r', '\t':
			return i
		}
	}
	return i
}

// count reads a number of tokens.
func count(p []byte) (int, bool) {
	n := 0
	for _, c := range p {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
		if n > maxCount {
			return 0, false
		}
	}
	return n, true
}
