package kvevents

import (
	"errors"
	"time"

	"github.com/caddy-inference/caddy-inference/kvevents/zmtp"
)

// State is how far what a stream has brought can be relied on.
type State uint8

const (
	// Connecting: there is no link. What was applied is as of when there was one.
	Connecting State = iota

	// Replaying: batches are missing and being fetched. Nothing newer is applied.
	Replaying

	// Synced: all that the engine has published since it began, or since it last
	// cleared its cache, has been applied.
	Synced

	// Degraded: what has been applied is true, but the engine holds more.
	Degraded

	// Blind: what has been applied may be false.
	Blind
)

var stateNames = [...]string{"connecting", "replaying", "synced", "degraded", "blind"}

func (s State) String() string { return stateNames[s] }

// Reason says why a state is what it is, or why what was applied is void.
type Reason string

const (
	ReasonNone Reason = ""

	// Why there is no link.
	Unreachable Reason = "unreachable" // nobody listens there
	LinkLost    Reason = "link_lost"   // it was closed or cut
	Silent      Reason = "silent"      // the engine stopped answering
	WrongPeer   Reason = "wrong_peer"  // it is no publisher, or speaks nonsense
	TooLarge    Reason = "too_large"   // it sent a message over the limit

	// Why the engine holds more than was applied.
	Began        Reason = "began"         // batches from before the first were not seen
	Lost         Reason = "lost"          // batches could not be had again
	ReplayFailed Reason = "replay_failed" // the replay socket did not answer as it should
	ReplayShort  Reason = "replay_short"  // the engine keeps too few batches to replay
	Undecodable  Reason = "undecodable"   // a batch could not be read

	// Why what was applied is void, or may be.
	Restarted Reason = "restarted" // the engine has begun anew
	Unproven  Reason = "unproven"  // the engine may have begun anew since the link was lost
	Resynced  Reason = "resynced"  // a replay brings all of it again
)

// linkReasons are the reasons why there is no link.
var linkReasons = [...]Reason{Unreachable, LinkLost, Silent, WrongPeer, TooLarge}

// linkReason says why a link ended or was not made.
func linkReason(err error, linked bool) Reason {
	switch {
	case errors.Is(err, zmtp.ErrProtocol):
		return WrongPeer
	case errors.Is(err, zmtp.ErrTooLarge):
		return TooLarge
	case errors.Is(err, zmtp.ErrSilent):
		return Silent
	case linked:
		return LinkLost
	}
	return Unreachable
}

// Status is a stream's state, why, and since when.
type Status struct {
	State  State
	Reason Reason
	Since  time.Time
}

// Handler is told what a stream brings, one call at a time. It should be quick: batches
// wait meanwhile, and if too many do they are let go and fetched again.
type Handler interface {
	// Apply brings the next batch. It is valid until Apply returns.
	Apply(b *Batch)

	// Clear says that all that was applied is void.
	Clear(why Reason)

	// State says that the state has changed.
	State(s Status)
}
