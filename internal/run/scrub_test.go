package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"ravi/internal/store"
	"ravi/sandbox"
)

// fill puts text into every string that v can hold.
func fill(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), text)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), text)
		fill(v.Index(1), text)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, text)
		fill(value, text)
		v.SetMapIndex(key, value)
	}
}

// No string of what is written down is forgotten, also not one that is added later.
func TestScrubReachesEveryString(t *testing.T) {
	for _, v := range []any{&Task{}, &store.Run{}, &store.Sandbox{}, &sandbox.NetEvent{}, &map[string]any{}} {
		if m, ok := v.(*map[string]any); ok {
			*m = map[string]any{value: []any{value, map[string]any{"k": []string{value}}, nil, 1, &Task{Error: value}}}
		} else {
			fill(reflect.ValueOf(v).Elem(), "x "+value+" y")
		}
		before, err := json.Marshal(v)
		must(t, err)
		after, err := json.Marshal(scrub(redactor(), v))
		must(t, err)
		text := string(after)
		// A type of its own is a word of ours, which no guest sets.
		for _, word := range []string{`"status":`, `"desired":`, `"seen":`, `"kind":`} {
			text = strings.Replace(text, word+`"x `+value+` y"`, "", 1)
		}
		if strings.Contains(text, value) {
			t.Errorf("%T: %s", v, text)
		}
		if n := strings.Count(string(before), value) - strings.Count(string(after), value); n < 3 || n != strings.Count(string(after), "[secret TOKEN]") {
			t.Errorf("%T: %d were taken out: %s", v, n, after)
		}
		if again, err := json.Marshal(v); err != nil || string(again) != string(before) {
			t.Errorf("%T: the original was changed: %s", v, again)
		}
		if same := scrub(nil, v); same != v {
			t.Errorf("%T: without secrets it was copied", v)
		}
	}
}

func TestScrubError(t *testing.T) {
	plain := &failure{"step", errors.New("plain")}
	if err := scrubError(redactor(), plain); err != error(plain) {
		t.Errorf("without a secret: %v", err)
	}
	err := scrubError(redactor(), &failure{"step", fmt.Errorf("saying %s: %w", value, context.Canceled)})
	var f *failure
	if err.Error() != "saying [secret TOKEN]: context canceled" || !errors.Is(err, context.Canceled) || errors.As(err, &f) || errors.Unwrap(err) != nil {
		t.Errorf("got %q", err)
	}
	if scrubError(redactor(), nil) != nil {
		t.Error("no error became one")
	}
}

// A run of which everything that can holds a secret shows it nowhere.
func TestRunShowsNoSecret(t *testing.T) {
	// The value comes in pieces, and in another form.
	o := onHost(t, `printf 'out %.12s' "$1"; printf '%s\n' "${1#????????????}"; printf %s "$1" | od -An -tx1 | tr -d ' \n' >&2; echo "$0" `+"another-value-of-mine"+`; exit 3`)
	o.Command = append(o.Command, "zero", value)
	o.Command[0] = filepath.Join(t.TempDir(), "another-value-of-mine")
	sh, err := exec.LookPath("sh")
	must(t, err)
	must(t, os.Symlink(sh, o.Command[0]))
	dir := filepath.Join(t.TempDir(), "another-value-of-mine")
	o.Repo = newRepo(t, dir)
	o.Task = "use " + value + "\n"
	o.Out = filepath.Join(t.TempDir(), "out")
	var shown strings.Builder
	o.Stdout, o.Stderr = &shown, &shown
	o.Note = func(n string) { fmt.Fprintln(&shown, "note", n) }
	o.Step = func(name string) func(error) {
		fmt.Fprintln(&shown, "step", name)
		return func(err error) { fmt.Fprintln(&shown, "step ended", err) }
	}
	task, err := Run(t.Context(), o)
	if err != nil || task.Status != store.RunFailed || *task.ExitCode != 3 {
		t.Fatalf("%+v, %v", task, err)
	}
	told, err := json.Marshal(task)
	must(t, err)
	fmt.Fprintln(&shown, string(told))
	for _, v := range []string{value, "another-value-of-mine", fmt.Sprintf("%x", value)} {
		if strings.Contains(shown.String(), v) {
			t.Errorf("%s is shown:\n%s", v, &shown)
		}
		for _, place := range []string{filepath.Join(o.Home, "runs"), o.Out} {
			if list := holders(t, place, v); len(list) > 0 {
				t.Errorf("%s is in %q", v, list)
			}
		}
		for _, name := range []string{store.File, store.File + "-wal"} {
			if b, err := os.ReadFile(filepath.Join(o.Home, name)); err == nil && strings.Contains(string(b), v) {
				t.Errorf("%s is in %s", v, name)
			}
		}
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(o.Home, "runs", task.ID, name))
		must(t, err)
		return string(b)
	}
	if got := read("logs/stdout.log"); got != "out [secret TOKEN]\nzero [secret OTHER]\n" {
		t.Errorf("stdout: %q", got)
	}
	if got := read("logs/stderr.log"); got != "[secret TOKEN]" {
		t.Errorf("stderr: %q", got)
	}
	if got := read(TaskTextFile); got != "use [secret TOKEN]\n" {
		t.Errorf("the task: %q", got)
	}
	for _, want := range []string{"[secret OTHER]\nstep ended", "note the task held the value of a secret; it says [secret TOKEN] instead"} {
		if !strings.Contains(shown.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, &shown)
		}
	}
	// What the command wrote is counted, not what was left of it.
	if want := int64(len("out "+value+"\nzero another-value-of-mine\n") + 2*len(value)); task.Output.Bytes != want || task.Output.Truncated {
		t.Errorf("output: %+v, want %d bytes", task.Output, want)
	}
	if r, err := o.Store.Run(t.Context(), task.ID); err != nil || r.Command[4] != "[secret TOKEN]" || r.Task != "use [secret TOKEN]\n" || !strings.HasSuffix(r.Repo, "[secret OTHER]") {
		t.Errorf("the record: %+v, %v", r, err)
	}
	if o.Command[4] != value {
		t.Error("the caller's own command was changed")
	}
}

// What Ravi could not do is told without the value, and the command still got the real one.
func TestErrorsShowNoSecret(t *testing.T) {
	o := onHost(t, "true")
	o.Ref = value
	var ended []error
	o.Step = func(string) func(error) { return func(err error) { ended = append(ended, err) } }
	task, err := Run(t.Context(), o)
	if err == nil || task.Status != store.RunError || task.Reason != "export" || !strings.Contains(task.Error, "[secret TOKEN]") {
		t.Fatalf("%+v, %v", task, err)
	}
	for _, e := range append(ended, err) {
		if e != nil && strings.Contains(e.Error(), value) {
			t.Errorf("an error tells it: %v", e)
		}
	}
	if list := holders(t, filepath.Join(o.Home, "runs"), value); len(list) > 0 {
		t.Errorf("it is in %q", list)
	}
}
