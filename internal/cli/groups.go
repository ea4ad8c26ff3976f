package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/contextkey"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

// What the groups of commands on records (agents, sessions, memory, tasks, runs, keys, profiles) have in common.

// How many a list gives at once.
const (
	pageSize = 50
	pageMost = 500
)

// paged is a part of a list.
type paged[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next"` // what to ask for the next page with; empty: there is none
}

// add declares a command of these groups.
func add[In, Out any](t *command.Table, s command.Spec[In, Out]) {
	handler := s.Handler
	s.Handler = func(ctx context.Context, env *command.Env, in In) (Out, error) {
		out, err := handler(ctx, env, in)
		return out, refused(err)
	}
	command.Add(t, s)
}

// refused tells what a key did not allow.
func refused(err error) error {
	switch {
	case err == nil || errors.As(err, new(*command.Error)):
		return err
	case errors.Is(err, access.ErrDenied):
		return command.Denied(err)
	case errors.Is(err, contextkey.ErrExceeds):
		return &command.Error{Code: command.CodeDenied, Message: err.Error(), Hint: "ravi context whoami shows what this key holds",
			Status: http.StatusForbidden, Exit: command.ExitFailed, Err: err}
	}
	return err
}

// kind is a kind of record that commands are about.
type kind[T any] struct {
	what  string // for people
	list  string // the command that lists them
	group string
	find  func(*store.Store, context.Context, string) (T, error) // by id, by its beginning, by name
	id    func(T) string
}

var (
	agentKind = kind[store.Agent]{"agent", "ravi agents ls", "agents", (*store.Store).Agent, func(a store.Agent) string { return a.ID }}
	sesKind   = kind[store.Session]{"session", "ravi sessions ls", "sessions", (*store.Store).Session, func(c store.Session) string { return c.ID }}
	taskKind  = kind[store.Task]{"task", "ravi tasks ls", "tasks", (*store.Store).Task, func(t store.Task) string { return t.ID }}
	runKind   = kind[store.Run]{"run", "ravi runs ls", "runs", (*store.Store).Run, func(r store.Run) string { return r.ID }}
	keyKind   = kind[store.Key]{"key", "ravi context ls", "context", (*store.Store).KeyByID, func(k store.Key) string { return k.ID }}
)

// seen is what was found for what a caller typed.
type seen[T any] struct {
	typed string
	item  T
}

// get finds a record by what was typed. What the access check has just found is not looked up again, once.
func (k kind[T]) get(ctx context.Context, env *command.Env, typed string) (T, error) {
	if had, ok := env.Found.(seen[T]); ok && had.typed == typed {
		env.Found = nil
		return had.item, nil
	}
	s, err := env.Store(ctx)
	if err != nil {
		var none T
		return none, err
	}
	item, err := k.find(s, ctx, typed)
	if errors.Is(err, store.ErrNotFound) {
		err = k.missing(typed, err)
	}
	return item, err
}

func (k kind[T]) missing(typed string, err error) error {
	return &command.Error{Code: command.CodeNotFound, Message: fmt.Sprintf("there is no %s %.100q", k.what, typed), Hint: "see " + k.list,
		Status: http.StatusNotFound, Exit: command.ExitFailed, Err: err}
}

// object is the full id of what was typed, for the access check of a command of a group. For who may know nothing of
// the object it is as if it were not there: no name and no beginning of an id leads such a caller to an id.
func (k kind[T]) object(ctx context.Context, env *command.Env, group, typed string) (string, error) {
	item, err := k.get(ctx, env, typed)
	if err != nil {
		return typed, err
	}
	if id := k.id(item); id == typed || knows(env, group, id) {
		env.Found = seen[T]{typed, item}
		return id, nil
	}
	return typed, k.missing(typed, store.ErrNotFound)
}

// filter is the full id of what a list is bound to; nothing for nothing.
func (k kind[T]) filter(ctx context.Context, env *command.Env, typed string) (string, error) {
	if typed == "" {
		return "", nil
	}
	return k.object(ctx, env, k.group, typed)
}

