package kvevents

import "context"

// DefaultReplays is how many replays run at once if no [Replays] says otherwise.
const DefaultReplays = 8

// Replays limits how many replays run at once over all subscribers that share it, as a
// restart of the router asks every engine for one.
type Replays struct {
	places chan struct{}
}

// NewReplays returns a limit of n replays.
func NewReplays(n int) *Replays {
	return &Replays{places: make(chan struct{}, max(n, 1))}
}

// shared is the limit of subscribers that were given none.
var shared = NewReplays(DefaultReplays)

// enter waits for a place.
func (r *Replays) enter(ctx context.Context) error {
	select {
	case r.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *Replays) leave() { <-r.places }
