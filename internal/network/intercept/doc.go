// Package intercept lets a sandbox's TCP connections pass to the outside, as far
// as a policy allows: it looks into each one, ends its TLS with a certificate of
// the sandbox's own authority, and asks anew for every HTTP request.
//
// It gets byte streams and gives bytes to streams. It may dial only with the
// function that it was given, and must not open a socket, resolve a name, read
// a file, log, or know what a policy looks like. Everything that the guest sends
// is hostile, and so is everything that comes back.
//
// One connection of the guest has one connection upstream, which is made before
// the guest's TLS handshake is answered. So the guest is offered exactly the
// protocol that the server chose, a server's end of a connection is the end of
// the guest's, and no request can be sent twice. HTTP/1 is spoken by this
// package, on the parsers of net/http, since the bytes of the request line, a
// half-closed connection and the server's own "100 Continue" have to survive;
// HTTP/2 is spoken by net/http on both sides.
package intercept
