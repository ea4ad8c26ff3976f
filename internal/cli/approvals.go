package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"ravi/internal/access"
	"ravi/internal/approval"
	"ravi/internal/command"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

func addApprovals(t *command.Table) {
	t.AddGroup(command.Group{Name: "approvals", Summary: "Decide about what agents ask for before they do it"})
	add(t, command.Spec[approvalsListInput, paged[store.Approval]]{
		Group: "approvals", Name: "ls", Aliases: []string{"list"}, Access: command.Read, Scoped: true,
		Summary: "List what waits for a decision",
		Long: `Lists the commands that agents ask for and wait with, the newest first; with
--all those about which was decided, and that ended otherwise, too. A command
may be cut here; ravi approvals show has it whole.

A holder of a key sees those of the runs that its key is for.`,
		Examples: []command.Example{{Line: "ravi approvals ls"}, {What: "all that one run ever asked for", Line: "ravi approvals ls --run run01jf --all"}},
		Defaults: approvalsListInput{Limit: pageSize},
		Handler:  listApprovals, Print: printApprovals,
	})
	add(t, command.Spec[approvalsOneInput, approvalShown]{
		Group: "approvals", Name: "show", Aliases: []string{"inspect"}, Access: command.Read, Object: approvalsShowObject,
		Summary: "Show what an agent asks for, whole",
		Long: `Shows a command that an agent asks for, to the last byte, why it has to ask, and
what became of it. Each line of the command begins with a bar; what a terminal
would obey, or not show, is written as an escape. The id may be cut short, as
long as only one begins like that.

The command is the agent's, who may be in the hands of somebody else: read it
as you would read a stranger's.`,
		Examples: []command.Example{{Line: "ravi approvals show apr01jf"}},
		Handler:  showApproval, Print: printApproval,
	})
	for _, c := range []struct {
		name, summary, long string
		examples            []command.Example
		grant               bool
	}{
		{"grant", "Let an agent run the command that it asks for, once", `Grants what an agent asks for: this command, to the byte, by this run, once, and
now. If it asks for the same again, that is another approval. Read the command
first, with ravi approvals show.`, []command.Example{
			{Line: "ravi approvals grant apr01jf"},
			{What: "with a word for the record", Line: `ravi approvals grant apr01jf --note "version 2 is due today"`},
		}, true},
		{"deny", "Refuse an agent the command that it asks for", `Denies what an agent asks for. The agent is told so, with the note, and goes on
without.`, []command.Example{{Line: `ravi approvals deny apr01jf --note "open a pull request instead"`}}, false},
	} {
		add(t, command.Spec[approvalsDecideInput, store.Approval]{
			Group: "approvals", Name: c.name, Access: command.Write, Object: approvalsDecideObject(c.name), Judges: true,
			Summary: c.summary, Long: c.long + `

It is too late when the agent's turn or its run is over, or the time in which it
waits: that is an error, and nothing happens. No run can do this, whatever its
key holds. A holder of another key can for the runs that the key names, such as
write:approvals@run01jf…, and for those that were made with it.`,
			Examples: c.examples,
			Handler: func(ctx context.Context, env *command.Env, in approvalsDecideInput) (store.Approval, error) {
				return decideApproval(ctx, env, in, c.grant)
			},
			Print: printDecided,
		})
	}
}

type approvalsListInput struct {
	All    bool   `json:"all" flag:"all" host:"none" usage:"those that wait no more, too"`
	Run    string `json:"run" flag:"run" value:"RUN" host:"none" usage:"of this run"`
	Limit  int    `json:"limit" flag:"limit" short:"n" value:"N" host:"none" usage:"at most N of them, up to 500"`
	Before string `json:"before" flag:"before" value:"ID" host:"none" usage:"the page that comes after this one"`
}

type approvalsOneInput struct {
	ID string `json:"id" arg:"ID" host:"none" usage:"of the approval, or its beginning"`
}

type approvalsDecideInput struct {
	ID   string `json:"id" arg:"ID" host:"none" usage:"of the approval, or its beginning"`
	Note string `json:"note" flag:"note" value:"TEXT" host:"none" usage:"why; the agent hears it when it is denied"`
}

var approvalKind = kind[store.Approval]{"approval", "ravi approvals ls --all", "approvals", (*store.Store).Approval, func(a store.Approval) string { return a.ID }}

func approvalsShowObject(ctx context.Context, env *command.Env, in approvalsOneInput) (string, error) {
	return approvalRun(ctx, env, access.Ask{Access: access.Read, Group: "approvals", Command: "show"}, in.ID)
}

func approvalsDecideObject(name string) func(context.Context, *command.Env, approvalsDecideInput) (string, error) {
	return func(ctx context.Context, env *command.Env, in approvalsDecideInput) (string, error) {
		return approvalRun(ctx, env, access.Ask{Access: access.Write, Group: "approvals", Command: name}, in.ID)
	}
}

// approvalRun is the run whose approval was typed: capabilities are for runs. Who may not do this to the run does not hear
// of it, nor whether there is such an approval.
func approvalRun(ctx context.Context, env *command.Env, a access.Ask, typed string) (string, error) {
	found, err := approvalKind.get(ctx, env, typed)
	if err != nil {
		return typed, err
	}
	if a.Object = found.RunID; env.Check(ctx, a) != nil {
		return typed, approvalKind.missing(typed, store.ErrNotFound)
	}
	env.Found = seen[store.Approval]{typed, found}
	return found.RunID, nil
}

