// Package zmtp speaks as much of ZMTP 3, the wire protocol of ZeroMQ, as it takes to
// listen to an inference engine: a [Sub] that connects to a publisher or lets publishers
// connect to it, and a [Dealer] that asks a router socket. The mechanism is NULL, the
// transports are TCP and unix sockets.
//
// It is made for peers that fail: an engine that is not there yet, that dies in the middle
// of a frame, whose host vanishes, that is frozen, or that is something else altogether.
// A Sub connects again until its context ends, and waits longer each time. It sends PING
// when it has heard nothing and gives a link up that stays silent. Memory follows the
// bytes that have come, never a length that a peer declares, and every length has a limit.
//
// A link is one goroutine, and a message costs no allocation.
//
// It is not a general ZeroMQ library: there are no other socket types, no authentication,
// no queues of messages and no fair queueing. A handler that is slow makes the peer wait.
package zmtp
