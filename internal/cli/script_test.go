package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"ravi/internal/command"
	"ravi/internal/procid"
	"ravi/internal/store"
)

// The scripts run this test program as ravi, with a sweeper that changes records only; as seed, which writes records that
// the scripts look at; and as ask, which is a run that asks for something.
func TestMain(m *testing.M) {
	os.Setenv("RAVI_BUS_PORT", "0") // daemons of tests are side by side
	testscript.Main(m, map[string]func(){
		"ravi": func() {
			os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, parts{newSweeper: newRecordSweeper, register: []func(*command.Table){addTrial, addWaiter, addSandboxRun}}))
		},
		"ask": func() {
			if err := ask(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		},
		"seed": func() {
			if err := seed(context.Background()); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		},
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:  "testdata/script",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": status},
		Setup: func(env *testscript.Env) error {
			env.Setenv("RAVI_HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("RAVI_BUS_PORT", "0")
			env.Setenv("HOSTILE", "a\x1b[2J")
			return nil
		},
	})
}

// status runs a program that must end with exactly this exit code.
func status(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if want := args[0]; fmt.Sprint(got) != want {
		ts.Fatalf("%v ended with %d, want %s", args[1:], got, want)
	}
}

// recordSweeper stands for the hand that ends sandboxes, which belongs to other packages. RAVI_TEST_STUBBORN names
// one that it cannot end.
type recordSweeper struct{ store *store.Store }

func newRecordSweeper(ctx context.Context, env *command.Env) (command.Sweeper, error) {
	s, err := env.Store(ctx)
	return recordSweeper{s}, err
}

func (r recordSweeper) Kill(ctx context.Context, b store.Sandbox) error {
	if b.ID == os.Getenv("RAVI_TEST_STUBBORN") {
		return errors.New("it will not go\x1b[31m")
	}
	_, err := r.store.UpdateSandboxState(ctx, b.ID, store.SeenEnded, "killed")
	return err
}

func (r recordSweeper) Prune(ctx context.Context) (command.PruneReport, error) {
	report := command.PruneReport{Ended: []string{}, Problems: []string{}}
	live, err := r.store.ListSandboxes(ctx, store.SandboxFilter{Live: true})
	if err != nil {
		return report, err
	}
	for _, b := range live {
		if !itemOf(&command.Env{}, b).Lost {
			continue
		}
		if err := r.Kill(ctx, b); err != nil {
			report.Problems = append(report.Problems, b.ID+": "+err.Error())
			continue
		}
		report.Ended = append(report.Ended, b.ID)
		report.Programs, report.Dirs = report.Programs+2, report.Dirs+1
	}
	return report, nil
}

// seed records four sandboxes: one that lives, one that is lost, one that ended, and one of a hostile name.
func seed(ctx context.Context) error {
	env := &command.Env{}
	defer env.Close()
	s, err := env.Store(ctx)
	if err != nil {
		return err
	}
	home, err := env.Home()
	if err != nil {
		return err
	}
	// The one that started this program lives as long as the script.
	owner, err := procid.Of(os.Getppid())
	if err != nil {
		return err
	}
	gone := procid.ID{PID: 1 << 30, Start: 1}
	dir := filepath.Join(home, "runs", "runaaa")
	if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o700); err != nil {
		return err
	}
	for name, text := range map[string]string{"stdout.log": "one\ntwo\nthree", "stderr.log": "\x1b[31mred\x1b[0m\n"} {
		if err := os.WriteFile(filepath.Join(dir, "logs", name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "logs", "link.log")); err != nil {
		return err
	}
	if _, err := s.InsertRun(ctx, store.Run{ID: "runaaa", Dir: dir, Status: store.RunRunning}); err != nil {
		return err
	}
	if _, err := s.InsertRun(ctx, store.Run{ID: "runbbb", Dir: filepath.Join(home, "runs", "runbbb")}); err != nil {
		return err
	}
	start := store.Now()
	for i, b := range []store.Sandbox{
		{ID: "sbxaaa1", RunID: "runaaa", Seen: store.SeenRunning, Owner: owner, Workspace: "/src/project"},
		{ID: "sbxaaa2", Seen: store.SeenRunning, Owner: gone, Keeper: gone, RunID: "runbbb"},
		{ID: "sbxbbb1", Seen: store.SeenEnded, Reason: "exit", Owner: gone},
		{ID: "sbxccc1", Seen: store.SeenCreating, Keeper: owner, Workspace: "/a/very/long/path\x1b]0;title\a/that/does/not/fit/into/eighty/columns/at/all"},
	} {
		b.Backend, b.Image, b.CreatedAt = "gvisor", "host", start.Add(time.Duration(i-10)*time.Minute)
		b.Limits = store.Limits{CPUs: 2, MemoryMiB: 2048, DiskMiB: 4096, Pids: 4096}
		if _, err := s.InsertSandbox(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// addTrial adds commands that do what the table allows and sandbox commands do not yet need.
func addTrial(t *command.Table) {
	t.AddGroup(command.Group{Name: "trial", Summary: "A command that is its own group"})
	command.Add(t, command.Spec[trialInput, trialInput]{
		Group: "trial", Name: "trial", Access: command.Read, Summary: "Give back what it was given",
		Defaults: trialInput{Words: []string{"default"}, Memory: 7},
		Handler: func(_ context.Context, env *command.Env, in trialInput) (trialInput, error) {
			done := env.Progress.Step("a step\x1b[31m")
			env.Progress.Log("a line")
			if in.Fail {
				err := &command.Error{Code: "TRIAL", Message: "it failed\x1b[31m\nerror: not another one", Hint: "try again", Status: 500, Exit: 125}
				done(err)
				return in, err
			}
			done(nil)
			return in, nil
		},
		Exit: func(in trialInput) int { return in.Code },
	})
}

type trialInput struct {
	Fail    bool              `json:"fail" flag:"fail" host:"none" usage:"fail"`
	Code    int               `json:"code" flag:"code" short:"c" host:"none" usage:"exit code"`
	Words   []string          `json:"words" flag:"word" value:"WORD" host:"none" usage:"words"`
	Pairs   map[string]string `json:"pairs" flag:"pair" value:"K=V" host:"none" usage:"pairs"`
	Memory  int               `json:"memory" flag:"memory" value:"MiB" usage:"memory" host:"size"`
	Wait    *time.Duration    `json:"wait" flag:"wait" value:"D" host:"none" usage:"a time"`
	Command []string          `json:"command" arg:"CMD" optional:"true" usage:"a command" host:"command"`
}
