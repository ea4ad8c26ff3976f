// Package sandbox runs untrusted commands in disposable sandboxes, each a room
// of its own with its own kernel.
//
//	sb, err := sandbox.Open(ctx, sandbox.Default(), "/path/to/project")
//	if err != nil {
//		return err // an *InitError, with a hint
//	}
//	defer sb.Close()
//	res, err := sb.Exec(ctx, sandbox.Cmd{Shell: "python3 --version"})
//	fmt.Println(res.Text(0))
//
// The project is seen in the sandbox as /workspace. Nothing else of the host
// is, but its tools (read-only) and the volumes that the configuration names.
//
// The package needs the program ravi on the machine, since that contains the
// kernel. It writes beneath Ravi's home (RAVI_HOME, or ~/.ravi) only. It knows
// nothing of runs, keys or the command line.
package sandbox
