package kvindex

import "context"

const (
	// tendWork is how many blocks one step of Tend looks at: some 10 us.
	tendWork = 2048

	// eventWork is how many blocks an event looks at besides its own work.
	eventWork = 64

	// tendEvictions is how many blocks one step of Tend evicts.
	tendEvictions = 128
)

// Run tends the index whenever there is something to do, until the context
// ends.
func (x *Index) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-x.wake:
		}
		for ctx.Err() == nil && x.Tend() {
			continue
		}
	}
}

// Tend does one short step of what is to be done besides the events: it takes
// back what cleared workers held, and keeps the memory limit where that was
// lowered. It reports whether there is more to do.
func (x *Index) Tend() (more bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.sweepSome(tendWork) {
		return true
	}
	for range tendEvictions {
		if x.bytes() <= x.limit || !x.evict() {
			return false
		}
		x.emptied()
	}
	return true
}

// tendSome does a little of that on an event's time.
func (x *Index) tendSome() {
	if len(x.retired)+len(x.sweep.lanes) > 0 {
		x.sweepSome(eventWork)
	}
}

// emptied starts the tables afresh if there is nothing in them: a directory
// does not shrink by itself.
func (x *Index) emptied() {
	if x.slab.live == 0 {
		x.blocks.reset()
		x.names.reset()
	}
}

// SetMaxBytes changes the memory limit, in bytes.
func (x *Index) SetMaxBytes(bytes int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if bytes <= 0 {
		bytes = DefaultMaxBytes
	}
	x.limit = bytes
	x.signal()
}

// signal wakes Run.
func (x *Index) signal() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}
