package inference

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-inference/caddy-inference/kvevents"
	"github.com/caddy-inference/caddy-inference/kvindex"
)

const (
	// A feed is read anew after so many answers in a row that contradict it. One may wait so
	// long in the engine that what it would have found is evicted meanwhile.
	enoughMisses = 3

	// missedTokens and missedShare are the least by which an answer contradicts a feed: more
	// tokens than the last blocks of two prompts that are computed at once, and a share of
	// what was predicted.
	missedTokens = 256
	missedShare  = 0.2

	// Reading anew costs the engine a replay of all that it keeps, so it is done after
	// resyncFirst, then after twice as long each time, up to resyncLast.
	resyncFirst = time.Minute
	resyncLast  = 10 * time.Minute
)

// feed is what one publisher says, an engine or a data parallel rank of one, on its way
// into the index. It belongs to the worker whose events they are, which may have others
// after it; the state's lock guards which one it has. Its goroutine is the subscriber's.
type feed struct {
	state      *state
	worker     *worker
	source     source
	handle     atomic.Pointer[kvindex.Worker] // in the index; another one after a restart
	status     atomic.Pointer[kvevents.Status]
	credit     atomic.Pointer[string] // why the index credits nothing, if so
	subscriber *kvevents.Subscriber
	convert    converter

	wary    atomic.Bool  // an answer had less than was predicted
	missing atomic.Bool  // the last one contradicted it
	doubted atomic.Int64 // until when answers have shown that it is wrong; Unix nanoseconds
	mu      sync.Mutex   // guards what follows
	over    int          // answers in a row with less than was predicted
	under   int          // with more
	backoff backoff
}

// backoff is when a feed may be read anew.
type backoff struct {
	wait      time.Duration
	notBefore time.Time
}

// openFeed begins to follow the publisher of w at a source. s.mu is held.
func (s *state) openFeed(w *worker, from source, b backoff) {
	f := &feed{state: s, worker: w, source: from, backoff: b}
	f.handle.Store(new(s.index.Add()))
	f.status.Store(&kvevents.Status{Since: time.Now()})
	subscriber, err := kvevents.Subscribe(kvevents.Config{
		Endpoint: from.endpoint, Topic: from.topic, Replay: from.replay, Handler: f,
	})
	if err != nil {
		s.index.Remove(*f.handle.Load())
		w.lack(badEndpoint)
		return
	}
	f.subscriber = subscriber
	w.feed.Store(f)
	w.changed()
}

// closeFeeds ends feeds that no worker has any more. It waits for their goroutines, so
// s.mu is not held.
func (s *state) closeFeeds(feeds []*feed) {
	for _, f := range feeds {
		f.subscriber.Close()
		s.index.Remove(*f.handle.Load())
	}
}

// Apply implements kvevents.Handler.
func (f *feed) Apply(b *kvevents.Batch) {
	for i := range b.Events {
		e := &b.Events[i]
		if e.Kind != kvevents.Removed {
			f.drop()
		}
		switch e.Kind {
		case kvevents.Stored:
			f.store(e)
		case kvevents.Removed:
			f.remove(e)
		case kvevents.Cleared:
			f.state.index.Clear(*f.handle.Load())
			f.state.forgetPrefixes(f.worker)
		}
	}
	f.drop()
}

// store has the index know what was stored.
func (f *feed) store(e *kvevents.Event) {
	if e.Tier == kvevents.TierUnknown {
		return
	}
	stored := f.convert.stored(e)
	f.state.adapters.learn(stored.Adapter)
	applied := f.state.index.Store(*f.handle.Load(), stored)
	if stored.Units == kvindex.Pairs {
		f.limit(pairedTokens)
	}
	if applied.Refused > 0 && f.state.index.Holding(*f.handle.Load()).Blind != "" {
		f.limit(unknownCache)
	}
}

// limit notes that nothing is known by the events, and why.
func (f *feed) limit(why string) {
	if f.credit.Swap(&why) == nil {
		f.worker.changed()
	}
}

// remove collects what was removed: the index takes many at once faster.
func (f *feed) remove(e *kvevents.Event) {
	if e.Tier == kvevents.TierUnknown {
		return
	}
	dropped := &f.convert.dropped
	if len(dropped.Names) > 0 && (dropped.Tier != tierOf(e) || dropped.Group != e.Group) {
		f.drop()
	}
	dropped.Tier, dropped.Group = tierOf(e), e.Group
	dropped.Names = appendNames(dropped.Names, e.Hashes)
}

