package cli

import (
	"context"
	"fmt"
	"time"

	"ravi/internal/access"
	"ravi/internal/command"
	"ravi/internal/contextkey"
	"ravi/internal/store"
)

func addContext(t *command.Table) {
	t.AddGroup(command.Group{Name: "context", Summary: "Give out keys to Ravi, and take them back"})
	add(t, command.Spec[contextIssueInput, issuedKey]{
		Group: "context", Name: "issue", Access: command.Write,
		Summary: "Make a key",
		Long: `Makes a context key and prints it, this once; Ravi keeps its hash only. Whoever
holds it may do what --allow says, until --ttl is over or ravi context revoke.

A capability is read:GROUP[.COMMAND][@ID] or write:…, and * at the end stands
for anything: read:tasks, write:tasks.comment@tsk01jf…, read:*. The agent,
session and task are whom the key is for; commands fall back to them. Without
--allow a key may read its own session, task and memory.

A holder of a key makes children of it: for the same agent, session, task and
run, with a part of what the key itself holds (without --allow: all of it), and
no longer than it lives.

Only the key goes to standard output, all else to standard error.`,
		Examples: []command.Example{
			{Line: "export RAVI_CONTEXT_KEY=$(ravi context issue --session web)"},
			{What: "for whatever passes on messages, for a month", Line: "ravi context issue --label slack --allow write:sessions.send --ttl 720h"},
			{What: "a part of one's own, for a helper", Line: "ravi context issue --allow read:tasks --ttl 10m"},
		},
		Handler: issueKey, Print: printIssued,
	})
	add(t, command.Spec[contextWhoamiInput, whoami]{
		Group: "context", Name: "whoami", Access: command.Read, Self: true,
		Summary: "Say who calls, and what that one may do",
		Long: `Shows what the caller is: the operator, or the holder of a key with these
capabilities.`,
		Examples: []command.Example{{Line: "ravi context whoami"}},
		Handler:  sayWhoami, Print: printWhoami,
	})
	add(t, command.Spec[contextListInput, paged[store.Key]]{
		Group: "context", Name: "ls", Aliases: []string{"list"}, Access: command.Read, Scoped: true,
		Summary: "List keys",
		Long: `Lists the keys that live, the newest first; with --all those that were revoked
or have expired, too. The keys themselves are never shown.

A holder of a key sees that key and its descendants.`,
		Examples: []command.Example{{Line: "ravi context ls"}, {What: "all that one run ever had", Line: "ravi context ls --run run01jf --all"}},
		Defaults: contextListInput{Limit: pageSize},
		Handler:  listKeys, Print: printKeys,
	})
	add(t, command.Spec[contextShowInput, keyShown]{
		Group: "context", Name: "show", Aliases: []string{"inspect"}, Access: command.Read, Object: contextShowObject,
		Summary: "Show what is recorded about a key, and its lineage",
		Long: `Shows what a key may do and for whom it is, the keys that it descends from, and
its children. The key itself is never shown.

A holder of a key may look at that key, which is meant when no ID is given, and
at its descendants.`,
		Examples: []command.Example{{Line: "ravi context show ctx_8Jd"}},
		Handler:  showKey, Print: printKey,
	})
	add(t, command.Spec[contextRevokeInput, revokedKeys]{
		Group: "context", Name: "revoke", Aliases: []string{"rm"}, Access: command.Write, Scoped: true,
		Summary: "End keys, and all that descend from them",
		Long: `Revokes keys with all their descendants, at once: open streams end, too. To
revoke one that is revoked is no error.

A holder of a key can revoke that key and its descendants.`,
		Examples: []command.Example{{Line: `ravi context revoke ctx_8Jd --reason "it was in a log"`}},
		Handler:  revokeKeys, Print: printRevoked,
	})
}

