package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"ravi/internal/adapter"
	"ravi/internal/command"
	"ravi/internal/procid"
	runs "ravi/internal/run"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

// addWatch adds what follows what happens.
func addWatch(t *command.Table) {
	add(t, command.Spec[runsWatchInput, runItem]{
		Group: "runs", Name: "watch", Access: command.Read, Reach: command.LocalOnly,
		Summary: "Follow what happens in a run, until it has ended",
		Long: `Shows the events of a run from their beginning, and those that come, until the
run has ended: its steps, what its agent says and does, and what goes wrong.
With --json each is a line. It ends with the run's exit code.`,
		Examples: []command.Example{{Line: "ravi runs watch run01jf"}, {What: "for a program", Line: "ravi runs watch run01jf --json"}},
		Handler:  watchRun,
		Print:    func(*command.Env, io.Writer, runItem) error { return nil },
		Exit:     exitOfRun,
	})
	t.AddGroup(command.Group{Name: "events", Summary: "Follow what happens"})
	add(t, command.Spec[eventsStreamInput, struct{}]{
		Group: "events", Name: "stream", Access: command.Read, Reach: command.LocalOnly,
		Summary: "Follow what happens: runs, messages, work, keys and more",
		Long: `Shows what happens from now on, a line each, until Ctrl-C; with --after what
came after the event with that number, as far as it is kept (the last 100,000).
No event has what was said, nor any secret.`,
		Examples: []command.Example{{Line: "ravi events stream"}, {What: "of work alone, again from the beginning", Line: "ravi events stream --after 0 --kind work. --json"}},
		Handler:  streamEvents,
		Print:    func(*command.Env, io.Writer, struct{}) error { return nil },
	})
}

type runsWatchInput struct {
	Run string `json:"run" arg:"RUN" host:"none" usage:"the id, or its beginning"`
}

type eventsStreamInput struct {
	After *int64 `json:"after" flag:"after" value:"NUMBER" host:"none" usage:"begin after the event with this number"`
	Kind  string `json:"kind" flag:"kind" value:"KIND" host:"none" usage:"only kinds that begin so, such as run. or work.changed"`
}

func watchRun(ctx context.Context, env *command.Env, in runsWatchInput) (item runItem, err error) {
	r, err := findRun(ctx, env, in.Run)
	if err != nil {
		return item, err
	}
	st, err := env.Store(ctx)
	if err != nil {
		return item, err
	}
	show := newRunEvents(env)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for at := int64(0); ; {
		// Whether it is over is asked first: what it wrote until then is shown.
		if r, err = st.Run(ctx, r.ID); err != nil {
			return item, err
		}
		over := isSettled(r)
		if r.Dir != "" {
			if at, err = eventsFrom(filepath.Join(r.Dir, runs.EventsFile), at, show); err != nil {
				return item, err
			}
		}
		if over || r.Status == store.RunQueued && !procid.Alive(r.Owner) && time.Since(r.CreatedAt) > time.Minute {
			return runItemOf(env, r), nil
		}
		select {
		case <-ctx.Done():
			return item, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// eventsFrom gives the whole lines of a file from an offset on, and the offset behind them.
func eventsFrom(path string, at int64, give func(line []byte) error) (int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return at, nil
	}
	if err != nil {
		return at, err
	}
	defer f.Close()
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return at, err
	}
	in := bufio.NewReader(f)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return at, nil // half a line is not one yet
		}
		if err != nil {
			return at, err
		}
		at += int64(len(line))
		if err := give(line); err != nil {
			return at, err
		}
	}
}

// newRunEvents shows events of a run: as they are, or in lines for people.
func newRunEvents(env *command.Env) func(line []byte) error {
	if env.JSON {
		return func(line []byte) error {
			_, err := env.Stdout.Write(append(safe.SafeJSON(line), '\n'))
			return err
		}
	}
	agent := newAgentView(env)
	return func(line []byte) error {
		var e map[string]json.RawMessage
		var head struct {
			Time  time.Time
			Event string
			Agent adapter.Event
		}
		if json.Unmarshal(line, &e) != nil || json.Unmarshal(line, &head) != nil {
			return nil
		}
		if head.Event == "agent" {
			agent(head.Agent)
			return nil
		}
		if head.Event == "net" {
			return nil // ravi sandbox network shows these
		}
		text := head.Time.Local().Format("15:04:05") + " " + head.Event
		for _, name := range slices.Sorted(maps.Keys(e)) {
			if value := string(e[name]); name != "time" && name != "event" && value != `""` && value != "null" {
				text += " " + name + "=" + safe.Truncate(strings.Trim(value, `"`), 100)
			}
		}
		_, err := fmt.Fprintln(env.Stdout, safe.Safe(text))
		return err
	}
}

func streamEvents(ctx context.Context, env *command.Env, in eventsStreamInput) (none struct{}, err error) {
	st, err := env.Store(ctx)
	if err != nil {
		return none, err
	}
	after := int64(0)
	if in.After != nil {
		after = *in.After
	} else if after, err = st.EventsEnd(ctx); err != nil {
		return none, err
	}
	w, err := st.Watch(ctx)
	if err != nil {
		return none, err
	}
	defer w.Close()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		changed, err := w.Changed(ctx)
		for err == nil && changed {
			var found []store.Event
			if found, err = st.Events(ctx, after, 0); err != nil || len(found) == 0 {
				break
			}
			if first := found[0].Seq; first > after+1 {
				fmt.Fprintf(env.Stderr, "note: %d events before number %d are not kept any more\n", first-after-1, first)
			}
			for _, e := range found {
				after = e.Seq
				if strings.HasPrefix(e.Kind, in.Kind) {
					if err = printEvent(env, e); err != nil {
						return none, err
					}
				}
			}
		}
		if ctx.Err() != nil {
			return none, nil // Ctrl-C is how it ends
		}
		if err != nil {
			return none, err
		}
		select {
		case <-ctx.Done():
			return none, nil
		case <-tick.C:
		}
	}
}

func printEvent(env *command.Env, e store.Event) error {
	if env.JSON {
		return printJSONLine(env.Stdout, e)
	}
	_, err := fmt.Fprintln(env.Stdout, safe.Safe(fmt.Sprintf("%d %s %s %s %s", e.Seq, e.Time.Local().Format("15:04:05"), e.Kind, e.Object, e.Data)))
	return err
}
