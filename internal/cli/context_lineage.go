package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/contextkey"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

// mayKnowKey says whether a key may be shown to the caller: to the operator any, to a holder of a key that one and its
// descendants.
func mayKnowKey(env *command.Env, line []store.Key) bool {
	return env.Caller.IsOperator() || slices.ContainsFunc(line, func(k store.Key) bool { return k.ID == own(env).ID })
}

// keyLine finds a key and those that it descends from, up to the caller's own.
func keyLine(ctx context.Context, env *command.Env, typed string) ([]store.Key, error) {
	k, err := keyKind.get(ctx, env, typed)
	if err != nil {
		return nil, err
	}
	line := []store.Key{k}
	for k.ParentID != "" && k.ID != own(env).ID && len(line) <= store.KeyDepth {
		if k, err = keyKind.get(ctx, env, k.ParentID); err != nil {
			return nil, err
		}
		line = append(line, k)
	}
	return line, nil
}

// keyObject is the full id of a key that the caller may know of.
func keyObject(ctx context.Context, env *command.Env, typed string) (string, error) {
	line, err := keyLine(ctx, env, typed)
	if errors.Is(err, store.ErrAmbiguous) && !env.Caller.IsOperator() {
		// Which ones it could be are others' keys as well.
		return typed, keyKind.missing(typed, store.ErrNotFound)
	}
	if err != nil {
		return typed, err
	}
	if !mayKnowKey(env, line) {
		return typed, keyKind.missing(typed, store.ErrNotFound)
	}
	return line[0].ID, nil
}

func contextShowObject(ctx context.Context, env *command.Env, in contextShowInput) (string, error) {
	id, err := keyNamed(env, in.ID)
	if err != nil {
		return "", err
	}
	return keyObject(ctx, env, id)
}

func keyNamed(env *command.Env, typed string) (string, error) {
	if typed == "" {
		typed = own(env).ID
	}
	if typed == "" {
		return "", missingArgument("ID", "see ravi context ls")
	}
	return typed, nil
}

func listKeys(ctx context.Context, env *command.Env, in contextListInput) (paged[store.Key], error) {
	none := paged[store.Key]{Items: []store.Key{}}
	s, err := env.Store(ctx)
	if err != nil {
		return none, err
	}
	see := scopeOf(ctx, env, "context", "ls")
	f := store.KeyFilter{Live: !in.All, IDs: see.ids()}
	if !env.Caller.IsOperator() {
		if f.IDs, err = descendants(ctx, s, own(env).ID); err != nil {
			return none, err
		}
	}
	if f.RunID, err = runKind.filter(ctx, env, in.Run); err != nil {
		return none, err
	}
	return listPage(in.Limit, in.Before, keyKind.id, func(k store.Key) bool { return see.shows(k.ID) },
		func(before string, limit int) ([]store.Key, error) {
			f.Before, f.Limit = before, limit
			return s.ListKeys(ctx, f)
		})
}

// descendants are the ids of a key and of all that descend from it.
func descendants(ctx context.Context, s *store.Store, id string) ([]string, error) {
	ids := []string{id}
	for i := 0; i < len(ids); i++ {
		children, err := s.ListKeys(ctx, store.KeyFilter{ParentID: ids[i]})
		if err != nil {
			return nil, err
		}
		for _, k := range children {
			ids = append(ids, k.ID)
		}
	}
	return ids, nil
}

// keyShown is a key with those before and after it.
type keyShown struct {
	store.Key
	Lineage  []keyBrief `json:"lineage"` // the parent first
	Children []keyBrief `json:"children"`
}

