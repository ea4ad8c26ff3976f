package run

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"ravi/agent"
	"ravi/internal/adapter"
	"ravi/internal/approval"
	"ravi/internal/store"
	"ravi/sandbox"
)

// Loop is Ravi's own agent loop as the agent of a run: it asks the model from here, and acts in the sandbox.
type Loop struct {
	// Model makes what is asked of the address of a provider at the broker and a lease. dial reaches the broker.
	Model func(dialect, baseURL, token, model string, dial func(context.Context) (net.Conn, error)) (agent.Model, error)
	// Exec, DenyPatterns, Limits and Subagents are as in agent.Config.
	Exec         agent.ExecTool
	DenyPatterns []string
	Limits       agent.Limits
	Subagents    agent.SubLimits
	// WorkspaceOnly has it see and write its workspace only, whatever volumes there are (sandbox.WithWorkspaceOnly).
	WorkspaceOnly bool
	// Depth is how many sub-agents may be below each other; 0: none may be spawned.
	Depth int
	// Servers starts MCP servers in a sandbox, and tells what is to be known of them; nil: there are none.
	Servers func(ctx context.Context, sb *sandbox.Sandbox, tell func(text string, failed bool)) (agent.Servers, error)
	// NobodyApproves has what needs an approval refused; else it is waited for, for ApprovalTime.
	NobodyApproves bool
	ApprovalTime   time.Duration
}

// JournalFile is what a run's loop has done, beneath the run's folder.
const JournalFile = "loop.jsonl"

const mostContext = 64 << 10

// loop has Ravi's own loop do the task, and notes how that ended.
func (s *state) loop(ctx context.Context) error {
	out, err := newLog(s.dir.path(filepath.Join(LogsDir, "stdout.log")), nil, s.Redact)
	if err != nil {
		return err
	}
	defer out.close()
	if err := s.giveJournal(); err != nil {
		return err
	}
	journal, err := agent.OpenJournal(s.dir.path(JournalFile))
	if err != nil {
		return err
	}
	defer journal.Close()
	v := &loopView{s: s, out: out}
	hands := agent.HandsOf(s.sb)
	if serve := s.Agent.Loop.Servers; serve != nil {
		hands.WithServers(func(ctx context.Context, sb *sandbox.Sandbox) (agent.Servers, error) {
			return serve(ctx, sb, func(text string, failed bool) {
				v.tell(adapter.Event{Kind: adapter.Note, Text: text, Failed: failed})
			})
		})
	}
	defer hands.Close(context.WithoutCancel(ctx))
	c, err := s.loopConfig(ctx, hands, &s.models, "")
	if err != nil {
		return err
	}
	c.Journal, c.Emit = journal, v.hear
	c.Exec.Env = s.contextEnv()
	c.Subagents = s.subagents(v, s.sb, &s.models, s.Agent.Loop.Depth)
	if t := s.Timeout; t > 0 {
		c.Limits.Wall = t
	}
	loop, err := agent.New(c)
	if err != nil {
		return err
	}
	var end agent.Outcome
	s.models.began.Store(int64(time.Since(s.models.since)))
	if loop.Unfinished() {
		var state string
		if state, err = s.giveWork(ctx); err == nil {
			end, err = loop.Resume(ctx, state+"\n\n"+s.Task)
		}
	} else {
		end, err = loop.Turn(ctx, s.Task)
	}
	out.close()
	s.task.Output = Output{Bytes: out.total, Truncated: out.left > 0}
	if gone := s.sb.Err(); gone != nil && end.Reason != agent.Finished {
		return gone
	}
	if err != nil {
		return err
	}
	switch end.Reason {
	case agent.Finished:
		s.task.Status, s.task.Exit = store.RunSucceeded, 0
	case agent.Canceled:
		s.task.Status, s.task.Reason, s.task.Exit = store.RunCanceled, sandbox.ReasonCanceled, exitCanceled
	case agent.OutOfTime:
		s.task.Status, s.task.Reason, s.task.Exit = store.RunTimeout, sandbox.ReasonTimeout, exitTimeout
	default:
		s.task.Status, s.task.Reason, s.task.Exit, s.task.Error = store.RunFailed, reasonAgent, exitAgent, "loop failed: "+end.Why
		if end.Reason == agent.Iterations || end.Reason == agent.OutOfToken {
			s.task.Reason, s.task.Error = string(end.Reason), "loop was ended: "+end.Why
		}
	}
	return nil
}

