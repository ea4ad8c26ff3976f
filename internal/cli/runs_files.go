package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"unicode/utf8"

	"ravi/internal/command"
	runs "ravi/internal/run"
)

// maxPatch bounds a patch that is passed on; a larger one is in the run's folder.
const maxPatch = 64 << 20

func runLogs(ctx context.Context, env *command.Env, in runsLogsInput) (logsOutput, error) {
	name := ""
	switch in.Stream {
	case "":
	case "stdout", "stderr":
		name = in.Stream + ".log"
	default:
		return logsOutput{Logs: []oneLog{}}, command.Usage(fmt.Sprintf("there is no stream %.40q", in.Stream), "it is stdout or stderr")
	}
	r, err := findRun(ctx, env, in.Run)
	if err != nil {
		return logsOutput{Logs: []oneLog{}}, err
	}
	return logsOf(env, r, name, in.Tail)
}

// runPatch is what a run changed.
type runPatch struct {
	RunID  string `json:"run_id"`
	Status string `json:"status"` // of the run: of one that is not over, the patch is not the last
	Bytes  int    `json:"bytes"`
	Text   string `json:"text,omitempty"`
	Base64 string `json:"base64,omitempty"` // what is not UTF-8
}

func readPatch(ctx context.Context, env *command.Env, in runsOneInput) (runPatch, error) {
	r, err := findRun(ctx, env, in.Run)
	if err != nil {
		return runPatch{}, err
	}
	out := runPatch{RunID: r.ID, Status: string(r.Status)}
	missing := &command.Error{Code: command.CodeNotFound, Message: fmt.Sprintf("run %s has no patch", r.ID),
		Hint: "it has one when there was something to save; see ravi runs show " + r.ID, Status: http.StatusNotFound, Exit: command.ExitFailed}
	root, err := os.OpenRoot(r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return out, missing
	}
	if err != nil {
		return out, errFolder(r.ID, err)
	}
	defer root.Close()
	if _, err := root.Lstat(runs.HeldFile); !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			return out, errFolder(r.ID, err)
		}
		held := &command.Error{Code: command.CodeConflict, Message: fmt.Sprintf("the patch of run %s holds the value of a secret, and is held back", r.ID),
			Hint: "ask the operator", Status: http.StatusConflict, Exit: command.ExitFailed}
		if env.Caller.IsOperator() {
			held.Hint = "read it where it is, and do not pass it on: " + filepath.Join(r.Dir, runs.HeldFile)
		}
		return out, held
	}
	f, err := root.OpenFile(runs.PatchFile, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return out, missing
	}
	if err != nil {
		return out, errFolder(r.ID, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPatch+1))
	if err != nil {
		return out, errFolder(r.ID, err)
	}
	if len(b) > maxPatch {
		hint := "ask the operator"
		if env.Caller.IsOperator() {
			hint = "take it from " + filepath.Join(r.Dir, runs.PatchFile)
		}
		return out, &command.Error{Code: command.CodeUsage, Message: fmt.Sprintf("the patch of run %s has more than %d MiB", r.ID, maxPatch>>20),
			Hint: hint, Status: http.StatusRequestEntityTooLarge, Exit: command.ExitFailed}
	}
	if out.Bytes = len(b); utf8.Valid(b) {
		out.Text = string(b)
	} else {
		out.Base64 = base64.StdEncoding.EncodeToString(b)
	}
	return out, nil
}

// errFolder tells that a run's folder cannot be read; where it is, is nothing for every caller.
func errFolder(id string, err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	return fmt.Errorf("cannot read the folder of run %s: %w", id, err)
}

func printPatch(env *command.Env, w io.Writer, p runPatch) error {
	text := p.Text
	if p.Base64 != "" {
		b, err := base64.StdEncoding.DecodeString(p.Base64)
		if err != nil {
			return err
		}
		text = string(b)
	}
	return printRaw(env, w, "patch of "+p.RunID, text)
}