type keyBrief struct {
	ID        string     `json:"id"`
	Label     string     `json:"label,omitempty"`
	ExpiresAt time.Time  `json:"expires_at"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
}

func briefOf(k store.Key) keyBrief { return keyBrief{k.ID, k.Label, k.ExpiresAt, k.RevokedAt} }

func showKey(ctx context.Context, env *command.Env, in contextShowInput) (out keyShown, err error) {
	id, err := keyNamed(env, in.ID)
	if err != nil {
		return out, err
	}
	line, err := keyLine(ctx, env, id)
	if err != nil {
		return out, err
	}
	if !mayKnowKey(env, line) {
		return out, keyKind.missing(id, store.ErrNotFound)
	}
	s, err := env.Store(ctx)
	if err != nil {
		return out, err
	}
	out = keyShown{Key: line[0], Lineage: []keyBrief{}, Children: []keyBrief{}}
	for _, k := range line[1:] {
		out.Lineage = append(out.Lineage, briefOf(k))
	}
	children, err := s.ListKeys(ctx, store.KeyFilter{ParentID: out.ID, Limit: pageMost})
	for _, k := range children {
		out.Children = append(out.Children, briefOf(k))
	}
	return out, err
}

// revokedKeys are the ids of keys that lived until now.
type revokedKeys struct {
	Revoked []string `json:"revoked"`
}

func revokeKeys(ctx context.Context, env *command.Env, in contextRevokeInput) (revokedKeys, error) {
	out := revokedKeys{Revoked: []string{}}
	s, err := env.Store(ctx)
	if err != nil {
		return out, err
	}
	// All are looked up before any is revoked: a mistyped one stops the whole command.
	var ids []string
	for _, typed := range in.IDs {
		id, err := keyObject(ctx, env, typed)
		if may := env.Caller.Check(access.Ask{Access: access.Write, Group: "context", Command: "revoke", Object: id}); may != nil {
			return out, command.Denied(may)
		}
		if err != nil {
			return out, err
		}
		ids = append(ids, id)
	}
	for _, id := range ids {
		revoked, err := contextkey.Keys{Store: s}.Revoke(ctx, env.Caller, id, in.Reason)
		if err != nil {
			return out, err
		}
		out.Revoked = append(out.Revoked, revoked...)
	}
	return out, nil
}

func printIssued(env *command.Env, w io.Writer, k issuedKey) error {
	if !env.Quiet {
		fmt.Fprintf(env.Stderr, "%s, until %s; it may:\n", k.ID, k.ExpiresAt.Local().Format("2006-01-02 15:04:05"))
		for _, c := range k.Capabilities {
			fmt.Fprintln(env.Stderr, " ", c)
		}
		fmt.Fprintln(env.Stderr, "the key, which is not shown again:")
	}
	_, err := fmt.Fprintln(w, k.Key)
	return err
}

func printWhoami(_ *command.Env, w io.Writer, me whoami) error {
	printLine(w, "caller", me.Caller)
	printLine(w, "label", me.Label)
	if a := me.Agent; a != nil {
		printLine(w, "agent", fmt.Sprintf("%s (%s)", a.Name, a.ID))
	}
	if c := me.Session; c != nil {
		printLine(w, "session", fmt.Sprintf("%s (%s)", c.Name, c.ID))
	}
	printLine(w, "task", me.TaskID)
	printLine(w, "run", me.RunID)
	printLine(w, "profile", me.Profile)
	printLine(w, "child of", me.ParentID)
	if me.ExpiresAt != nil {
		printLine(w, "expires", until(*me.ExpiresAt))
	}
	printMany(w, "may:", me.Capabilities)
	return nil
}

// printMany prints values below each other.
func printMany(w io.Writer, name string, values []string) {
	for _, v := range values {
		fmt.Fprintf(w, "%-13s %s\n", name, safe.Safe(v))
		name = ""
	}
}

func until(t time.Time) string {
	if left := time.Until(t); left > 0 {
		return t.Local().Format("2006-01-02 15:04:05") + " (in " + age(left) + ")"
	}
	return moment(t)
}

func keyState(expires time.Time, revoked *time.Time) string {
	switch {
	case revoked != nil:
		return "revoked"
	case !time.Now().Before(expires):
		return "expired"
	}
	return "alive"
}

func printKeys(env *command.Env, w io.Writer, p paged[store.Key]) error {
	if env.Quiet {
		return printIDs(w, p.Items, keyKind.id)
	}
	if len(p.Items) == 0 {
		fmt.Fprintln(w, "no keys; make one: ravi context issue --session SESSION")
		return nil
	}
	rows := make([][]string, len(p.Items))
	for i, k := range p.Items {
		left := ""
		if d := time.Until(k.ExpiresAt); d > 0 {
			left = age(d)
		}
		rows[i] = []string{k.ID, string(k.Kind), keyState(k.ExpiresAt, k.RevokedAt), left, k.Label, keyFor(k)}
	}
	return printRows(env, w, "keys", []safe.Column{{Title: "ID"}, {Title: "KIND"}, {Title: "STATE"}, {Title: "LEFT", Right: true}, {Title: "LABEL", Flex: true},
		{Title: "FOR", Flex: true}}, rows, nextPage("--before", p.Next))
}

// keyFor is the narrowest that a key is for.
func keyFor(k store.Key) string {
	for _, id := range []string{k.RunID, k.TaskID, k.SessionID, k.AgentID} {
		if id != "" {
			return id
		}
	}
	return ""
}

func printKey(env *command.Env, w io.Writer, k keyShown) error {
	printLine(w, "id", k.ID)
	printLine(w, "kind", string(k.Kind))
	printLine(w, "label", k.Label)
	printLine(w, "state", keyState(k.ExpiresAt, k.RevokedAt))
	printLine(w, "reason", k.Reason)
	printLine(w, "agent", k.AgentID)
	printLine(w, "session", k.SessionID)
	printLine(w, "task", k.TaskID)
	printLine(w, "run", k.RunID)
	printLine(w, "profile", k.Profile)
	printLine(w, "made by", k.CreatedBy)
	printLine(w, "created", moment(k.CreatedAt))
	printLine(w, "expires", until(k.ExpiresAt))
	printLine(w, "revoked", momentOf(k.RevokedAt))
	printMany(w, "may:", k.Capabilities)
	for _, l := range []struct {
		name string
		keys []keyBrief
	}{{"descends from", k.Lineage}, {"children:", k.Children}} {
		for _, b := range l.keys {
			fmt.Fprintf(w, "%-13s %s  %s  %s\n", l.name, b.ID, keyState(b.ExpiresAt, b.RevokedAt), safe.Safe(b.Label))
			l.name = ""
		}
	}
	return nil
}

func printRevoked(env *command.Env, w io.Writer, r revokedKeys) error {
	for _, id := range r.Revoked {
		fmt.Fprintln(w, id)
	}
	if len(r.Revoked) == 0 && !env.Quiet {
		fmt.Fprintln(w, "they were revoked before")
	}
	return nil
}
