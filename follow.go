package inference

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-inference/caddy-inference/kvevents"
)

// following is whether and how a worker's events are followed. The state's lock guards it.
type following struct {
	wanted  []*eventOptions // of the policies that name the worker; the newest hold
	options *eventOptions   // in force; nil if events are not followed
	sources []source        // that are followed
	ranks   int             // of its engine, as its metrics tell; 0 unknown
	cancel  context.CancelFunc
}

// follow counts one more policy that wants to know what w holds. Events are followed as
// long as there is one and a config runs.
func (s *state) follow(w *worker, o *eventOptions) {
	s.mu.Lock()
	w.following.wanted = append(w.following.wanted, o)
	var ended []*feed
	if s.ctx != nil && w.following.options == nil {
		ended = s.listen(w)
	}
	s.mu.Unlock()
	s.closeFeeds(ended)
}

// unfollow counts one less.
func (s *state) unfollow(w *worker, o *eventOptions) {
	s.mu.Lock()
	f := &w.following
	if i := slices.Index(f.wanted, o); i >= 0 {
		f.wanted = slices.Delete(f.wanted, i, i+1)
	}
	ended := s.listen(w)
	s.mu.Unlock()
	s.closeFeeds(ended)
}

// listen has w's events followed as the newest policy wants it, or not if none does. It
// returns feeds to close. s.mu is held.
func (s *state) listen(w *worker) (ended []*feed) {
	f := &w.following
	if s.ctx == nil || len(f.wanted) == 0 {
		return s.deafen(w)
	}
	newest := f.wanted[len(f.wanted)-1]
	before := f.options
	f.options = newest
	if before != nil && before.equal(newest, w.Address()) {
		return nil
	}
	if before == nil {
		ctx, cancel := context.WithCancel(s.ctx)
		f.cancel = cancel
		w.lack(notAsked)
		s.tasks.Go(func() { s.tellOf(ctx, w) })
	}
	if configured := newest.of(w.Address()); configured != nil {
		return s.listenTo(w, configured)
	}
	s.ask(w)
	return nil
}

// listenTo follows what is configured. s.mu is held.
func (s *state) listenTo(w *worker, configured *EventSource) (ended []*feed) {
	sources, err := configured.ranked(w.Address(), w.following.ranks)
	if err != nil {
		w.lack(badEndpoint)
	}
	return s.followFrom(w, sources)
}

// deafen ends following w's events. s.mu is held.
func (s *state) deafen(w *worker) (ended []*feed) {
	f := &w.following
	if f.options == nil {
		return nil
	}
	f.cancel()
	f.options = nil
	return s.followFrom(w, nil)
}

// followFrom follows these sources of w and no others, with a worker for each if there are
// several. s.mu is held.
func (s *state) followFrom(w *worker, sources []source) (ended []*feed) {
	f := &w.following
	if slices.Equal(f.sources, sources) {
		return nil
	}
	for _, r := range w.parts() {
		if old := r.feed.Swap(nil); old != nil {
			ended = append(ended, old)
		}
	}
	f.sources = sources
	s.split(w, sources)
	for i, r := range w.parts() {
		if i < len(sources) {
			s.openFeed(r, sources[i], backoff{})
		}
	}
	return ended
}

// findSources asks w's engine where its events are, if they are followed and it is not
// configured. ranks is how many ranks the engine's metrics tell of. An error says that it
// has to be asked again.
func (s *state) findSources(ctx context.Context, w *worker, ranks int) error {
	s.mu.Lock()
	f := &w.following
	options := f.options
	f.ranks = cmp.Or(ranks, f.ranks)
	var ended []*feed
	var configured *EventSource
	if options != nil {
		configured = options.of(w.Address())
	}
	if configured != nil {
		ended = s.listenTo(w, configured)
	}
	s.mu.Unlock()
	s.closeFeeds(ended)
	if options == nil || configured != nil {
		return nil
	}
	sources, err := askSources(ctx, w, options.engine)
	why := ""
	switch {
	case errors.Is(err, errNoEvents):
		why = noEvents
	case errors.Is(err, errNoPage):
		why = noSource
	case err != nil:
		return err
	}
	s.found(w, options, sources, why)
	return nil
}

// found follows the sources that w's engine told when it was asked by options, or notes why
// there are none.
func (s *state) found(w *worker, options *eventOptions, sources []source, why string) {
	s.mu.Lock()
	var ended []*feed
	if s.ctx != nil && s.workers[w.Worker] == w && w.following.options == options {
		w.lack(why)
		ended = s.followFrom(w, sources)
		w.changed()
	}
	s.mu.Unlock()
	s.closeFeeds(ended)
}

