package inference

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// silenceInterval is how often it is looked for workers that have become silent: seldom, as
// it is done only to tell of it. Choices see it for themselves.
const silenceInterval = time.Second

// watchSilence tells of workers that hang until ctx ends: once when one begins to, and once
// when it is heard again.
func (s *state) watchSilence(ctx context.Context) {
	for {
		timer := time.NewTimer(s.clock.real(silenceInterval))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		now := s.clock.now()
		for _, w := range s.members() {
			s.tellSilence(w, now)
		}
	}
}

// tellSilence tells whether w has begun to hang, or has ceased to.
func (s *state) tellSilence(w *worker, now time.Time) {
	hangs, overdue := w.hangs.Load(), w.Overdue(now)
	switch {
	case overdue > 0 && hangs == nil:
		w.hangs.Store(&now)
		s.logger.Load().Warn("upstream takes requests and is silent; others are preferred to it",
			zap.String("upstream", w.Address()), zap.Duration("overdue", overdue),
			zap.String("hint", "nothing was heard of it for much longer than its work should take: see the engine's log whether it is stuck, and restart it if so; it is in use again with the first thing heard"))
	case hangs != nil && w.HeardSince(*hangs):
		w.hangs.Store(nil)
		s.logger.Load().Info("upstream is no longer silent", zap.String("upstream", w.Address()))
	}
}