type contextIssueInput struct {
	Agent   string        `json:"agent" flag:"agent" short:"a" value:"AGENT" host:"none" usage:"whom it is for: a name, an id or its beginning"`
	Session string        `json:"session" flag:"session" short:"s" value:"SESSION" host:"none" usage:"the conversation that it is for"`
	Task    string        `json:"task" flag:"task" short:"t" value:"TASK" host:"none" usage:"the task that it is for"`
	Label   string        `json:"label" flag:"label" short:"l" value:"TEXT" host:"none" usage:"what it is, for people"`
	TTL     time.Duration `json:"ttl" flag:"ttl" value:"DURATION" host:"none" usage:"how long it lives, such as 30m (default 1h)"`
	Allow   []string      `json:"allow" flag:"allow" value:"CAPABILITY" host:"none" usage:"what it may do; may be repeated"`
	Profile string        `json:"profile" flag:"profile" value:"NAME" host:"none" usage:"what bounds its sandboxes (default: the agent's)"`
}

type contextWhoamiInput struct{}

type contextListInput struct {
	All    bool   `json:"all" flag:"all" host:"none" usage:"those that are over, too"`
	Run    string `json:"run" flag:"run" value:"RUN" host:"none" usage:"of this run"`
	Limit  int    `json:"limit" flag:"limit" short:"n" value:"N" host:"none" usage:"at most N of them, up to 500"`
	Before string `json:"before" flag:"before" value:"ID" host:"none" usage:"the page that comes after this one"`
}

type contextShowInput struct {
	ID string `json:"id" arg:"ID" optional:"true" host:"none" usage:"of the key, or its beginning"`
}

type contextRevokeInput struct {
	IDs    []string `json:"ids" arg:"ID" host:"none" usage:"of the keys, or their beginnings"`
	Reason string   `json:"reason" flag:"reason" value:"TEXT" host:"none" usage:"why"`
}

// issuedKey is the one answer that holds a key.
type issuedKey struct {
	ID           string    `json:"id"`
	Key          string    `json:"key"`
	ExpiresAt    time.Time `json:"expires_at"`
	Capabilities []string  `json:"capabilities"`
}

// String leaves the key out, should one ever be written down by mistake.
func (k issuedKey) String() string { return k.ID }

// GoString does so, too.
func (k issuedKey) GoString() string { return k.ID }

func issueKey(ctx context.Context, env *command.Env, in contextIssueInput) (out issuedKey, err error) {
	held, err := access.ParseCapabilities(in.Allow)
	if err != nil {
		return out, command.Usage(err.Error(), "see ravi context issue --help")
	}
	if in.TTL < 0 || in.TTL > contextkey.MaxTTL {
		return out, command.Usage(fmt.Sprintf("--ttl %v: a key lives longer than nothing, and no longer than %v", in.TTL, contextkey.MaxTTL), "leave it out for an hour")
	}
	r := contextkey.Request{Label: in.Label, Capabilities: held, Profile: in.Profile, TTL: in.TTL}
	profile, err := keySubject(ctx, env, in, &r)
	if err != nil {
		return out, err
	}
	if env.Caller.IsOperator() {
		if r.Profile == "" {
			r.Profile = profile
		}
		if err := checkProfile(ctx, env, r.Profile); err != nil {
			return out, err
		}
	}
	if len(held) == 0 {
		if r.Capabilities = ownReads(r); !env.Caller.IsOperator() {
			r.Capabilities = own(env).Capabilities
		}
		if len(r.Capabilities) == 0 {
			return out, command.Usage("the key could do nothing", "say what with --allow, or whom it is for with --agent, --session or --task")
		}
	}
	s, err := env.Store(ctx)
	if err != nil {
		return out, err
	}
	token, key, err := contextkey.Keys{Store: s}.Issue(ctx, env.Caller, r)
	if err != nil {
		return out, err
	}
	return issuedKey{ID: key.ID, Key: token, ExpiresAt: key.ExpiresAt, Capabilities: key.Capabilities}, nil
}