// name finds what a caller names in something new. A holder of a key names what its key is for, own; another one only
// with a capability to write all of the other's.
func (k kind[T]) name(ctx context.Context, env *command.Env, typed, own string) (T, error) {
	item, err := k.get(ctx, env, typed)
	if env.Caller.IsOperator() || err == nil && own != "" && k.id(item) == own {
		return item, err
	}
	object := typed
	if err == nil && knows(env, k.group, k.id(item)) {
		object = k.id(item)
	}
	if may := env.Caller.Check(access.Ask{Access: access.Write, Group: k.group, Object: object}); may != nil {
		var none T
		return none, command.Denied(may)
	}
	return item, err
}

// knows says whether a caller may know that an object is there: its own, and those that it holds anything of a group for.
func knows(env *command.Env, group, id string) bool {
	key := env.Caller.Key
	if env.Caller.IsOperator() || key == nil {
		return env.Caller.IsOperator()
	}
	return slices.Contains([]string{key.ID, key.AgentID, key.SessionID, key.TaskID, key.RunID}, id) ||
		slices.ContainsFunc(key.Capabilities, func(c access.Capability) bool {
			return (c.Group == "" || c.Group == group) && (c.Object == "" || access.Matches([]string{c.Object}, id))
		})
}

// own is what the caller's key is for; the zero Key for the operator.
func own(env *command.Env) access.Key {
	if env.Caller.Key == nil {
		return access.Key{}
	}
	return *env.Caller.Key
}

// looksLikeID says whether a word could be an id of a kind, or its beginning.
func looksLikeID(prefix, word string) bool {
	rest, ok := strings.CutPrefix(word, prefix)
	return ok && len(rest) <= 26 && strings.Trim(rest, "0123456789abcdefghijklmnopqrstuvwxyz") == ""
}

func missingArgument(name, hint string) error { return command.Usage(name+" is missing", hint) }

// scope is what a list may show.
type scope struct {
	all      bool
	patterns []string
	// made says whether what somebody made is the caller's own; nil: nothing is shown for that alone.
	made func(by string) bool
}

func scopeOf(ctx context.Context, env *command.Env, group, name string) scope {
	all, patterns := env.Objects(access.Read, group, name)
	s := scope{all: all, patterns: patterns}
	if slices.Contains(patterns, access.Own) {
		known := map[string]bool{}
		s.made = func(by string) bool {
			if _, asked := known[by]; !asked {
				made, err := env.Made(ctx, by)
				known[by] = made && err == nil // what cannot be told is not shown
			}
			return known[by]
		}
	}
	return s
}

func (s scope) shows(id string) bool { return s.all || access.Matches(s.patterns, id) }

// showsMade is shows for what somebody made.
func (s scope) showsMade(id, by string) bool { return s.shows(id) || s.made != nil && s.made(by) }

// ids are the only ones to look for; nil when they are not known one by one.
func (s scope) ids() []string {
	if s.all || s.made != nil || slices.ContainsFunc(s.patterns, func(p string) bool { return strings.HasSuffix(p, "*") }) {
		return nil
	}
	return append([]string{}, s.patterns...)
}

func checkLimit(limit int) error {
	if limit < 1 || limit > pageMost {
		return command.Usage(fmt.Sprintf("--limit is %d", limit), fmt.Sprintf("it is 1 to %d", pageMost))
	}
	return nil
}

// listPage reads a page of a list that fetch gives, the newest first, leaving out what is not to be kept.
func listPage[T any](limit int, before string, id func(T) string, keep func(T) bool, fetch func(before string, limit int) ([]T, error)) (paged[T], error) {
	out := paged[T]{Items: []T{}}
	if err := checkLimit(limit); err != nil {
		return out, err
	}
	for size := limit + 1; ; size = pageMost { // where little is kept, much is looked at
		found, err := fetch(before, size)
		if err != nil {
			return out, err
		}
		for _, item := range found {
			if !keep(item) {
				continue
			}
			if len(out.Items) == limit {
				out.Next = id(out.Items[limit-1])
				return out, nil
			}
			out.Items = append(out.Items, item)
		}
		if len(found) < size {
			return out, nil
		}
		before = id(found[len(found)-1])
	}
}

