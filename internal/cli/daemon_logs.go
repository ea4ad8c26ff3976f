package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"ravi/internal/command"
	"ravi/internal/daemon"
	safe "ravi/internal/term"
)

func addDaemonLogs(t *command.Table) {
	command.Add(t, command.Spec[daemonLogsInput, daemonLogs]{
		Group: "daemon", Name: "logs", Access: command.Read, Reach: command.LocalOnly,
		Summary: "Show what the daemon logged",
		Long: `Shows the last lines of daemon.log in Ravi's home, and with --follow goes on
with those that come, until Ctrl-C. A daemon that a service manager runs logs
there: journalctl --user -u ravi, or journalctl -u ravi.`,
		Examples: []command.Example{{Line: "ravi daemon logs"}, {Line: "ravi daemon logs -f"}},
		Defaults: daemonLogsInput{Lines: 50},
		Handler:  showDaemonLogs,
		Print: func(_ *command.Env, w io.Writer, l daemonLogs) error {
			_, err := io.WriteString(w, safe.SafeText(l.Text))
			return err
		},
	})
}

type daemonLogsInput struct {
	Lines  int  `json:"lines" flag:"lines" short:"n" value:"N" host:"none" usage:"the last N lines; 0 is all"`
	Follow bool `json:"follow" flag:"follow" short:"f" host:"size" usage:"go on with those that come"`
}

type daemonLogs struct {
	File string `json:"file"`
	Text string `json:"text"`
}

func showDaemonLogs(ctx context.Context, env *command.Env, in daemonLogsInput) (daemonLogs, error) {
	var out daemonLogs
	if in.Lines < 0 {
		return out, command.Usage("--lines is below 0", "0 is all")
	}
	if in.Follow && env.JSON {
		return out, command.Usage("--follow cannot be one JSON document", "leave out --json: the log's lines are JSON already")
	}
	home, err := env.Home()
	if err != nil {
		return out, err
	}
	out.File = filepath.Join(home, daemon.LogFile)
	f := follower{path: out.File}
	defer f.close()
	// What is followed is opened first, so that no line falls between.
	text, err := f.more()
	if err != nil {
		return out, err
	}
	// The older files are looked at only for what the newest does not have.
	for n := 1; in.Lines == 0 || bytes.Count(text, []byte("\n")) < in.Lines; n++ {
		older, err := os.ReadFile(filepath.Join(home, daemon.LogName(n)))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return out, err
		}
		text = append(older, text...)
	}
	out.Text = string(lastLines(text, in.Lines))
	if !in.Follow {
		return out, nil
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := io.WriteString(env.Stdout, safe.SafeText(out.Text)); err != nil {
			return daemonLogs{}, err
		}
		select {
		case <-ctx.Done():
			return daemonLogs{}, nil // that is how one stops looking
		case <-tick.C:
		}
		if text, err = f.more(); err != nil {
			return daemonLogs{}, err
		}
		out.Text = string(text)
	}
}

// follower reads a file that grows, and the one that is begun in its place.
type follower struct {
	path string
	file *os.File
	// half is a line that does not end yet.
	half []byte
}

// more is the lines that came since it was asked last.
func (f *follower) more() ([]byte, error) {
	text, err := f.rest()
	if err != nil {
		return nil, err
	}
	now, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return text, nil // there was no daemon yet, or its log is just being moved
	}
	if err != nil {
		return nil, err
	}
	if f.file != nil {
		if was, err := f.file.Stat(); err != nil || os.SameFile(was, now) {
			return text, err
		}
		// It may have been written to between the reading and the moving.
		last, err := f.rest()
		if err != nil {
			return nil, err
		}
		text = append(text, last...)
		f.close()
	}
	if f.file, err = os.Open(f.path); err != nil {
		return nil, err
	}
	first, err := f.rest()
	return append(text, first...), err
}

func (f *follower) rest() ([]byte, error) {
	if f.file == nil {
		return nil, nil
	}
	b, err := io.ReadAll(f.file)
	b = append(f.half, b...)
	end := bytes.LastIndexByte(b, '\n') + 1
	f.half = bytes.Clone(b[end:])
	return b[:end], err
}

func (f *follower) close() {
	if f.file != nil {
		f.file.Close()
		f.file = nil
	}
}
