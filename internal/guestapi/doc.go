// Package guestapi is the protocol that a sandbox's guest agent speaks on the
// link: E2B's envd protocol (process and filesystem services over Connect,
// contents over HTTP) and a small service of Ravi's own beside it.
//
// It holds the definitions, the code generated from them and a client. It must
// not import anything else of Ravi: the keeper, the guest and every backend
// stand on it.
package guestapi

//go:generate ./generate.sh
