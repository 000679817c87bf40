// Package kvindex knows which worker (an engine replica, or one data parallel
// rank of it) holds which part of a prompt in its KV cache. It is told by the
// engines' own cache events and asked with token ids.
//
// What it says is proven, up to a collision of 64-bit hashes. A block of
// tokens is known by a hash of its tokens and of all before them, ours and not
// the engine's: the engine's own hash is only a name, by which later events
// refer to the block. A worker is credited with a block only while every block
// before it is held too; that is kept true as events are applied, so that a
// lookup need not walk the prompt.
//
//	worker := index.Add()                    // one for each replica and rank
//	index.Store(worker, &kvindex.Stored{…})  // as the events say
//	index.Drop(worker, &kvindex.Dropped{…})
//	index.Clear(worker)
//
// For each request:
//
//	index.Lookup(&prompt, now, &matches)
//	held := matches.Held(worker)             // tokens that need no prefill
//	index.Expect(worker, &matches, now)      // it will hold all of it soon
//
// One goroutine runs [Index.Run] to take back, in small steps, what cleared
// workers left behind and to keep the memory limit; without it the events do
// both by themselves.
//
// How it is built: a block is 64 bytes in a slab, with a bit for each worker
// that holds it and one for each that holds it and all before it ("rooted").
// Events settle the second kind when they change the first, down the chain as
// far as it matters. As what is rooted at a block is rooted at all before it, a
// lookup finds the end of every worker's match by halving, for 64 workers at
// once. It reads with atomic loads and no lock, and makes sure by the block's
// key and the index's epoch that it was the same block all the while; so it
// sees each block as it was at some moment of the lookup. Events take a lock,
// one at a time.
//
// What takes an event's time is memory: with a million blocks nothing of one is
// in the processor's cache, and there are three places to look into. So events
// are applied in batches of blocks, and all lines of memory that a batch needs
// are read before, many at a time.
//
// What the index cannot prove it does not credit: blocks whose parent is
// unknown, what requests with an SGLang extra_key store (they must not be
// looked up), and everything a worker has whose cache follows rules that the
// index does not know (see [Holding.Blind]).
package kvindex
