// Package policy decides what a sandbox may reach on the network: which names are answered, which connections are
// made, which requests pass, and which final addresses are dialled.
//
// A Policy is what a run asked for (allow_net); a Floor is what the operator's configuration adds and takes away; an
// Effective is both together and is what the network gateway asks. All decisions are pure functions: the same question
// has the same answer. Addresses alone looks at the world, at the addresses of this host's interfaces, because they
// change while a sandbox lives.
//
// The gateway asks in this order, and each step stands on its own:
//
//   - Effective.Resolve before a name is answered,
//   - Effective.Connect when a connection is opened by the guest,
//   - Effective.Request for every request on it,
//   - Effective.Dial for the final address, after the name was resolved on the host and immediately before the dial.
//
// The package opens no connection, resolves no name, logs nothing, and knows nothing of HTTP beyond a method and a
// path. What it is asked about was written by a guest and is hostile; what it quotes in a reason is escaped.
package policy
