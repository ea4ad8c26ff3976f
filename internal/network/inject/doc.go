// Package inject puts credentials into the requests of a sandbox, and takes them
// out of the responses. What runs in the sandbox has placeholders only.
//
// A placeholder is replaced when four things hold: the request came inside TLS
// that the gateway ended; the name that it is for, which the SNI and Host must
// agree on, is one that the secret is bound to; the connection was made to that
// name and not to an address; and the placeholder stands in a header, or in the
// parameter of the query, that the secret is bound to. Package intercept sees to
// the names, this one to the rest. A placeholder in the head of any other request
// is refused: nothing sends it there by accident.
//
// The package holds the values of one sandbox's secrets, in memory alone. It must
// not write, log or send one, nor let it be part of an error.
package inject