// drop has the index know what was collected.
func (f *feed) drop() {
	dropped := &f.convert.dropped
	if len(dropped.Names) > 0 {
		f.state.index.Drop(*f.handle.Load(), dropped)
		dropped.Names = dropped.Names[:0]
	}
}

// Clear implements kvevents.Handler. An engine that has begun anew may have other settings,
// and is asked again.
func (f *feed) Clear(why kvevents.Reason) {
	if why != kvevents.Restarted {
		f.state.index.Clear(*f.handle.Load())
		return
	}
	f.state.index.Remove(*f.handle.Swap(new(f.state.index.Add())))
	f.credit.Store(nil)
	f.state.forgetPrefixes(f.worker)
	f.state.check(f.worker)
}

// State implements kvevents.Handler.
func (f *feed) State(s kvevents.Status) {
	f.status.Store(&s)
	f.worker.changed()
}

// Why nothing is known exactly of what a worker holds, besides the states of its stream.
const (
	notAsked     = "not_asked"     // its engine did not answer yet
	noEvents     = "no_events"     // its engine publishes none
	noSource     = "no_source"     // nobody says where its events are
	badEndpoint  = "bad_endpoint"  // there can be no such endpoint
	unknownCache = "unknown_cache" // its cache follows rules that are not known
	pairedTokens = "token_pairs"   // its cache goes by pairs of tokens
	tooMany      = "too_many"      // the index has no place for it
	disagrees    = "disagrees"     // its answers contradict its events
)

// inexact returns why what the worker of f holds is not known exactly, or nothing. f may be
// nil.
func (f *feed) inexact(now time.Time) string {
	if f == nil {
		return noEvents
	}
	if why := f.credit.Load(); why != nil {
		return *why
	}
	switch status := f.status.Load(); {
	case *f.handle.Load() == kvindex.Worker{}:
		return tooMany
	case f.doubted.Load() > now.UnixNano():
		return disagrees
	case status.State != kvevents.Synced:
		return status.State.String()
	}
	return ""
}

// saw compares what an answer says to have found with what was predicted. Of too much the
// index forgets what it can; contradictions in a row have the feed read anew.
func (f *feed) saw(predicted, cached int, p *kvindex.Prompt, now time.Time) {
	if predicted > cached {
		f.wary.Store(true)
		if len(p.Tokens) >= predicted {
			f.state.index.Correct(*f.handle.Load(), p, predicted, cached)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	least := max(missedTokens, int(missedShare*float64(max(predicted, cached))))
	over, under := predicted-cached > least, cached-predicted > least
	f.over, f.under = consecutive(f.over, over), consecutive(f.under, under)
	f.missing.Store(over || under)
	if max(f.over, f.under) < enoughMisses {
		return
	}
	if over {
		f.doubted.Store(max(now.UnixNano()+1, f.backoff.notBefore.UnixNano()))
	}
	f.over, f.under = 0, 0
	if now.Before(f.backoff.notBefore) {
		f.worker.changed()
		return
	}
	f.backoff.wait = min(max(2*f.backoff.wait, resyncFirst), resyncLast)
	f.backoff.notBefore = now.Add(f.backoff.wait)
	f.state.resync(f, f.backoff)
}

func consecutive(n int, again bool) int {
	if again {
		return n + 1
	}
	return 0
}

// resync reads all that f's publisher keeps anew, in the background.
func (s *state) resync(f *feed, b backoff) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil || f.worker.feed.Load() != f {
		return
	}
	f.worker.feed.Store(nil)
	s.openFeed(f.worker, f.source, b)
	s.metrics.resync(f.worker)
	s.tasks.Go(func() { s.closeFeeds([]*feed{f}) })
}

// resets are the pages on which engines drop their caches: vLLM's and SGLang's.
var resets = []string{"/reset_prefix_cache", "/flush_cache"}

// passed takes note of an answer to a request that has passed through to w.
func (s *state) passed(w *worker, r *http.Request, response *http.Response) {
	if response.StatusCode == http.StatusOK && slices.Contains(resets, r.URL.Path) {
		s.cacheReset(w)
	}
}

// cacheReset says that the engine of w has dropped its cache on a request that passed
// through. Its events tell so no sooner than it stores something again.
func (s *state) cacheReset(w *worker) {
	for _, r := range w.base.parts() {
		s.forgetPrefixes(r)
		if f := r.feed.Load(); f != nil {
			s.index.Clear(*f.handle.Load())
		}
	}
}

var _ kvevents.Handler = (*feed)(nil)
