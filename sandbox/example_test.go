package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"ravi/sandbox"
)

// The snippets of README.md and docs/sandbox-api.md, so that they compile and
// do what they say.

func Example() {
	ctx := context.Background()
	project, home, remove := exampleDirs()
	defer remove()
	run := func() error {
		sb, err := sandbox.Open(ctx, sandbox.Default(), project, sandbox.WithHome(home))
		if err != nil {
			var init *sandbox.InitError
			if errors.As(err, &init) {
				log.Print(init, "; ", init.Hint)
			}
			return err
		}
		defer sb.Close()

		res, err := sb.Exec(ctx, sandbox.Cmd{Shell: "echo hello; exit 3"})
		if err != nil {
			return err
		}
		fmt.Println(res.Text(0)) // output, and the exit code
		return nil
	}
	if err := run(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// hello
	//
	// Exit code: 3
}

func ExampleSandbox_Start() {
	ctx := context.Background()
	project, home, remove := exampleDirs()
	defer remove()
	run := func() error {
		if err := os.Mkdir(project+"/backend", 0o755); err != nil {
			return err
		}
		cfg := sandbox.Default()
		cfg.Workspace = sandbox.WorkspaceOverlay // what it writes stays inside
		sb, err := sandbox.Open(ctx, cfg, project, sandbox.WithHome(home))
		if err != nil {
			return err
		}
		defer sb.Close()

		timeout := 10 * time.Minute
		p, err := sb.Start(ctx, sandbox.Cmd{
			Args: []string{"sh", "-c", "pwd; echo made > file"}, Dir: "backend",
			Stdout: os.Stdout, Stderr: os.Stderr, Timeout: &timeout,
		})
		if err != nil {
			return err
		}
		st, err := p.Wait()
		if err != nil {
			return err
		}
		fmt.Println("exit code", st.ExitCode)
		if _, err := os.Stat(project + "/backend/file"); err != nil {
			fmt.Println("the host has no such file")
		}
		b, err := sb.Files().ReadFile(ctx, "/workspace/backend/file", 1<<20)
		fmt.Print(string(b))
		return err
	}
	if err := run(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// /workspace/backend
	// exit code 0
	// the host has no such file
	// made
}

// exampleDirs makes a project and, apart from it, a home of Ravi's.
func exampleDirs() (project, home string, remove func()) {
	top, err := os.MkdirTemp("", "ravi-example-")
	if err != nil {
		log.Fatal(err)
	}
	project, home = top+"/project", top+"/home"
	for _, dir := range []string{project, home} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			log.Fatal(err)
		}
	}
	return project, home, func() { os.RemoveAll(top) }
}
