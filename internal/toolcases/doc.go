// Package toolcases holds tests of ordinary developers' tools in gVisor
// sandboxes: compilers, debuggers, package managers, watchers, and what they
// lean on. What a tool cannot do there stands in docs/limits.md, and each line
// of that table that can be tried is tried here, so that it stays true.
//
// The tests make real sandboxes with the ravi program, of this host's own
// tools; a tool that the host lacks is skipped, loudly. They write below the
// test's own directories only. No other package imports this one.
package toolcases
