package inference

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-inference/caddy-inference/fleet"
	"github.com/caddy-inference/caddy-inference/kvindex"
	"github.com/caddy-inference/caddy-inference/radix"
)

// states holds the one state of the process. It is a pool because that counts
// its users: a new config takes it before the old one gives it back, so what was
// learned outlives a reload.
var states = caddy.NewUsagePool()

const stateKey = "inference"

// state is what outlives requests and configs: the fleet with its ledgers, the
// tree of what was sent where, what was learned about models, and the metrics.
//
// There is one for the process, not one for a site or a pool of upstreams. What
// a worker holds and what is queued on it are facts about the worker: two sites
// in front of it must know the same, and a pool that gains or loses an upstream
// must not forget the rest. Pools do not mix, because a request looks at its own
// upstreams only.
type state struct {
	seed     uint64
	fleet    *fleet.Fleet
	models   fleet.Models
	tree     *radix.Tree
	index    *kvindex.Index
	splits   atomic.Uint64 // times that ranks of engines became or ceased to be workers
	buffered budget
	clock    *clock // of all that is kept by the time
	metrics  *metrics

	adapters  adapters
	tokenMemo *tokenMemo

	// logger is the newest config's, so that an old config is not kept alive.
	logger atomic.Pointer[zap.Logger]

	scratch sync.Pool
	fitted  atomic.Uint64 // float64 bits: the ratio that capacities were last measured by

	interval atomic.Int64   // nanoseconds between rounds of eviction
	tasks    sync.WaitGroup // what works in the background

	mu      sync.Mutex // guards what follows
	workers map[*fleet.Worker]*worker
	full    bool               // the last worker that joined found no place in the tree
	apps    []*App             // that were started and not stopped, in order
	ctx     context.Context    // of what the first of them started; nil if none runs
	cancel  context.CancelFunc // ends it
}

// loadState takes the state from the pool, made new for the first user.
func loadState() (*state, error) {
	value, _, err := states.LoadOrNew(stateKey, func() (caddy.Destructor, error) { return newState(), nil })
	if err != nil {
		return nil, err
	}
	return value.(*state), nil
}

// releaseState gives the state back to the pool.
func releaseState() error {
	_, err := states.Delete(stateKey)
	return err
}

func newState() *state {
	s := &state{
		seed:    rand.Uint64(), //nolint:gosec // keeps fingerprints of two processes apart, no secret
		fleet:   fleet.New(),
		tree:    radix.New(radix.Options{MaxBytes: defaultMaxTreeSize, Rewrite: radix.DefaultRewrite}),
		index:   kvindex.New(kvindex.Options{}),
		clock:   newClock(),
		workers: make(map[*fleet.Worker]*worker),
	}
	s.buffered.limit.Store(defaultMaxBuffered)
	s.interval.Store(int64(defaultEvictionInterval))
	s.logger.Store(zap.NewNop())
	s.tokenMemo = newTokenMemo(maxTokenMemo)
	s.metrics = newMetrics(s)
	return s
}

// Destruct does nothing: what runs was stopped by the last app, and requests of
// old configs may still hold the state.
func (s *state) Destruct() error { return nil }

// start puts an app's limits into force, and starts what works in the background
// if no other config did already.
func (s *state) start(a *App) {
	s.mu.Lock()
	s.apps = append(s.apps, a)
	s.apply(a)
	if s.full {
		s.warnFull() // with a logger, which who joined while the config was set up had not
	}
	if s.ctx == nil {
		s.ctx, s.cancel = context.WithCancel(context.Background())
		ctx := s.ctx
		s.tasks.Go(func() { s.tend(ctx) })
		s.tasks.Go(func() { s.watchSilence(ctx) })
		for _, w := range s.workers {
			s.ask(w)
		}
	}
	ended := s.listenAll()
	s.mu.Unlock()
	s.closeFeeds(ended)
}

// stop ends what works in the background when the last config stops. If another
// goes on, its limits hold: the newer one's after a reload, the older one's if the
// newer could not be started.
func (s *state) stop(a *App) {
	s.mu.Lock()
	s.apps = slices.DeleteFunc(s.apps, func(other *App) bool { return other == a })
	last := len(s.apps) == 0
	if last {
		s.cancel()
		s.ctx = nil
	} else {
		s.apply(s.apps[len(s.apps)-1])
	}
	ended := s.listenAll()
	s.mu.Unlock()
	s.closeFeeds(ended)
	if last {
		s.tasks.Wait()
	}
}

// inBackground has a task done that ends with the last config, and reports whether any runs.
func (s *state) inBackground(task func(context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil {
		return false
	}
	ctx := s.ctx
	s.tasks.Go(func() { task(ctx) })
	return true
}

// apply puts an app's limits into force. s.mu is held.
func (s *state) apply(a *App) {
	s.logger.Store(a.logger)
	s.buffered.limit.Store(a.MaxBuffered)
	s.clock.setScale(a.TimeScale)
	s.tree.SetMaxBytes(cmp.Or(a.treeSize, defaultMaxTreeSize))
	s.index.SetMaxBytes(cmp.Or(a.indexSize, defaultMaxIndexSize))
	s.interval.Store(int64(cmp.Or(a.interval, defaultEvictionInterval)))
}

// members returns the workers that configs name.
func (s *state) members() []*worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*worker, 0, len(s.workers))
	for _, w := range s.workers {
		list = append(list, w)
	}
	return list
}

func (s *state) takeScratch() *scratch {
	if sc, ok := s.scratch.Get().(*scratch); ok {
		return sc
	}
	return &scratch{chunker: radix.NewChunker(s.seed)}
}

// putScratch keeps the memory for the next request, and nothing of this one's.
func (s *state) putScratch(sc *scratch) {
	sc.prompt.Reset()
	sc.chunker.Reset()
	sc.tokens.reset()
	clear(sc.candidates)
	s.scratch.Put(sc)
}

// fitAbove is the change of the fleet's ratio of bytes to tokens at which what
// workers are believed to hold is measured anew.
const fitAbove = 0.05

// learn takes in how many tokens an engine counted in a prompt.
func (s *state) learn(model *fleet.Model, textBytes, storedBytes, tokens int) {
	s.models.Learn(model, textBytes, storedBytes, tokens)
	ratio, fitted := s.models.StoredRatio(), math.Float64frombits(s.fitted.Load())
	if math.Abs(ratio-fitted) <= fitAbove*fitted {
		return
	}
	s.fitted.Store(math.Float64bits(ratio))
	for _, w := range s.members() {
		s.fit(w)
	}
}

// tend keeps the tree within its limit until ctx ends: as soon as it nears the
// limit, and in any case once an interval.
func (s *state) tend(ctx context.Context) {
	s.tasks.Go(func() { s.tree.Run(ctx) })
	s.tasks.Go(func() { s.index.Run(ctx) })
	for {
		timer := time.NewTimer(s.clock.real(time.Duration(s.interval.Load())))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		for s.tree.Tend() && ctx.Err() == nil {
			continue
		}
	}
}