// restrict has a loop that may see its workspace only see no more: no volume either.
func (s *state) restrict() []sandbox.Option {
	if s.Agent == nil || s.Agent.Loop == nil || !s.Agent.Loop.WorkspaceOnly {
		return nil
	}
	if n := len(s.Config.ExtraVolumes); n > 0 {
		s.note("%d volumes of config.json are not shown to the agent, which is restricted to its workspace", n)
		s.Config.ExtraVolumes = nil
	}
	return []sandbox.Option{sandbox.WithWorkspaceOnly()}
}

// giveJournal has the loop go on with what the run before wrote down.
func (s *state) giveJournal() error {
	r := s.Agent.Resume
	if r == nil {
		return nil
	}
	fail := func(err error) error { return fmt.Errorf("taking over the conversation of run %s: %w", r.RunID, err) }
	from, err := os.Open(r.File)
	if err != nil {
		return fail(err)
	}
	defer from.Close()
	to, err := os.OpenFile(s.dir.path(JournalFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fail(err)
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Close()); err != nil {
		return fail(err)
	}
	s.dir.event("resumed", map[string]any{"run": r.RunID})
	return nil
}

// giveWork lays the work of an interrupted run, as far as it was saved, onto the clone, and says for the model what there is.
func (s *state) giveWork(ctx context.Context) (string, error) {
	const lost = "Ravi was interrupted, and your sandbox with all that was done in it is gone. This is a new one, with the repository as it was in the beginning"
	r := s.Agent.Resume
	patch, err := os.Open(filepath.Join(filepath.Dir(r.File), PatchFile))
	if errors.Is(err, fs.ErrNotExist) {
		s.note("nothing of the work of run %s was saved: it begins anew, and the conversation goes on", r.RunID)
		return lost + ".", nil
	}
	if err != nil {
		return "", fmt.Errorf("taking over the work of run %s: %w", r.RunID, err)
	}
	defer patch.Close()
	res, err := s.sb.Exec(ctx, sandbox.Cmd{Args: []string{"git", "apply", "--whitespace=nowarn", "-"}, GuestDir: s.sb.Workspace(), Stdin: patch, Timeout: sandbox.After(time.Minute)})
	switch {
	case err != nil:
		return "", fmt.Errorf("taking over the work of run %s: %w", r.RunID, err)
	case res.ExitCode != 0:
		s.note("the saved work of run %s does not apply to this repository: it begins anew, and the conversation goes on", r.RunID)
		return lost + ".", nil
	}
	s.note("the saved work of run %s was taken over", r.RunID)
	return lost + ", and the changes that were saved before. What was done just before may be missing: look first.", nil
}

// loopConfig is what the run's loop and those of its sub-agents have in common. sub is the sub-agent's id; empty: it is the
// run's loop.
func (s *state) loopConfig(ctx context.Context, hands *agent.Hands, m *modeled, sub string) (agent.Config, error) {
	o := s.Agent.Loop
	p := s.Models.Providers[0]
	model, err := o.Model(string(p.Dialect), "http://"+Broker+".ravi.internal/"+p.Name, m.token, s.Agent.Model, m.dial)
	if err != nil {
		return agent.Config{}, err
	}
	system, err := s.loopSystem(ctx)
	if err != nil {
		return agent.Config{}, err
	}
	return agent.Config{
		Model: leasedModel{model, m}, Hands: hands, Exec: o.Exec, DenyPatterns: o.DenyPatterns, Limits: o.Limits, System: system,
		Approver: approver{s, sub}, Redact: s.Redact.String,
	}, nil
}

// leasedModel is a model that is asked by a lease, and tells when that is used up.
type leasedModel struct {
	agent.Model
	m *modeled
}

func (l leasedModel) Next(ctx context.Context, r agent.Request, say func(string)) (agent.Answer, error) {
	answer, err := l.Model.Next(ctx, r, say)
	if err != nil && l.m.broker.Spent() {
		err = spentError{err}
	}
	return answer, err
}

// spentError is an agent.ErrSpent in the broker's words.
type spentError struct{ error }

func (spentError) Is(target error) bool { return target == agent.ErrSpent }
func (e spentError) Unwrap() error      { return e.error }

// dial reaches the broker as a process of the sandbox would, over no wire.
func (m *modeled) dial(context.Context) (net.Conn, error) {
	if m.serve == nil {
		return nil, errors.New("this run has no models")
	}
	here, there := net.Pipe()
	go m.serve(context.Background(), there) // it ends with the broker
	return here, nil
}

// loopSystem is what the model is told before all else: where it is, and what the run's context says.
func (s *state) loopSystem(ctx context.Context) (string, error) {
	text := fmt.Sprintf("You work in a sandbox, in the folder %s, which holds a copy of a repository that you may change as you like. "+
		"The changes that you make there are what your user gets, as a patch: do not commit, and write nothing elsewhere that matters. "+
		"Do the task that you are given as far as you can, look whether it is right by running what the repository has for that, and call finish. "+
		"Nobody answers questions.", s.sb.Workspace())
	dir := s.sb.ContextDir()
	if dir == "" {
		return text, nil
	}
	more, err := s.sb.Files().ReadFile(ctx, path.Join(dir, "AGENTS.md"), mostContext)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, sandbox.ErrNotFound):
		return text, nil
	case err != nil:
		return "", fmt.Errorf("reading the run's context: %w", err)
	}
	return text + "\n\nWhat your user wants you to know (more is in " + dir + "):\n" + string(more), nil
}