// pageAfter is the page of a list, in the order of key, that begins after one.
func pageAfter[T any](all []T, limit int, after string, key func(T) string) (paged[T], error) {
	if err := checkLimit(limit); err != nil {
		return paged[T]{Items: []T{}}, err
	}
	rest := slices.DeleteFunc(all, func(item T) bool { return after != "" && key(item) <= after })
	if len(rest) <= limit {
		return paged[T]{Items: append([]T{}, rest...)}, nil
	}
	return paged[T]{Items: rest[:limit], Next: key(rest[limit-1])}, nil
}

// author is whose words a caller's are.
func author(ctx context.Context, env *command.Env) (string, error) {
	key := own(env)
	if env.Caller.IsOperator() {
		return access.Operator, nil
	}
	name := env.Caller.Name()
	if key.AgentID != "" {
		a, err := agentKind.get(ctx, env, key.AgentID)
		if err != nil {
			return "", err
		}
		name = a.Name
	}
	if key.RunID != "" {
		name += " (" + key.RunID + ")"
	}
	return name, nil
}

// readText reads a text from a file of the host, or from standard input for -.
func readText(env *command.Env, path string, most int64) (string, error) {
	in := env.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", command.Usage("cannot read the text: "+err.Error(), "")
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, most+1))
	if err != nil {
		return "", command.Usage("cannot read the text: "+err.Error(), "")
	}
	if int64(len(b)) > most {
		return "", fmt.Errorf("%s is %w: it has more than %d bytes", path, store.ErrTooLarge, most)
	}
	return string(b), nil
}

// printIDs prints ids alone, for scripts.
func printIDs[T any](w io.Writer, items []T, id func(T) string) error {
	for _, item := range items {
		fmt.Fprintln(w, safe.Safe(id(item)))
	}
	return nil
}

// printRows prints a table, and how to get the next page. Others wrote what stands in it, so agents get it fenced.
func printRows(env *command.Env, w io.Writer, label string, columns []safe.Column, rows [][]string, next string) error {
	if env.ForAgent {
		var b strings.Builder
		if err := safe.Table(&b, widthOf(w), columns, rows); err != nil {
			return err
		}
		if err := safe.Fence(w, label, b.String()); err != nil {
			return err
		}
	} else if err := safe.Table(w, widthOf(w), columns, rows); err != nil {
		return err
	}
	if next != "" {
		fmt.Fprintf(w, "there is more: add %s\n", safe.Safe(next))
	}
	return nil
}

// printSaid prints what somebody wrote: indented for people, so that no line of it looks like one of Ravi's, and fenced
// for agents.
func printSaid(env *command.Env, w io.Writer, label, text string) error {
	if env.ForAgent {
		return safe.Fence(w, label, text)
	}
	for line := range strings.Lines(safe.SafeText(text)) {
		fmt.Fprintln(w, strings.TrimRight("  "+line, "\n "))
	}
	return nil
}

// printRaw prints a text as it is, but for what a terminal would obey, and fenced for agents.
func printRaw(env *command.Env, w io.Writer, label, text string) error {
	switch {
	case env.ForAgent:
		return safe.Fence(w, label, text)
	case env.StdoutTerminal:
		text = safe.SafeText(text)
	}
	_, err := io.WriteString(w, text)
	return err
}

// printLine prints one value of a record, if there is one.
func printLine(w io.Writer, name, value string) {
	if value != "" {
		fmt.Fprintf(w, "%-13s %s\n", name+":", safe.Safe(value))
	}
}

func moment(t time.Time) string {
	if left := time.Until(t); left > time.Second {
		return t.Local().Format("2006-01-02 15:04:05") + " (in " + age(left) + ")"
	}
	return t.Local().Format("2006-01-02 15:04:05") + " (" + age(time.Since(t)) + " ago)"
}

func momentOf(t *time.Time) string {
	if t == nil {
		return ""
	}
	return moment(*t)
}
