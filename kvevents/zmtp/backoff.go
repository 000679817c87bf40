package zmtp

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff says how long to wait before connecting again.
type backoff struct {
	min, max time.Duration
	wait     time.Duration
}

// next returns the wait after a link that lived for so long, 0 if it never came to be.
func (b *backoff) next(lived time.Duration) time.Duration {
	if b.wait == 0 || lived >= b.max {
		b.wait = b.min
	}
	wait := b.wait
	b.wait = min(2*b.wait, b.max)
	return wait/2 + rand.N(wait/2+1) //nolint:gosec // spreads what would come at once
}

// sleep returns after so long, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