func listApprovals(ctx context.Context, env *command.Env, in approvalsListInput) (paged[store.Approval], error) {
	none := paged[store.Approval]{Items: []store.Approval{}}
	see := scopeOf(ctx, env, "approvals", "ls")
	f := store.ApprovalFilter{Pending: !in.All, At: store.Now(), RunIDs: see.ids()}
	var err error
	if f.RunID, err = runKind.filter(ctx, env, in.Run); err != nil {
		return none, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return none, err
	}
	return listPage(in.Limit, in.Before, approvalKind.id, func(a store.Approval) bool {
		return see.shows(a.RunID) || env.Check(ctx, access.Ask{Access: access.Read, Group: "approvals", Command: "ls", Object: a.RunID}) == nil
	}, func(before string, limit int) ([]store.Approval, error) {
		f.Before, f.Limit = before, limit
		return s.ListApprovals(ctx, f)
	})
}

func printApprovals(env *command.Env, w io.Writer, p paged[store.Approval]) error {
	if env.Quiet {
		return printIDs(w, p.Items, approvalKind.id)
	}
	if len(p.Items) == 0 {
		fmt.Fprintln(w, "nothing waits for a decision")
		return nil
	}
	rows := make([][]string, len(p.Items))
	for i, a := range p.Items {
		rows[i] = []string{a.ID, string(a.Status), age(time.Since(a.CreatedAt)), a.Family, visible(a.Command)}
	}
	return printRows(env, w, "approvals", []safe.Column{{Title: "ID"}, {Title: "STATUS"}, {Title: "AGE", Right: true}, {Title: "FAMILY"}, {Title: "COMMAND", Flex: true}},
		rows, nextPage("--before", p.Next))
}

// approvalShown is an approval, and whether what is shown is all of the command.
type approvalShown struct {
	store.Approval
	Exact bool `json:"exact"` // the digest is that of the text: no secret was taken out
}

func showApproval(ctx context.Context, env *command.Env, in approvalsOneInput) (approvalShown, error) {
	a, err := approvalKind.get(ctx, env, in.ID)
	sum := sha256.Sum256([]byte(a.Command))
	return approvalShown{a, err == nil && a.Digest == hex.EncodeToString(sum[:])}, err
}

func printApproval(env *command.Env, w io.Writer, a approvalShown) error {
	printLine(w, "id", a.ID)
	printLine(w, "status", string(a.Status))
	printLine(w, "run", a.RunID)
	printLine(w, "session", a.SessionID)
	printLine(w, "agent", a.AgentID)
	printLine(w, "asked", moment(a.CreatedAt))
	if left := time.Until(a.ExpiresAt); a.Status == store.ApprovalPending && left > 0 {
		printLine(w, "waits", "for another "+age(left))
	} else if a.Status == store.ApprovalPending {
		printLine(w, "waits", "no more, its time is over")
	}
	printLine(w, "decided", momentOf(a.DecidedAt))
	printLine(w, "by", a.DecidedBy)
	printLine(w, "note", a.Note)
	printLine(w, "ended", momentOf(a.EndedAt))
	printLine(w, "since", a.Ending)
	printLine(w, "tool", a.Tool)
	printLine(w, "family", a.Family)
	if env.ForAgent {
		printLine(w, "sha256", a.Digest)
		return safe.Fence(w, "command", strings.TrimRight(a.Reason+"\n\n"+a.Command, "\n"))
	}
	printLine(w, "reason", a.Reason)
	printLine(w, "sha256", a.Digest)
	lines := strings.Split(a.Command, "\n")
	size := fmt.Sprintf("%s, %s", count(len(lines), "line", "lines"), count(len(a.Command), "byte", "bytes"))
	if !a.Exact {
		size += "; the value of a secret was taken out"
	}
	if n := beyondASCII(a.Command); n > 0 {
		size += fmt.Sprintf("; %s beyond ASCII: look closely", count(n, "character", "characters"))
	}
	printLine(w, "command", size)
	for _, line := range lines {
		fmt.Fprintln(w, "  | "+visible(line))
	}
	return nil
}

func beyondASCII(s string) (n int) {
	for _, r := range s {
		if r > unicode.MaxASCII {
			n++
		}
	}
	return n
}

// visible is a text on one line in which everything can be seen: also what has no width, and spaces that are none.
func visible(s string) string {
	var b strings.Builder
	for _, r := range safe.Safe(s) {
		if r == utf8.RuneError || r > unicode.MaxASCII && (!unicode.IsGraphic(r) || unicode.Is(unicode.Zs, r) || unicode.Is(unicode.M, r)) {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func decideApproval(ctx context.Context, env *command.Env, in approvalsDecideInput, grant bool) (store.Approval, error) {
	found, err := approvalKind.get(ctx, env, in.ID)
	if err != nil {
		return store.Approval{}, err
	}
	s, err := env.Store(ctx)
	if err != nil {
		return store.Approval{}, err
	}
	note := strings.TrimSpace(in.Note)
	if env.Scrub != nil {
		note = env.Scrub()(note)
	}
	a, err := approval.Decide(ctx, s, env.Auditor, found.ID, store.ApprovalDecision{Grant: grant, By: env.Caller.Name(), Note: note, At: store.Now()})
	if late := new(approval.LateError); errors.As(err, &late) {
		err = &command.Error{Code: command.CodeConflict, Message: late.Error(), Hint: "what waits now: ravi approvals ls",
			Status: http.StatusConflict, Exit: command.ExitFailed, Err: err}
	}
	return a, err
}

func printDecided(env *command.Env, w io.Writer, a store.Approval) error {
	if env.Quiet {
		fmt.Fprintln(w, a.ID)
		return nil
	}
	once := ""
	if a.Status == store.ApprovalGranted {
		once = ", once"
	}
	fmt.Fprintf(w, "%s is %s%s, for %s\n", a.ID, a.Status, once, a.RunID)
	return nil
}
