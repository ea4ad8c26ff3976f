// Package e2esdk holds a smoke test: the E2B SDK from npm, at a pinned
// version, against the guest agent. It has no code of its own, and touches
// nothing but namespaces that its test makes.
package e2esdk
