package inference

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
)

const (
	// askTimeout bounds one question to an engine, its answer included.
	askTimeout = 5 * time.Second

	// An engine that does not answer is asked again after askFirst, then after
	// twice as long each time, up to askLast. One that did is not asked again
	// before askFirst, however many requests fail.
	askFirst = time.Second
	askLast  = 30 * time.Second
)

// engine is what a worker's engine said of itself, and whether it has to be
// asked again.
type engine struct {
	asking  atomic.Bool
	wanted  atomic.Bool // somebody wants an answer from after now
	failed  atomic.Bool // a request, since it was last asked
	started float64     // Unix seconds; 0 unknown. Touched by the one who asks

	back chan struct{} // it is likely to answer now: whoever waits to ask again need not
}

// ask asks w's engine, in the background, how many tokens its cache holds and
// whether it is still the process it was. s.mu is held.
func (s *state) ask(w *worker) {
	if s.ctx == nil || w.transport.Load() == nil {
		return
	}
	w.engine.wanted.Store(true) // so that whoever asks already goes on
	if !w.engine.asking.CompareAndSwap(false, true) {
		return
	}
	ctx := s.ctx
	s.tasks.Go(func() { s.askWhileWanted(ctx, w) })
}

// check asks w's engine whether it is still the process it was.
func (s *state) check(w *worker) {
	w = w.base
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.workers[w.Worker] == w {
		s.ask(w)
	}
}

// checkFailed checks w's engine, which has failed a request in a way that a restart would
// explain.
func (s *state) checkFailed(w *worker) {
	w.base.engine.failed.Store(true)
	s.check(w)
}

// askAnew asks w's engine at once, as it is back: also if it did not answer for so long that
// it would be asked much later.
func (s *state) askAnew(w *worker) {
	s.check(w)
	select {
	case w.base.engine.back <- struct{}{}:
	default:
	}
}

// askWhileWanted asks until there is an answer from after it was last wanted.
func (s *state) askWhileWanted(ctx context.Context, w *worker) {
	for s.askUntilAnswered(ctx, w) && w.pause(ctx, s.clock.real(askFirst)) {
		w.engine.asking.Store(false)
		if !w.engine.wanted.Load() || !w.engine.asking.CompareAndSwap(false, true) {
			return
		}
	}
	w.engine.asking.Store(false)
}

// askUntilAnswered reports whether the engine answered before ctx ended, the
// worker left, or a config came that does not reach it by HTTP.
func (s *state) askUntilAnswered(ctx context.Context, w *worker) bool {
	failed := false
	select {
	case <-w.engine.back: // it is asked at once anyway
	default:
	}
	for wait := askFirst; ; {
		w.engine.wanted.Store(false)
		failed = w.engine.failed.Swap(false) || failed
		said, err := askEngine(ctx, w)
		if err == nil || errors.Is(err, errNoMetrics) {
			s.heard(w, said, failed)
			failed = false
			if asked := s.findSources(ctx, w, said.ranks); asked != nil {
				err = asked
			}
		}
		if err == nil {
			return true
		}
		if c := s.logger.Load().Check(zap.DebugLevel, "engine did not tell of its cache"); c != nil {
			c.Write(zap.String("upstream", w.Address()), zap.Error(err))
		}
		if errors.Is(err, errNoMetrics) {
			return true
		}
		if !errors.Is(err, errNotHTTP) {
			wait = s.waitToAsk(ctx, w, wait)
		}
		if errors.Is(err, errNotHTTP) || wait == 0 {
			if failed {
				w.engine.failed.Store(true) // for whoever asks next
			}
			return false
		}
	}
}

// waitToAsk waits for the next time to ask w's engine, and returns how long to wait after
// that; 0 if there is no reason to ask any more.
func (s *state) waitToAsk(ctx context.Context, w *worker, wait time.Duration) time.Duration {
	timer := time.NewTimer(s.clock.real(wait))
	defer timer.Stop()
	select {
	case <-timer.C:
		return min(2*wait, askLast)
	case <-w.engine.back:
		return askFirst
	case <-w.left:
	case <-ctx.Done():
	}
	return 0
}

// pause waits and reports whether there is still reason to: neither has ctx ended nor has
// w left.
func (w *worker) pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.left:
		return false
	case <-ctx.Done():
		return false
	}
}

// heard takes in what the engine said. One that failed and does not tell when it
// was started is taken for restarted: a cache believed empty costs one prefill,
// one wrongly believed full costs one for each request.
func (s *state) heard(w *worker, said engineFacts, failed bool) {
	before := w.engine.started
	if said.started != 0 {
		w.engine.started = said.started
	}
	changed, untold := before != 0 && w.engine.started != before, failed && said.started == 0
	if changed || untold {
		for _, r := range append(w.parts(), w) {
			s.forgetPrefixes(r)
			r.ForgetRate()
			r.Heard(s.clock.now())
		}
		s.logger.Load().Info("engine was restarted; its cache is taken for empty", zap.String("upstream", w.Address()))
	}
	if said.capacity > 0 {
		w.SetCapacity(said.capacity)
	}
	s.fit(w)
	s.share(w)
}

// fit limits what w is believed to hold to what its engine has room for. With three
// quarters of that agents on small caches wait 26 % longer, with half as much again 45 %
// (docs/constants.md).
func (s *state) fit(w *worker) {
	bytes := float64(w.Capacity()) * s.models.StoredRatio()
	s.tree.SetCapacity(*w.prefix.Load(), int64(bytes))
}

var (
	// errNoMetrics says that the engine answers, but not this question.
	errNoMetrics = errors.New("no metrics page")

	// errNotHTTP says that there is no way to ask.
	errNotHTTP = errors.New("upstream is not reached by HTTP")
)

// askEngine reads the metrics page of w's engine.
func askEngine(ctx context.Context, w *worker) (engineFacts, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	response, err := get(ctx, w, "/metrics")
	if err != nil {
		return engineFacts{}, err
	}
	defer response.Body.Close()
	if response.StatusCode >= http.StatusInternalServerError {
		return engineFacts{}, fmt.Errorf("metrics page answered %d", response.StatusCode)
	}
	if response.StatusCode != http.StatusOK {
		return engineFacts{}, fmt.Errorf("%w: answered %d", errNoMetrics, response.StatusCode)
	}
	return readEngineMetrics(io.LimitReader(response.Body, maxEngineMetrics))
}

// get asks w's engine for a page, as requests are sent there.
func get(ctx context.Context, w *worker, path string) (*http.Response, error) {
	w = w.base
	transport := w.transport.Load()
	if transport == nil {
		return nil, errNotHTTP
	}
	ctx = context.WithValue(ctx, caddy.ReplacerCtxKey, caddy.NewReplacer())
	request := (&http.Request{
		Method: http.MethodGet,
		URL:    &url.URL{Host: w.Address(), Path: path},
		Host:   w.Address(),
		Header: http.Header{"User-Agent": {"caddy-inference"}},
		Proto:  "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	return transport.RoundTrip(request)
}
