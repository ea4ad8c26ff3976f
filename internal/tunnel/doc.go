// Package tunnel is a private connection between two programs that share
// nothing but a bus: sealed, resumable sessions over two subjects of NATS, each
// with many streams. A run's process and a runner on another host talk over it.
//
// From below:
//
//   - A handshake. Each end seals a fresh key (X25519) to the key of the other
//     that it was given beforehand (nkeys curve keys), with the session's name.
//     What is agreed is known to the two alone, and to no later thief of their
//     long-lived keys. A hello that is played again makes nothing.
//   - Packets, sealed with AES-256-GCM under a key for each direction. Their
//     counters are the nonces and only rise, so a packet is taken at most once.
//   - A connection: bytes in order, acknowledged, sent again when lost, in
//     windows of bounded size. It outlives a cut of the bus that is shorter
//     than Dead, and ends at each end by its own clock when for Dead nothing
//     came that answers what it sent.
//   - Streams (yamux), each with a window of its own.
//
// A bus that drops, doubles, delays, reorders, replays or changes packets can
// stop a session, and nothing else: no byte is read that was not written, in its
// order. Nothing here queues without a bound: who does not read stops who writes.
//
// The package may use the connection to the bus that it is given. It must not
// read configuration or credentials, and knows nothing of what the streams carry.
package tunnel

import "errors"

// Why a session ended, or did not begin. What a session returns wraps one of them.
var (
	// ErrSilent: nothing came from the other end for Dead, or nothing that answers what was sent.
	ErrSilent = errors.New("the other end of the tunnel is silent")
	// ErrPeerClosed: the other end closed the session, or its process ended in order.
	ErrPeerClosed = errors.New("the other end closed the tunnel")
	// ErrReplaced: the same run began the same session anew.
	ErrReplaced = errors.New("the tunnel was begun anew by the other end")
	// ErrClosed: the session was closed at this end.
	ErrClosed = errors.New("the tunnel is closed")
	// ErrBusDown: the connection to the bus was closed for good.
	ErrBusDown = errors.New("the connection to the bus is closed")
	// ErrUnanswered: nobody answered before Dial's context ended.
	ErrUnanswered = errors.New("nobody answers on the tunnel")
	// ErrForged: answers came, and none was sealed by the expected key for this session.
	ErrForged = errors.New("what answers on the tunnel does not hold the expected key")
	// ErrBusy: the listener has as many sessions as it may.
	ErrBusy = errors.New("the other end takes no more tunnels")
	// ErrProtocol: the other end holds the key and does not keep to the protocol.
	ErrProtocol = errors.New("the other end of the tunnel does not keep to the protocol")
	// ErrStopped: what is written to a stream is wanted no more, as its reader closed it.
	ErrStopped = errors.New("the other end closed the stream")
)
