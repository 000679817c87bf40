package kvindex

// Correct compares what a worker was believed to hold of a prompt with what
// its engine says it found in its cache, in tokens, and returns by how many
// the belief was above that; below zero, events were lost.
//
// Where the belief was above, too many copies had been counted of the blocks
// that the engine did not find. It has computed them for this prompt, and so
// holds one copy of each: all others are forgotten.
//
// Do not call it for answers whose engine does not look into its cache or
// reports something else: to prompts with prompt_logprobs, batches, n above
// one, and decode legs of disaggregated prefill.
func (x *Index) Correct(w Worker, p *Prompt, believed, cached int) (above int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	wk := x.worker(w)
	if wk == nil || wk.size == 0 || cached < 0 || cached >= believed {
		return believed - cached
	}
	head := *p
	head.Tokens = p.Tokens[:min(believed, len(p.Tokens))]
	keys := x.hash.appendKeys(nil, &head, wk.size)
	for _, key := range keys[min(cached/wk.size, len(keys)):] {
		id := x.have(key)
		if id == 0 {
			continue
		}
		corrected := false
		for _, l := range wk.lanes {
			corrected = x.single(id, l) || corrected
		}
		if corrected {
			x.counts.Corrected++
			wk.counts.Corrected++
		}
	}
	return believed - cached
}
