package kvevents

import "sync/atomic"

// Stats are what a stream has counted since it began.
type Stats struct {
	Batches      uint64 // applied
	Replayed     uint64 // of these, fetched by replay
	Gaps         uint64 // times that batches were missing
	Lost         uint64 // batches that could not be had again
	Duplicates   uint64 // batches that had been applied already
	Restarts     uint64 // times that the engine began anew
	Malformed    uint64 // messages that are no batch: frames or sequence number
	DecodeErrors uint64 // batches that could not be read
	Skipped      uint64 // events of unknown types
	Overflows    uint64 // times that too many bytes waited
	Replays      uint64 // requests for replay
	ReplayErrors uint64 // of these, failed or with holes

	// Links counts links that ended or could not be made, by reason.
	Links map[Reason]uint64
}

// counters are Stats in the making; any goroutine may read them.
type counters struct {
	batches, replayed, gaps, lost, duplicates, restarts atomic.Uint64
	malformed, decodeErrors, skipped, overflows         atomic.Uint64
	replays, replayErrors                               atomic.Uint64
	links                                               [len(linkReasons)]atomic.Uint64
}

func (c *counters) link(why Reason) {
	for i, r := range linkReasons {
		if r == why {
			c.links[i].Add(1)
		}
	}
}

func (c *counters) stats() Stats {
	s := Stats{
		Batches:      c.batches.Load(),
		Replayed:     c.replayed.Load(),
		Gaps:         c.gaps.Load(),
		Lost:         c.lost.Load(),
		Duplicates:   c.duplicates.Load(),
		Restarts:     c.restarts.Load(),
		Malformed:    c.malformed.Load(),
		DecodeErrors: c.decodeErrors.Load(),
		Skipped:      c.skipped.Load(),
		Overflows:    c.overflows.Load(),
		Replays:      c.replays.Load(),
		ReplayErrors: c.replayErrors.Load(),
		Links:        make(map[Reason]uint64, len(linkReasons)),
	}
	for i, r := range linkReasons {
		s.Links[r] = c.links[i].Load()
	}
	return s
}