// keySubject finds whom a key is for: who has a session has its agent, who has a task has its session. It gives the
// agent's profile.
func keySubject(ctx context.Context, env *command.Env, in contextIssueInput, r *contextkey.Request) (profile string, err error) {
	if !env.Caller.IsOperator() {
		return "", childSubject(ctx, env, in, r)
	}
	if in.Task != "" {
		t, err := taskKind.get(ctx, env, in.Task)
		if err != nil {
			return "", err
		}
		r.TaskID, r.SessionID, r.AgentID = t.ID, t.SessionID, t.AgentID
	}
	if in.Session != "" {
		c, err := sesKind.get(ctx, env, in.Session)
		if err != nil {
			return "", err
		}
		if r.SessionID != "" && r.SessionID != c.ID {
			return "", command.Usage("the task belongs to another session", "leave out --session: the task says which it is")
		}
		r.SessionID, r.AgentID = c.ID, c.AgentID
	}
	if in.Agent != "" {
		a, err := agentKind.get(ctx, env, in.Agent)
		if err != nil {
			return "", err
		}
		if r.AgentID != "" && r.AgentID != a.ID {
			return "", command.Usage("the session, or the task, is another agent's", "leave out --agent: the session says whose it is")
		}
		r.AgentID = a.ID
	}
	if r.AgentID == "" {
		return access.DefaultName, nil
	}
	a, err := agentKind.get(ctx, env, r.AgentID)
	return a.Profile, err
}

// childSubject is whom a child is for: what is named has to be the caller's own, or the parent is for nobody in
// particular and may write all of what is named.
func childSubject(ctx context.Context, env *command.Env, in contextIssueInput, r *contextkey.Request) error {
	mine := own(env)
	if in.Agent != "" {
		a, err := agentKind.name(ctx, env, in.Agent, mine.AgentID)
		if err != nil {
			return err
		}
		r.AgentID = a.ID
	}
	if in.Session != "" {
		c, err := sesKind.name(ctx, env, in.Session, mine.SessionID)
		if err != nil {
			return err
		}
		r.SessionID = c.ID
	}
	if in.Task != "" {
		t, err := taskKind.name(ctx, env, in.Task, mine.TaskID)
		if err != nil {
			return err
		}
		r.TaskID = t.ID
	}
	return nil
}

// ownReads is what a key may do for which nothing was said: read what it is for.
func ownReads(r contextkey.Request) access.Capabilities {
	var out access.Capabilities
	for _, c := range []struct{ group, object string }{{"sessions", r.SessionID}, {"tasks", r.TaskID}, {"memory", r.AgentID}, {"agents", r.AgentID}} {
		if c.object != "" {
			out = append(out, access.Capability{Access: access.Read, Group: c.group, Object: c.object})
		}
	}
	return out
}

// whoami is who calls.
type whoami struct {
	Caller       string     `json:"caller"` // operator, or the id of a key
	Label        string     `json:"label,omitempty"`
	Agent        *named     `json:"agent,omitempty"`
	Session      *named     `json:"session,omitempty"`
	TaskID       string     `json:"task_id,omitempty"`
	RunID        string     `json:"run_id,omitempty"`
	Capabilities []string   `json:"capabilities"`
	Profile      string     `json:"profile,omitempty"`
	ParentID     string     `json:"parent_id,omitempty"`
	ExpiresAt    *time.Time `json:"expires_at,omitempty"`
}

// named is something with its name.
type named struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

func sayWhoami(ctx context.Context, env *command.Env, _ contextWhoamiInput) (whoami, error) {
	if env.Caller.IsOperator() {
		return whoami{Caller: access.Operator, Capabilities: []string{"read:*", "write:*"}}, nil
	}
	mine := own(env)
	out := whoami{Caller: mine.ID, TaskID: mine.TaskID, RunID: mine.RunID, Capabilities: mine.Capabilities.Strings(), Profile: mine.Profile}
	key, err := keyKind.get(ctx, env, mine.ID)
	if err != nil {
		return out, err
	}
	out.Label, out.ParentID, out.ExpiresAt = key.Label, key.ParentID, &key.ExpiresAt
	if mine.AgentID != "" {
		a, err := agentKind.get(ctx, env, mine.AgentID)
		if err != nil {
			return out, err
		}
		out.Agent = &named{a.ID, a.Name}
	}
	if mine.SessionID != "" {
		c, err := sesKind.get(ctx, env, mine.SessionID)
		if err != nil {
			return out, err
		}
		out.Session = &named{c.ID, c.Name}
	}
	return out, nil
}
