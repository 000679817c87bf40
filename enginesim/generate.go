package enginesim

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
)

// job is a request to generate, whichever API it came by.
type job struct {
	dialect dialect
	id      string // without the API's prefix
	created int64  // Unix time
	model   string
	space   namespace
	rank    int // of the engine's ranks; anyRank leaves the choice to the engine

	prompts   []prompt
	n         int // answers to each prompt
	maxTokens int // of each answer

	stream          bool
	includeUsage    bool
	continuousUsage bool
	tokenIDs        bool // the answer shows token ids
	details         bool // usage shows cached tokens

	answers []answer // len(prompts) × n
	used    usage
	first   bool // the first token is out
}

// answer is what one sequence has produced, if the answer is sent in one piece,
// and how much of it, if it is streamed.
type answer struct {
	text   []byte
	ids    []uint32
	n      int
	cached int // tokens of its prompt that the cache held
}

// usage counts a job's tokens as vLLM does: over all prompts and all answers,
// except that the cached tokens are those of one sequence, the last to start.
type usage struct {
	prompt, completion int
	cached             int
	stored             int // tokens of newly stored full prompt blocks of that sequence
}

// dialect is how an API words an answer. Its methods are called one at a time.
type dialect interface {
	// start sends what comes before the first token of a stream.
	start(j *job, out *output) error
	// delta sends what the answer of the given choice has grown by.
	delta(j *job, out *output, choice int, d delta) error
	// end sends what comes after the last token.
	end(j *job, out *output) error
	// whole is the answer in one piece, to be marshaled.
	whole(j *job) any
}

// opener is a dialect whose streams begin before the prompt is computed.
type opener interface {
	open(j *job, out *output) error
}

// output is where an answer goes: it sends events and plays the fault.
type output struct {
	w       http.ResponseWriter
	flusher *http.ResponseController
	fault   *Fault
	gone    <-chan struct{} // closed when the client is
	stopped <-chan struct{} // closed when the engine is

	begun  bool   // headers are out
	events int    // sent so far
	head   []byte // what all events of the answer begin with
	buf    []byte // the event being made
}

// begin sends the headers of a stream: an engine does so before it prefills.
func (o *output) begin() error {
	if o.begun {
		return nil
	}
	o.begun = true
	o.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	o.w.WriteHeader(http.StatusOK)
	return o.flush()
}

// flush sends what is written, where the server below can.
func (o *output) flush() error {
	if err := o.flusher.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return errGone
	}
	return nil
}

// tick plays the fault that comes before an event, and counts the event.
func (o *output) tick() error {
	if err := o.fault.at(o.gone, o.stopped, o.events); err != nil {
		return err
	}
	o.events++
	return nil
}

// send sends the event in o.buf.
func (o *output) send() error {
	if err := o.tick(); err != nil {
		return err
	}
	if _, err := o.w.Write(o.buf); err != nil {
		return errGone
	}
	return o.flush()
}

// sendDone sends what ends a stream of the OpenAI APIs.
func (o *output) sendDone() error {
	o.buf = append(o.buf[:0], "data: [DONE]\n\n"...)
	return o.send()
}

// run has the job done. Errors: errGone, errStopped, errDie, errQueueFull.
func (j *job) run(ctx context.Context, e *engine, out *output) error {
	if out.fault != nil && out.fault.DelayMS > 0 {
		if j.stream {
			if err := out.begin(); err != nil {
				return err
			}
		}
		if err := out.fault.delay(out.gone, out.stopped); err != nil {
			return err
		}
	}
	sequences, err := j.submit(e)
	if err != nil {
		return err
	}
	if j.stream {
		if err := j.begin(out); err != nil {
			abandonAll(sequences)
			return err
		}
	}
	if err := j.runAll(ctx, sequences, out); err != nil {
		return err
	}
	if j.stream {
		return j.dialect.end(j, out)
	}
	writeJSON(out.w, http.StatusOK, j.dialect.whole(j))
	return nil
}

// begin sends what a stream begins with before the prompt is computed.
func (j *job) begin(out *output) error {
	if err := out.begin(); err != nil {
		return err
	}
	if o, ok := j.dialect.(opener); ok {
		return o.open(j, out)
	}
	return nil
}

// submit queues all of the job's sequences, or none.
func (j *job) submit(e *engine) ([]*sequence, error) {
	sequences := make([]*sequence, 0, len(j.prompts)*j.n)
	for _, p := range j.prompts {
		j.used.prompt += len(p.ids)
		for choice := range j.n {
			s, err := e.submit(p, j.space, j.maxTokens, choice)
			if err != nil {
				abandonAll(sequences)
				return nil, err
			}
			sequences = append(sequences, s)
		}
	}
	j.answers = make([]answer, len(sequences))
	return sequences, nil
}

// runAll runs the sequences and hands on what they make, one event at a time. The first
// error ends all of them.
func (j *job) runAll(ctx context.Context, sequences []*sequence, out *output) error {
	if len(sequences) == 1 {
		s := sequences[0]
		return s.run(ctx, func(d delta) error { return j.take(s, 0, d, out) })
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		group sync.WaitGroup
		mu    sync.Mutex // guards j, out and fail
		fail  error
	)
	for choice, s := range sequences {
		group.Go(func() {
			err := s.run(ctx, func(d delta) error {
				mu.Lock()
				defer mu.Unlock()
				return j.take(s, choice, d, out)
			})
			if err == nil {
				return
			}
			cancel()
			mu.Lock()
			defer mu.Unlock()
			if fail == nil {
				fail = err
			}
		})
	}
	group.Wait()
	return fail
}

// take does what an event asks for: count its tokens, then send or keep them.
func (j *job) take(s *sequence, choice int, d delta, out *output) error {
	if d.pos == 0 {
		blockSize := s.engine.opts.BlockSize
		j.used.cached = s.cached
		j.used.stored = s.prompt/blockSize*blockSize - s.cached
		d.text = slices.Concat(j.prompts[choice/j.n].text, d.text)
	}
	j.used.completion += len(d.ids)
	a := &j.answers[choice]
	a.n += len(d.ids)
	a.cached = s.cached
	if j.stream {
		if !j.first {
			j.first = true
			if err := j.dialect.start(j, out); err != nil {
				return err
			}
		}
		return j.dialect.delta(j, out, choice, d)
	}
	a.text = append(a.text, d.text...)
	if j.tokenIDs {
		a.ids = append(a.ids, d.ids...)
	}
	for range d.ids {
		if err := out.tick(); err != nil {
			return err
		}
	}
	return nil
}
