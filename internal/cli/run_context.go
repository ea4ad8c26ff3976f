package cli

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"ravi/internal/access"
	"ravi/internal/audit"
	"ravi/internal/command"
	"ravi/internal/contextkey"
	"ravi/internal/gateway"
	"ravi/internal/guard"
	runs "ravi/internal/run"
	"ravi/internal/store"
)

// gatewayName is what runs call the gateway.
const gatewayName = "gateway.ravi.internal"

// connectable are the commands that --connect write=GROUP allows a run, on its own objects only.
var connectable = map[string][]string{
	"tasks":    {"comment", "report", "start", "block", "done", "fail"},
	"memory":   {"write", "rm"},
	"sessions": {"reply"},
	"runs":     {"create", "cancel"},
	"context":  {"issue", "revoke"},
}

// runContext finds whom a run is for, and what it may know and say.
func runContext(ctx context.Context, env *command.Env, in runInput, o *runs.Options) error {
	if err := runSubject(ctx, env, in, o); err != nil {
		return err
	}
	switch in.Context {
	case "snapshot":
		o.Snapshot = true
	case "":
		o.Snapshot = o.AgentID != "" || o.SessionID != "" || o.TaskID != ""
	case "none":
	default:
		return command.Usage(fmt.Sprintf("--context %s: it is none or snapshot", in.Context), "")
	}
	if err := maySee(env, *o); err != nil {
		return err
	}
	connect, err := parseConnect(in.Connect)
	if err != nil || !connect.on {
		return err
	}
	if err := mayConnect(env, connect, *o); err != nil {
		return err
	}
	if o.TaskID == "" && o.Task != "" {
		// What a run is to report on has to be there.
		title, _, _ := strings.Cut(strings.TrimSpace(o.Task), "\n")
		const longest = 200
		if len(title) > longest {
			title = strings.ToValidUTF8(title[:longest], "") + "…"
		}
		t, err := o.Store.InsertTask(ctx, store.Task{
			AgentID: o.AgentID, SessionID: o.SessionID, Title: cmp.Or(title, "a task"), Body: o.Task, Author: env.Caller.Name(), KeyID: keyID(env.Caller),
		})
		if err != nil {
			return err
		}
		o.TaskID = t.ID
	}
	o.Connect = &runs.Connect{
		By:           env.Caller,
		Capabilities: func(runID string) (access.Capabilities, error) { return connect.capabilities(*o, runID) },
		Serve: func(runID string) (func(context.Context, net.Conn), func(context.Context) error) {
			return serveRun(env, *o, runID)
		},
	}
	return nil
}

// maySee says whether a caller could read what the run's context shows, which is more than was named: a task brings its
// session and its agent with it. The run's output would tell.
func maySee(env *command.Env, o runs.Options) error {
	if env.Caller.IsOperator() || !o.Snapshot {
		return nil
	}
	for _, part := range []access.Ask{
		{Group: "sessions", Command: "transcript", Object: o.SessionID}, {Group: "tasks", Command: "show", Object: o.TaskID},
		{Group: "memory", Command: "show", Object: o.AgentID},
	} {
		if part.Object == "" {
			continue
		}
		part.Access = access.Read
		if err := env.Caller.Check(part); err != nil {
			told := *command.AsError(command.Denied(err))
			told.Hint = "have the run go without it: --context none"
			return &told
		}
	}
	return nil
}

// mayConnect says whether a caller could give a run the key that it asks for, before anything is recorded. What is not
// there yet is nobody's, so only capabilities for all of its kind cover it.
func mayConnect(env *command.Env, c connect, o runs.Options) error {
	if env.Caller.IsOperator() {
		return nil
	}
	if o.TaskID == "" && o.Task != "" {
		if err := env.Caller.Check(access.Ask{Access: access.Write, Group: "tasks", Command: "create"}); err != nil {
			return command.Denied(err)
		}
		o.TaskID = "new-task"
	}
	wanted, err := c.capabilities(o, "new-run")
	if err != nil {
		return err
	}
	if ok, more := env.Caller.Key.Capabilities.CoverAll(wanted); !ok {
		return command.Denied(&access.Denied{Caller: env.Caller.Name(), Missing: more.String() + ", to give it to the run"})
	}
	return nil
}

func keyID(c access.Caller) string {
	if c.Key == nil {
		return ""
	}
	return c.Key.ID
}

