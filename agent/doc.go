// Package agent is an agent loop whose hands are elsewhere: the model is asked from here, and what it wants done is done
// in a sandbox.
//
//	hands := agent.NewHands(func(ctx context.Context) (*sandbox.Sandbox, error) {
//		return sandbox.Open(ctx, sandbox.Default(), "/path/to/project")
//	})
//	defer hands.Close(ctx)
//	loop, err := agent.New(agent.Config{Model: model, Hands: hands})
//	outcome, err := loop.Turn(ctx, "Mend the failing test.")
//
// A loop has tools. Each call goes through one door, the Registry, where a gate says whether it is done, refused, or asked
// about; that a sandbox bounds what a command can reach does not change what the gate says. All that a tool answers is
// fenced before the model reads it, since whoever wrote a file that is read may want to be taken for the user.
//
// The package keeps no record but a Journal that it is given, dials nothing but by the Model that it is given, and touches
// no file of this machine but by tools that were made for that. It knows nothing of runs, keys or the command line.
package agent
