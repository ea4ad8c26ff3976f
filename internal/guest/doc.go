// Package guest is what runs inside a sandbox: it starts processes, moves
// files and says what happens to them, in the protocol of guestapi.
//
// It is PID 1 of its sandbox and root in it, and everything around it may be
// hostile: it keeps no secret, and trusts only the link that it was born with.
// It may touch the sandbox it is in and nothing else. It must not import
// anything of Ravi but guestapi, since its size and start are waiting time of
// the user.
package guest
