// Package e2e holds tests of the whole program: bin/ravi is started as a user would start it, on repositories and in homes
// that each test makes for itself, and what comes out is looked at from the outside.
//
// There is no code but tests. They may start the program and git, and kill what they started; they must not reach into
// the program's packages for anything but names and types.
package e2e