// runSubject finds the agent, the session and the task of a run.
func runSubject(ctx context.Context, env *command.Env, in runInput, o *runs.Options) error {
	o.CreatedBy = env.Caller.Name()
	if in.TaskID != "" {
		t, err := o.Store.Task(ctx, in.TaskID)
		if err != nil {
			return notFoundHint(err, "see ravi tasks ls")
		}
		o.TaskID, o.AgentID, o.SessionID = t.ID, t.AgentID, t.SessionID
		if o.Task == "" {
			o.Task = strings.TrimSpace(t.Title + "\n\n" + t.Body)
		}
	}
	if in.Session != "" {
		s, err := o.Store.Session(ctx, in.Session)
		if err != nil {
			return notFoundHint(err, "see ravi sessions ls")
		}
		if o.SessionID != "" && o.SessionID != s.ID {
			return command.Usage(fmt.Sprintf("the task %s belongs to another session than %s", o.TaskID, in.Session), "leave --session out: the task knows its own")
		}
		o.SessionID = s.ID
		if o.AgentID != "" && o.AgentID != s.AgentID {
			return command.Usage(fmt.Sprintf("the task %s is another agent's than the session %s", o.TaskID, in.Session), "")
		}
		o.AgentID = s.AgentID
	} else if o.SessionID != "" && o.AgentID == "" {
		s, err := o.Store.Session(ctx, o.SessionID)
		if err != nil {
			return err
		}
		o.AgentID = s.AgentID
	}
	if in.Agent != "" {
		a, err := o.Store.Agent(ctx, in.Agent)
		if err != nil {
			return notFoundHint(err, meantProgram(in.Agent, "see ravi agents ls"))
		}
		if o.AgentID != "" && o.AgentID != a.ID {
			return command.Usage(fmt.Sprintf("--agent %s: the session or task is another agent's", in.Agent), "leave --agent out")
		}
		o.AgentID = a.ID
	}
	return nil
}

func notFoundHint(err error, hint string) error {
	told := command.AsError(err)
	if told.Code == command.CodeNotFound && told.Hint == "" {
		told.Hint = hint
	}
	return told
}

// connect is the value of --connect.
type connect struct {
	on     bool
	groups []string // that may write
}

func parseConnect(text string) (c connect, err error) {
	mode, groups, list := strings.Cut(text, "=")
	switch {
	case text == "" || text == "none":
		return c, nil
	case text == "read":
		return connect{on: true}, nil
	case mode != "write" || !list || groups == "":
		return c, command.Usage(fmt.Sprintf("--connect %s: it is none, read or write=GROUP[,GROUP]", text), "such as: --connect write=tasks")
	}
	for g := range strings.SplitSeq(groups, ",") {
		if _, known := connectable[g]; !known {
			return c, command.Usage(fmt.Sprintf("--connect %s: %q is no group that a run can write to", text, g), "tasks, memory, sessions, runs and context are")
		}
		c.groups = append(c.groups, g)
	}
	return connect{on: true, groups: c.groups}, nil
}

// capabilities are what the key of a run holds: of what is its own to read all, and to write what it was given.
func (c connect) capabilities(o runs.Options, runID string) (access.Capabilities, error) {
	own := map[string]string{"tasks": o.TaskID, "memory": o.AgentID, "sessions": o.SessionID, "runs": runID, "agents": o.AgentID}
	var texts []string
	for _, group := range []string{"sessions", "tasks", "memory", "runs", "agents"} {
		if own[group] != "" {
			texts = append(texts, "read:"+group+"@"+own[group])
		}
	}
	for _, group := range c.groups {
		for _, name := range connectable[group] {
			object := own[group]
			switch {
			case group == "context" || group == "runs" && name == "create":
				texts = append(texts, "write:"+group+"."+name)
			case object != "":
				texts = append(texts, "write:"+group+"."+name+"@"+object)
			}
		}
	}
	return access.ParseCapabilities(texts)
}

// serveRun makes the gateway of one run, which takes the key of that run only.
func serveRun(env *command.Env, o runs.Options, runID string) (func(context.Context, net.Conn), func(context.Context) error) {
	log := audit.NewWriter(audit.Log{Store: o.Store, Head: o.AuditHead})
	s := newGateway(env, o.Home, o.Store, log, func() func(string) string { return o.Redact.String })
	serve, end := s.Service(runID, gatewayName)
	return serve, func(ctx context.Context) error {
		err := end(ctx)
		if cerr := log.Close(); err == nil {
			err = cerr
		}
		return err
	}
}

// newGateway makes a gateway for the commands of this program.
func newGateway(env *command.Env, home string, st *store.Store, auditor command.Auditor, scrub func() func(string) string) *gateway.Server {
	const perSecond, burst, mostKeys = 200, 400, 10_000
	keys := contextkey.Keys{Store: st}
	return &gateway.Server{
		Table: newTable(program()), Version: Version(), Keys: keys, Auditor: auditor,
		NewEnv: func() *command.Env {
			e := command.In(home, st)
			e.NewSweeper, e.Scrub = env.NewSweeper, scrub
			return e
		},
		Limit:   guard.NewLimiter(perSecond, burst, mostKeys, nil),
		Streams: &gateway.Streams{Store: st, Keys: keys, Runs: filepath.Join(home, "runs")},
	}
}
