package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"ravi/internal/command"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

// logLimit bounds what is read of one file, from its end; the rest is where the command says.
const logLimit = 8 << 20

func addSandboxLogs(t *command.Table) {
	command.Add(t, command.Spec[logsInput, logsOutput]{
		Group: "sandbox", Name: "logs", Access: command.Read,
		Object: func(ctx context.Context, env *command.Env, in logsInput) (string, error) {
			return runBoxObject(ctx, env, in.ID)
		},
		Summary: "Show the logs of a sandbox or a run",
		Long: `Shows what a run wrote, and what Ravi logged about it. The id is a sandbox's or
a run's, or its beginning. On a terminal, control sequences are shown and not
obeyed; into a pipe the bytes go as they are. In JSON, what is not UTF-8 is
replaced.`,
		Examples: []command.Example{{Line: "ravi sandbox logs sbx01jf"}, {What: "the last lines of one file", Line: "ravi sandbox logs sbx01jf --name stdout.log --tail 20"}},
		Handler:  readLogs, Print: printLogs,
	})
}

type logsInput struct {
	ID   string `json:"id" arg:"SANDBOX|RUN" host:"none" usage:"the id, or its beginning"`
	Name string `json:"name" flag:"name" value:"NAME" host:"none" usage:"only this log"`
	Tail int    `json:"tail" flag:"tail" short:"n" value:"N" host:"none" usage:"only the last N lines of each; 0 is all"`
}

type logsOutput struct {
	RunID string   `json:"run_id"`
	Dir   string   `json:"dir,omitempty"` // not for holders of keys
	Logs  []oneLog `json:"logs"`
}

type oneLog struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	// Cut says that the beginning of the text is left out: it was asked for, or the file is too large.
	Cut  bool   `json:"cut"`
	Text string `json:"text"`
}

func readLogs(ctx context.Context, env *command.Env, in logsInput) (logsOutput, error) {
	if in.Tail < 0 {
		return logsOutput{Logs: []oneLog{}}, errTail()
	}
	run, err := runOf(ctx, env, in.ID)
	if err != nil {
		return logsOutput{Logs: []oneLog{}}, err
	}
	return logsOf(env, run, in.Name, in.Tail)
}

func errTail() error { return command.Usage("--tail is below 0", "leave it out for all") }

// logsOf reads the logs of a run: all, or the one of a name; of each the last lines, or all.
func logsOf(env *command.Env, run store.Run, only string, tail int) (logsOutput, error) {
	out := logsOutput{RunID: run.ID, Logs: []oneLog{}}
	if tail < 0 {
		return out, errTail()
	}
	dir := filepath.Join(run.Dir, "logs")
	nothing := &command.Error{
		Code: command.CodeNotFound, Message: fmt.Sprintf("run %s has no logs", run.ID),
		Hint: "they are made when its command starts", Status: http.StatusNotFound,
	}
	if env.Caller.IsOperator() {
		out.Dir, nothing.Hint = dir, nothing.Hint+", in "+dir
	}
	// A name is looked up beneath the directory only, whatever it is and whatever lies there.
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nothing
	}
	if err != nil {
		return out, errFolder(run.ID, err)
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return out, errFolder(run.ID, err)
	}
	var names []string
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		names = append(names, entry.Name())
		if only != "" && entry.Name() != only {
			continue
		}
		log, err := readLog(root, entry.Name(), tail)
		if err != nil {
			return out, fmt.Errorf("cannot read the log %q: %w", entry.Name(), err)
		}
		out.Logs = append(out.Logs, log)
	}
	if len(out.Logs) == 0 && only != "" && len(names) > 0 {
		nothing.Message = fmt.Sprintf("run %s has no log %q", run.ID, only)
		nothing.Hint = "it has " + strings.Join(names, ", ")
	}
	if len(out.Logs) == 0 {
		return out, nothing
	}
	return out, nil
}

// runOf finds the run that an id means: its own, or that of the sandbox which was made for it.
func runOf(ctx context.Context, env *command.Env, typed string) (store.Run, error) {
	if looksLikeID("run", typed) {
		// Of a sandbox no run, so that what is shown is what the caller was let to see.
		return findRun(ctx, env, typed)
	}
	b, err := findSandbox(ctx, env, typed)
	if err != nil {
		return store.Run{}, err
	}
	if b.RunID == "" {
		return store.Run{}, &command.Error{
			Code: command.CodeNotFound, Message: fmt.Sprintf("sandbox %s was not made for a run, so it has no logs", b.ID),
			Hint: "whoever started a process in it has its output", Status: http.StatusNotFound,
		}
	}
	s, err := env.Store(ctx)
	if err != nil {
		return store.Run{}, err
	}
	return s.Run(ctx, b.RunID)
}

// runBoxObject is the sandbox that a command of runOf is about, for the access check.
func runBoxObject(ctx context.Context, env *command.Env, typed string) (string, error) {
	if !looksLikeID("run", typed) {
		return boxKind.object(ctx, env, "sandbox", typed)
	}
	r, err := runKind.get(ctx, env, typed)
	switch {
	case err != nil:
		return typed, err
	case knows(env, "sandbox", r.SandboxID):
		return cmp.Or(r.SandboxID, r.ID), nil
	}
	return typed, runKind.missing(typed, store.ErrNotFound)
}

func readLog(root *os.Root, name string, tail int) (oneLog, error) {
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return oneLog{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return oneLog{}, err
	}
	log := oneLog{Name: name, Bytes: info.Size()}
	from := max(info.Size()-logLimit, 0)
	data, err := io.ReadAll(io.NewSectionReader(file, from, logLimit))
	if err != nil {
		return oneLog{}, err
	}
	log.Cut = from > 0
	if last := lastLines(data, tail); len(last) < len(data) {
		data, log.Cut = last, true
	}
	log.Text = string(data)
	return log, nil
}

// lastLines is the end of data that holds n lines; 0 is all.
func lastLines(data []byte, n int) []byte {
	if n == 0 {
		return data
	}
	at := len(bytes.TrimSuffix(data, []byte("\n")))
	for range n {
		if at = bytes.LastIndexByte(data[:at], '\n'); at < 0 {
			return data
		}
	}
	return data[at+1:]
}

func printLogs(env *command.Env, w io.Writer, out logsOutput) error {
	for i, log := range out.Logs {
		if len(out.Logs) > 1 && !env.Quiet {
			if i > 0 {
				fmt.Fprintln(w)
			}
			fmt.Fprintf(w, "==> %s (%d bytes) <==\n", safe.Safe(log.Name), log.Bytes)
		}
		if log.Cut && !env.Quiet {
			fmt.Fprint(w, "… the beginning is left out")
			if out.Dir != "" {
				fmt.Fprint(w, "; all of it is in ", safe.Safe(filepath.Join(out.Dir, log.Name)))
			}
			fmt.Fprintln(w)
		}
		text := log.Text
		if err := printRaw(env, w, log.Name, text); err != nil {
			return err
		}
		if !env.ForAgent && text != "" && !strings.HasSuffix(text, "\n") && i < len(out.Logs)-1 {
			fmt.Fprintln(w)
		}
	}
	return nil
}
