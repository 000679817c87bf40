// Package kvevents follows what an inference engine says about its KV cache: which blocks
// it has stored, on which tier, and which it has let go.
//
// Engines publish batches of such events on a ZeroMQ socket, numbered from 0, one socket
// for each data parallel rank. [Batch.Decode] reads a batch in whatever shape a release
// of vLLM or SGLang has sent one. A [Subscriber] follows one socket and hands batches on
// in order, each once, with nothing missing between them. What was missed it fetches from
// the engine's replay socket; when that cannot be, or the engine has begun anew, it says
// that all applied so far is void. So an index fed by it holds what the engine holds, or
// less, but nothing that the engine has let go. [Status] says how far that can be relied on.
//
// It keeps no index and knows of no router: see [Handler].
package kvevents
