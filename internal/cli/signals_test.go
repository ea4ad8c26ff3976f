package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"ravi/internal/command"
)

// addWaiter adds a command that ends when it is told to, and can be told to be slow about it.
func addWaiter(t *command.Table) {
	t.AddGroup(command.Group{Name: "wait", Summary: "Wait"})
	command.Add(t, command.Spec[waitInput, struct{}]{
		Group: "wait", Name: "wait", Access: command.Read, Summary: "Wait for a signal",
		Handler: func(ctx context.Context, env *command.Env, in waitInput) (struct{}, error) {
			fmt.Fprintln(env.Stdout, "waiting")
			<-ctx.Done()
			fmt.Fprintln(env.Stdout, "ending")
			if in.Stubborn {
				io.Copy(io.Discard, env.Stdin) // never ends: the test holds the other end
			}
			return struct{}{}, ctx.Err()
		},
	})
}

type waitInput struct {
	Stubborn bool `json:"stubborn" flag:"stubborn" host:"none" usage:"do not end"`
}

func TestSignals(t *testing.T) {
	for name, c := range map[string]struct {
		signals []syscall.Signal
		args    []string
		exit    int
	}{
		"ctrl-c":        {[]syscall.Signal{syscall.SIGINT}, nil, 130},
		"terminated":    {[]syscall.Signal{syscall.SIGTERM}, nil, 143},
		"hung up":       {[]syscall.Signal{syscall.SIGHUP}, nil, 129},
		"a second time": {[]syscall.Signal{syscall.SIGINT, syscall.SIGINT}, []string{"--stubborn"}, 130},
		"then harder":   {[]syscall.Signal{syscall.SIGINT, syscall.SIGTERM}, []string{"--stubborn"}, 143},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("ravi", append([]string{"wait"}, c.args...)...)
			cmd.Env = append(os.Environ(), "RAVI_HOME="+t.TempDir())
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for _, s := range c.signals {
				// The next line says that the program is where the signal should meet it.
				if !lines.Scan() {
					t.Fatal("the program ended early")
				}
				if err := cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
			for lines.Scan() {
			}
			err = cmd.Wait()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != c.exit {
				t.Errorf("got %v, want exit code %d", err, c.exit)
			}
		})
	}
}