// lack notes why there is nothing to follow.
func (w *worker) lack(why string) { w.lacking.Store(&why) }

// changed says that something has changed in what is known of what w holds.
func (w *worker) changed() {
	select {
	case w.base.news <- struct{}{}:
	default:
	}
}

// inexact returns why what w holds is not known exactly, or nothing.
func (w *worker) inexact(now time.Time) string {
	f := w.feed.Load()
	if f != nil {
		return f.inexact(now)
	}
	if why := w.base.lacking.Load(); why != nil && *why != "" {
		return *why
	}
	return noEvents
}

// settled is how long what is known of a worker has to stay as it is for the log to tell:
// engines and streams take their time to begin, and repair themselves.
const settled = 10 * time.Second

// tellOf logs when what w holds is, or is no longer, known exactly, until ctx ends.
func (s *state) tellOf(ctx context.Context, w *worker) {
	told := ""
	for w.pause(ctx, s.clock.real(settled)) {
		why, rank := s.worst(w)
		if why != told {
			told = why
			s.tell(w, why, rank)
		}
		select {
		case <-ctx.Done():
			return
		case <-w.left:
			return
		case <-w.news:
		}
	}
}

// worst returns why what w holds is not known exactly, or nothing, and the first rank of
// which that is so.
func (s *state) worst(w *worker) (why string, of *worker) {
	now := s.clock.now()
	for _, r := range w.parts() {
		if why := r.inexact(now); why != "" {
			return why, r
		}
	}
	return "", w
}

// tell logs what is known of what w holds, at its rank.
func (s *state) tell(w *worker, why string, rank *worker) {
	if why == "" {
		s.logger.Load().Info("what the upstream holds is known exactly", zap.String("upstream", w.Address()))
		return
	}
	fields := []zap.Field{zap.String("upstream", rank.Address()), zap.String("cause", why)}
	if f := rank.feed.Load(); f != nil {
		status := f.status.Load()
		fields = append(fields, zap.String("endpoint", f.source.endpoint), zap.String("detail", string(status.Reason)))
	}
	s.logger.Load().Warn("what the upstream holds is not known exactly; requests are routed by what it was sent",
		append(fields, zap.String("hint", hintFor(why, rank)))...)
}

// eventFlag is what engines are started with to say what they hold.
const eventFlag = `--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'` +
	" (SGLang: without enable_kv_cache_events)"

// hints say what to do, for each cause.
var hints = map[string]string{
	notAsked:     "the engine did not answer yet; see whether it runs",
	noEvents:     "start the engine with " + eventFlag,
	noSource:     "the engine cannot be asked where its events are: if it was started with " + eventFlag + ", say so in the policy: events tcp://*:5557 and replay tcp://*:5558",
	badEndpoint:  "see the events and replay options of the policy, and the ports in the engine's --kv-events-config",
	unknownCache: "the model's cache follows rules that are not known here, as those of state space models do; lb_policy cache_aware is as good",
	pairedTokens: "the engine speculates with EAGLE and caches by pairs of tokens, which are not looked up; lb_policy cache_aware is as good",
	tooMany:      "there are more engines than the index can tell apart",
	disagrees:    "the engine finds less than its events say that it holds: see whether the endpoint is this engine's, and whether it takes the header X-Data-Parallel-Rank if it has several ranks",
}

// hintFor says what to do about a cause.
func hintFor(why string, w *worker) string {
	f := w.feed.Load()
	switch {
	case hints[why] != "" || f == nil:
		return hints[why]
	case f.source.replay == "":
		return "the engine replays nothing, so what it held before is not known until it clears its cache: start it with replay_endpoint in --kv-events-config"
	case f.status.Load().State == kvevents.Degraded:
		return "the engine replays less than it has published since it was started: raise buffer_steps in its --kv-events-config; what is stored from now on is known"
	}
	return "see whether the endpoint can be connected to from here: a firewall, a container's ports, or an endpoint that the engine does not listen on, as it has a host in it"
}

// listenAll does so for all workers: the newest policies of configs that run may be others
// than before, or none runs any more. s.mu is held.
func (s *state) listenAll() (ended []*feed) {
	for _, w := range s.workers {
		if w.base == w {
			ended = append(ended, s.listen(w)...)
		}
	}
	return ended
}
