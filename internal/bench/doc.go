// Package bench measures what sandboxes cost on this machine: how long one
// takes to be made, to answer and to run a command, how fast bytes go in and
// out, how much memory one needs. Other ways to run a command apart from the
// host are measured beside it in the same run and in turns, so that what else
// the machine does at the time strikes all of them alike.
//
// It makes sandboxes by package sandbox, starts the programs that it compares
// with, and writes beneath bench in Ravi's home. It removes all of that again.
// It decides nothing: it must not be used by what it measures, and no number
// that it finds may change how Ravi works.
package bench
