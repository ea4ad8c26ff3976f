// Package link is the wire between a keeper and the guest agent in its sandbox:
// two pipes, and the sessions that a restored sandbox needs on them.
//
// It moves bytes and knows nothing of what they mean. It must not import
// anything else of Ravi, nor HTTP: the supervisor, which stands on it, is small.
package link