// approver asks outside, in the name of the run.
type approver struct {
	s   *state
	sub string
}

func (a approver) Ask(ctx context.Context, q agent.Question) (bool, string, error) {
	s, o := a.s, a.s.Agent.Loop
	asker := approval.Asker{
		Store: s.Store, Audit: s.audit.log, RunID: s.task.ID, SessionID: s.SessionID, AgentID: s.AgentID, CreatedBy: cmp.Or(s.CreatedBy, "operator"),
		TTL: o.ApprovalTime, Nobody: o.NobodyApproves,
		Tell: func(x store.Approval) {
			s.dir.event("approval", map[string]any{"id": x.ID, "command": x.Command, "reason": x.Reason})
			s.note("a command waits for approval until %s (%s): ravi approvals show %s", x.ExpiresAt.Local().Format(time.TimeOnly), x.Reason, x.ID)
		},
	}
	if a.sub != "" {
		q.Reason += ", asked for by its sub-agent " + a.sub
	}
	answer, err := asker.Ask(ctx, approval.Request{Tool: q.Tool, Command: s.Redact.String(q.Command), Digest: q.Digest, Family: q.Family, Reason: q.Reason})
	return answer.Granted, answer.Why, err
}

// loopView passes a loop's events on as those of an agent program.
type loopView struct {
	s    *state
	out  io.Writer
	mu   sync.Mutex
	told int
	text strings.Builder
}

func (v *loopView) hear(e agent.Event) {
	if e.Kind == agent.EventText {
		if v.text.Len() < 1<<20 {
			v.text.WriteString(e.Text)
		}
		return
	}
	if said := strings.TrimSpace(v.text.String()); said != "" {
		v.tell(adapter.Event{Kind: adapter.Text, Text: v.s.Redact.String(said)})
	}
	v.text.Reset()
	switch e.Kind {
	case agent.EventTool, agent.EventResult:
		v.sub(e)
	case agent.EventUsage:
		v.tell(adapter.Event{Kind: adapter.Usage, InputTokens: e.Usage.Input, OutputTokens: e.Usage.Output})
	case agent.EventNote:
		v.tell(adapter.Event{Kind: adapter.Note, Text: v.s.Redact.String(e.Text), Parent: e.Agent, Failed: e.Failed})
	case agent.EventEnd:
		v.tell(adapter.Event{Kind: adapter.End, Text: v.s.Redact.String(e.Text), Failed: e.Failed, InputTokens: e.Usage.Input, OutputTokens: e.Usage.Output})
	}
}

// sub passes on what is done, by the loop or by a sub-agent.
func (v *loopView) sub(e agent.Event) {
	switch e.Kind {
	case agent.EventTool:
		input := json.RawMessage(v.s.Redact.String(string(e.Input)))
		if !json.Valid(input) { // a secret went beyond one of its texts
			input = nil
		}
		v.tell(adapter.Event{Kind: adapter.Tool, Tool: e.Tool, ID: e.ID, Input: input, Parent: e.Agent})
	case agent.EventResult:
		v.tell(adapter.Event{Kind: adapter.Result, Tool: e.Tool, ID: e.ID, Text: e.Text, Failed: e.Failed, Parent: e.Agent})
	}
}

// tell is also called for what servers and sub-agents say, beside hear.
func (v *loopView) tell(e adapter.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.s.agentEvent(&v.told, e)
	if b, err := json.Marshal(e); err == nil {
		v.out.Write(append(b, '\n')) // the log says itself what it lacks
	}
}
