package inference

import "time"

// What tests wait for comes at once; patience is for machines that are busy.
const (
	patience = 10 * time.Second
	tick     = 2 * time.Millisecond
)
