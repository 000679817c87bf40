package kvindex

import (
	"encoding/binary"
	"slices"
	"time"
)

// oracle knows the same as an index, by brute force: what each worker holds
// are prompts, written out.
type oracle struct {
	workers map[Worker]*oracleWorker
}

type oracleWorker struct {
	size   int
	names  map[uint64]string // to prompts
	called map[string]uint64
	copies map[string]*[tiers]int

	expected []oracleExpectation
}

type oracleExpectation struct {
	prompt string
	until  time.Time
}

func newOracleWorker() *oracleWorker {
	return &oracleWorker{names: map[uint64]string{}, called: map[string]uint64{}, copies: map[string]*[tiers]int{}}
}

// written returns a prompt as text: what separates it, and its tokens.
func written(size int, adapter, salt string, units Units, tokens []uint32) string {
	b := []byte{byte(size), byte(units)}
	b = append(append(b, adapter...), 0)
	b = append(append(b, salt...), 0)
	return tell(string(b), tokens)
}

func tell(prompt string, tokens []uint32) string {
	b := []byte(prompt)
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return string(b)
}

func (o *oracle) clear(w Worker) {
	size := o.workers[w].size
	o.workers[w] = newOracleWorker()
	o.workers[w].size = size
}

func (o *oracle) store(w Worker, e *Stored) {
	if !e.Root && slices.Contains(e.Names, e.Parent) {
		return
	}
	if s := o.workers[w]; s.size != 0 && s.size != e.BlockSize {
		o.clear(w)
	}
	s := o.workers[w]
	s.size = e.BlockSize
	prompt := written(e.BlockSize, e.Adapter, e.Salt, e.Units, nil)
	if !e.Root {
		var known bool
		if prompt, known = s.names[e.Parent]; !known {
			return
		}
	}
	for i, name := range e.Names {
		prompt = tell(prompt, e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize])
		if other, used := s.names[name]; used && other != prompt {
			s.forget(other)
		}
		if called, held := s.called[prompt]; held && called != name {
			continue
		}
		s.names[name], s.called[prompt] = prompt, name
		if s.copies[prompt] == nil {
			s.copies[prompt] = new([tiers]int)
		}
		s.copies[prompt][e.Tier] = min(s.copies[prompt][e.Tier]+1, maxCopies)
	}
}

func (s *oracleWorker) forget(prompt string) {
	delete(s.names, s.called[prompt])
	delete(s.called, prompt)
	delete(s.copies, prompt)
}

func (o *oracle) drop(w Worker, e *Dropped) {
	s := o.workers[w]
	for _, name := range e.Names {
		prompt, known := s.names[name]
		if !known || s.copies[prompt][e.Tier] == 0 {
			continue
		}
		if s.copies[prompt][e.Tier]--; *s.copies[prompt] == [tiers]int{} {
			s.forget(prompt)
		}
	}
}

// held returns how many tokens of the prompt a worker holds in a tier or a
// faster one.
func (o *oracle) held(w Worker, p *Prompt, t Tier) (tokens int) {
	s := o.workers[w]
	if s.size == 0 {
		return 0
	}
	prompt := written(s.size, p.Adapter, p.Salt, p.Units, nil)
	for n := 0; (n+1)*s.size <= len(p.Tokens)-1; n++ {
		prompt = tell(prompt, p.Tokens[n*s.size:(n+1)*s.size])
		fastest := tiers
		for i := tiers - 1; i >= 0; i-- {
			if c := s.copies[prompt]; c != nil && c[i] > 0 {
				fastest = i
			}
		}
		if fastest > int(t) {
			break
		}
		tokens = (n + 1) * s.size
	}
	return tokens
}

func (o *oracle) expect(w Worker, p *Prompt, now time.Time) {
	s := o.workers[w]
	s.expected = append(s.expected, oracleExpectation{
		written(s.expectedSize(), p.Adapter, p.Salt, p.Units, p.Tokens), now.Add(ExpectFor),
	})
}

func (s *oracleWorker) expectedSize() int {
	if s.size == 0 {
		return unsized
	}
	return s.size
}

// expects returns how many tokens of the prompt a worker is expected to hold.
func (o *oracle) expects(w Worker, p *Prompt, now time.Time) (tokens int) {
	s := o.workers[w]
	size := s.expectedSize()
	for _, e := range s.expected {
		if !now.Before(e.until) {
			continue
		}
		for _, n := range placesIn((len(p.Tokens) - 1) / size) {
			head := written(size, p.Adapter, p.Salt, p.Units, p.Tokens[:n*size])
			if len(head) <= len(e.prompt) && e.prompt[:len(head)] == head {
				tokens = max(tokens, n*size)
			}
		}
	}
	return tokens
}
