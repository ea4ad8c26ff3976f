// Package deploy holds tests of what is in the folder deploy: each file is read as who uses it would, and started where the
// machine has what that needs (nginx, systemd-analyze, root).
//
// There is no code but tests. They listen on loopback and write below their own folders only, and end what they started.
package deploy
