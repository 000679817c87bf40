// Package enginesim is a simulated inference engine behind an HTTP handler. It
// speaks as vLLM does: OpenAI chat, completions, responses and embeddings, Anthropic
// messages, scores and rankings, token ids, metrics and errors, and SGLang's own
// /generate, with a block-level prefix cache, a serial prefill
// queue and decode steps that slow down as more requests run. A router can be
// developed, tested and measured against it without a GPU.
//
// It is not a language model. Its tokenizer is a toy (see tokens.go) and its
// answers are made-up words; what is true to the real engine is what a router
// can observe: which prompts hit the cache and by how many tokens, how long the
// first token takes behind a queue, what a metrics page shows, and how an
// answer ends when a client or an engine goes away.
//
// Server is plain Go and needs no Caddy:
//
//	server, err := enginesim.NewServer(enginesim.DefaultOptions())
//	http.ListenAndServe("127.0.0.1:8000", server)
//
// Handler makes it the Caddy module http.handlers.inference_sim:
//
//	:8000 {
//		inference_sim
//	}
//
// # How it spends time
//
// Requests wait in one queue, first come first served. One prompt at a time is
// prefilled, at PrefillRate tokens a second of what the prefix cache does not
// hold; the lookup happens when its prefill starts. The first token leaves when
// prefill ends. After that each request gets a token every DecodeBase +
// DecodePerRunning × running requests. All waits are measured from the times
// that the model asks for, not from when a timer fired, so delays do not add up.
// With a StreamInterval above 1 a request gets several tokens at a time.
//
// Speed makes all that faster, for replays of traffic in compressed time. What
// took how long in simulated time is then told exactly by Server.Watch.
//
// # What it publishes
//
// With Options.Events it publishes what its cache stores and lets go, as engines do when
// they are started with --kv-events-config: batches numbered from 0 on a PUB socket and,
// if asked, from a ROUTER socket once more, in the words of vLLM or SGLang, of today or of
// before. Events of a prompt leave before its first token. What they tell is what the
// cache does: blocks by the ids that /tokenize gives, copies and removals one by one, and
// of a reset when the engine would tell it. Names of blocks are its own.
//
// With Options.Ranks above 1 it is an engine with data parallel ranks, each of which has
// its own cache, sockets and numbers.
//
// # Its own pages
//
// Beside the engine's pages there are some for tests, which no real engine has:
//
//	POST   /sim/faults   add a Fault (JSON) that the next requests meet
//	GET    /sim/faults   the faults still waiting
//	DELETE /sim/faults   forget them
//	GET    /sim/stats    Stats since the last start (JSON)
//	POST   /sim/restart  drop cache, counters and open requests, as a new process would
//	POST   /sim/events   an EventChange (JSON): what goes wrong with the events
//	GET    /sim/events   the EventState of each rank
package enginesim
