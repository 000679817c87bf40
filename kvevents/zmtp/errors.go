package zmtp

import "errors"

// What ends a link, apart from errors of the network. Errors wrap these.
var (
	// ErrProtocol says that the peer is no ZMTP 3 peer, or not the kind of socket that
	// was expected, or that it broke the protocol.
	ErrProtocol = errors.New("peer broke the ZMTP protocol")

	// ErrTooLarge says that a message has more bytes or frames than are let in.
	ErrTooLarge = errors.New("message is over the limit")

	// ErrSilent says that the peer has not been heard of for too long.
	ErrSilent = errors.New("peer is silent")
)
