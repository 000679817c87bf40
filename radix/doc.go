// Package radix remembers which worker (an engine replica) was sent which
// prompt, so that a router can send the next prompt where most of it is still
// in the engine's prefix cache.
//
// What it knows is a belief: the engine is never asked. It is a radix tree of
// prompt prefixes whose nodes say which workers hold them. Each worker's
// beliefs are a least recently used list of as many prompt bytes as the
// worker is thought to have room for, and the whole tree lives within a
// memory limit that it enforces itself. An index fed by the engines' own
// events knows better and belongs elsewhere.
//
// No text enters the tree. A [Chunker] turns the prompt, as it is written to
// it, into a seeded 64-bit fingerprint for each 128 bytes, or fewer where a
// message ends; a [Key] is those fingerprints and a space, which separates what
// can never share a cache (models, adapters, salts). Two prompts whose
// fingerprints collide cost a detour, never more.
//
// For each request:
//
//	chunker.Reset()
//	io.Copy(chunker, prompt)
//	key := chunker.Key(space)
//	tree.Match(key, &matches)       // how much of it does each worker hold?
//	worker := choose(&matches)      // the router's business
//	tree.Insert(worker, key)        // it will hold all of it soon
//
// and [Tree.Retract] if the worker did not serve the prompt after all. One
// goroutine runs [Tree.Run] to keep the tree within its limits in small
// steps; without it the memory limit holds all the same, at the expense of
// the inserts.
package radix
