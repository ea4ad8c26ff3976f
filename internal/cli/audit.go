package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"ravi/internal/audit"
	"ravi/internal/command"
	"ravi/internal/store"
	safe "ravi/internal/term"
)

func addAudit(t *command.Table) {
	t.AddGroup(command.Group{Name: "audit", Summary: "Look at what was decided about access, and prove that it is whole"})
	add(t, command.Spec[auditTailInput, []audit.Record]{
		Group: "audit", Name: "tail", Access: command.Read,
		Summary: "Show the newest decisions",
		Long: `Shows the newest decisions about access: calls of commands and who made them,
connections of sandboxes, the use of secrets; allowed and denied alike.

With --follow it goes on with those that come, until Ctrl-C.`,
		Examples: []command.Example{{Line: "ravi audit tail"}, {What: "what is refused, as it happens", Line: "ravi audit tail --follow --denied"}},
		Defaults: auditTailInput{Limit: 20}, Handler: tailAudit, Print: printAudit,
	})
	add(t, command.Spec[auditSearchInput, auditPage]{
		Group: "audit", Name: "search", Access: command.Read,
		Summary: "Find decisions",
		Long: `Finds decisions, the newest first. TEXT is looked for in reasons and inputs;
--action may end with a dot, and then means all that begin so.`,
		Examples: []command.Example{
			{What: "what one run did", Line: "ravi audit search --run run01jf5r0q4k8n2v6t9w3x7y1z5b"},
			{What: "who was refused what, today", Line: "ravi audit search --decision denied --since 24h"},
			{What: "every change to tasks by one key", Line: "ravi audit search --caller ctx_Zq… --action command.tasks."},
		},
		Defaults: auditSearchInput{Limit: pageSize}, Handler: searchAudit, Print: func(env *command.Env, w io.Writer, p auditPage) error {
			if err := printAudit(env, w, p.Items); err != nil {
				return err
			}
			if p.Next != 0 {
				fmt.Fprintf(w, "there is more: add --before %d\n", p.Next)
			}
			return nil
		},
	})
	add(t, command.Spec[auditVerifyInput, auditVerified]{
		Group: "audit", Name: "verify", Access: command.Read, Reach: command.OperatorOnly,
		Summary: "Prove that no decision was changed, removed or re-ordered",
		Long: `Reads the whole audit and compares it with its own chain of hashes and with the
head, which is kept in a second place. It ends with 1, and says which row, if
anything does not fit.

With --file it does so for what ravi audit export wrote; rows may be left out
of an export by a filter, and it says how often.`,
		Examples: []command.Example{{Line: "ravi audit verify"}, {What: "an export, on another machine", Line: "ravi audit verify --file audit.jsonl"}},
		Handler:  verifyAudit,
		Print: func(_ *command.Env, w io.Writer, r auditVerified) error {
			fmt.Fprintf(w, "%d rows, all as they were written; the last one has the hash %s\n", r.Rows, r.Hash)
			if r.Gaps > 0 {
				fmt.Fprintf(w, "rows are left out %d times\n", r.Gaps)
			}
			if r.Begun > 1 {
				fmt.Fprintf(w, "the head began anew %d times: see ravi audit search --action audit.head.\n", r.Begun-1)
			}
			return nil
		},
	})
	add(t, command.Spec[auditExportInput, auditExported]{
		Group: "audit", Name: "export", Access: command.Read, Reach: command.LocalOnly,
		Summary: "Write decisions as lines of JSON that can be verified elsewhere",
		Long: `Writes decisions to FILE, or to standard output for -, one a line, with the
hashes that chain them. docs/audit.md says how another program verifies them.`,
		Examples: []command.Example{{Line: "ravi audit export audit.jsonl"}, {What: "of one run", Line: "ravi audit export - --run run01jf5r0q4k8n2v6t9w3x7y1z5b | jq .action"}},
		Handler:  exportAudit,
		Print: func(env *command.Env, w io.Writer, e auditExported) error {
			if !env.Quiet && e.File != "-" {
				fmt.Fprintf(w, "%d rows in %s\n", e.Rows, safe.Safe(e.File))
			}
			return nil
		},
	})
	add(t, command.Spec[auditAcceptInput, auditVerified]{
		Group: "audit", Name: "accept", Access: command.Write, Reach: command.LocalOnly,
		Summary: "Have the head follow the audit as it is now",
		Long: `For when the audit and its head do not fit and you know why, such as after a
backup was put back: nothing that has to be written down is done until they do.
That it was accepted, and the reason, stand in the audit for good.`,
		Examples: []command.Example{{Line: `ravi audit accept "put back the backup of Monday"`}},
		Handler: func(ctx context.Context, env *command.Env, in auditAcceptInput) (auditVerified, error) {
			log, err := auditLog(ctx, env)
			if err != nil {
				return auditVerified{}, err
			}
			if err := log.Accept(ctx, env.Caller.Name(), in.Reason); err != nil {
				return auditVerified{}, auditError(err)
			}
			return verifyAudit(ctx, env, auditVerifyInput{})
		},
		Print: func(_ *command.Env, w io.Writer, r auditVerified) error {
			fmt.Fprintf(w, "the head is row %d now\n", r.Seq)
			return nil
		},
	})
}

type auditTailInput struct {
	Limit  int  `json:"limit" flag:"limit" short:"n" value:"N" host:"none" usage:"the newest N, up to 500"`
	Follow bool `json:"follow" flag:"follow" short:"f" host:"size" usage:"go on with those that come"`
	Denied bool `json:"denied" flag:"denied" host:"none" usage:"refusals only"`
}

type auditSearchInput struct {
	Text     string `json:"text" arg:"TEXT" optional:"true" host:"none" usage:"part of a reason or an input"`
	Caller   string `json:"caller" flag:"caller" value:"KEY" host:"none" usage:"operator, or the id of a key"`
	Action   string `json:"action" flag:"action" value:"ACTION" host:"none" usage:"such as command.tasks.done, or command.tasks. for all of them"`
	Object   string `json:"object" flag:"object" value:"ID" host:"none" usage:"what it was about"`
	Run      string `json:"run" flag:"run" value:"RUN" host:"none" usage:"the full id of a run"`
	Sandbox  string `json:"sandbox" flag:"sandbox" value:"SANDBOX" host:"none" usage:"the full id of a sandbox"`
	Decision string `json:"decision" flag:"decision" value:"D" host:"none" usage:"allowed, denied or unknown"`
	Since    string `json:"since" flag:"since" value:"WHEN" host:"none" usage:"a time ago such as 2h, or a moment such as 2026-03-01T10:00:00Z"`
	Until    string `json:"until" flag:"until" value:"WHEN" host:"none" usage:"the same, for the end"`
	Limit    int    `json:"limit" flag:"limit" short:"n" value:"N" host:"none" usage:"at most N of them, up to 500"`
	Before   int64  `json:"before" flag:"before" value:"SEQ" host:"none" usage:"the page that comes after this row"`
}

type auditVerifyInput struct {
	File string `json:"file" flag:"file" value:"FILE" host:"path" usage:"an export instead of Ravi's own audit"`
}

type auditExportInput struct {
	File string `json:"file" arg:"FILE" host:"path" usage:"where to; - is standard output"`
	Run  string `json:"run" flag:"run" value:"RUN" host:"none" usage:"of one run, by its full id"`
}

type auditAcceptInput struct {
	Reason string `json:"reason" arg:"REASON" host:"none" usage:"why they do not fit"`
}

// auditPage is a part of what was found.
type auditPage struct {
	Items []audit.Record `json:"items"`
	Next  int64          `json:"next"` // 0: there is no more
}

type auditVerified struct {
	Rows  int64  `json:"rows"`
	Seq   int64  `json:"seq"` // of the last row
	Hash  string `json:"hash"`
	Gaps  int64  `json:"gaps"`
	Begun int64  `json:"heads_begun"`
}

type auditExported struct {
	File string `json:"file"`
	Rows int64  `json:"rows"`
}

// auditLog is the audit of Ravi's home.
func auditLog(ctx context.Context, env *command.Env) (audit.Log, error) {
	st, err := env.Store(ctx)
	if err != nil {
		return audit.Log{}, err
	}
	head, err := auditHead(env)
	return audit.Log{Store: st, Head: head}, err
}

// auditHead is the file of the head, empty for where it is unless config.json says otherwise.
func auditHead(env *command.Env) (string, error) {
	file, err := env.Config()
	if err != nil {
		return "", err
	}
	head := file.Audit.Head
	if head == "" || filepath.IsAbs(head) {
		return head, nil
	}
	home, err := env.Home()
	return filepath.Join(home, head), err
}

// auditError tells what does not fit.
func auditError(err error) error {
	var t *audit.Tampered
	if errors.As(err, &t) {
		return &command.Error{Code: "TAMPERED", Message: err.Error(), Hint: t.Hint(), Exit: command.ExitFailed, Err: err}
	}
	return err
}

func tailAudit(ctx context.Context, env *command.Env, in auditTailInput) ([]audit.Record, error) {
	if err := checkLimit(in.Limit); err != nil {
		return nil, err
	}
	log, err := auditLog(ctx, env)
	if err != nil {
		return nil, err
	}
	f := audit.Filter{Limit: in.Limit, Newest: true}
	if in.Denied {
		f.Decision = store.Denied
	}
	rows, _, err := log.Search(ctx, f)
	if err != nil {
		return nil, err
	}
	slices.Reverse(rows)
	if !in.Follow {
		return rows, nil
	}
	return nil, followAudit(ctx, env, log, f, rows)
}

// followAudit prints rows as they come, until ctx ends.
func followAudit(ctx context.Context, env *command.Env, log audit.Log, f audit.Filter, rows []audit.Record) error {
	w, err := log.Store.Watch(ctx)
	if err != nil {
		return err
	}
	defer w.Close()
	end, err := log.Store.AuditEnd(ctx)
	if err != nil {
		return err
	}
	f.After, f.Newest, f.Limit = end, false, 0
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, r := range rows {
			if env.JSON {
				err = printJSONLine(env.Stdout, r)
			} else {
				_, err = fmt.Fprintln(env.Stdout, auditLine(r))
			}
			if err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil // Ctrl-C is how it ends
		case <-tick.C:
		}
		rows = nil
		if changed, err := w.Changed(ctx); err != nil || !changed {
			if err != nil && ctx.Err() == nil {
				return err
			}
			continue
		}
		if rows, err = log.List(ctx, f); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if len(rows) > 0 {
			f.After = rows[len(rows)-1].Seq
		}
	}
}

// auditLine is a row on one line.
func auditLine(r audit.Record) string {
	line := fmt.Sprintf("%s %-7s %s %s", r.Time.Local().Format("15:04:05"), r.Decision, shortCaller(r.Caller), r.Action)
	if r.Object != "" {
		line += " " + r.Object
	}
	if r.Count > 1 {
		line += fmt.Sprintf(" (%d times)", r.Count)
	}
	if r.Reason != "" {
		line += ": " + r.Reason
	}
	return safe.Safe(line)
}

// shortCaller is who called, as far as it fits into a table.
func shortCaller(caller string) string {
	const most = 12
	if caller == "" {
		return "-"
	}
	if len(caller) > most {
		return caller[:most]
	}
	return caller
}

func searchAudit(ctx context.Context, env *command.Env, in auditSearchInput) (auditPage, error) {
	page := auditPage{Items: []audit.Record{}}
	if err := checkLimit(in.Limit); err != nil {
		return page, err
	}
	f := audit.Filter{
		Caller: in.Caller, Action: in.Action, Object: in.Object, RunID: in.Run, SandboxID: in.Sandbox, Decision: store.Decision(in.Decision),
		Text: in.Text, Limit: in.Limit, Before: in.Before, Newest: true,
	}
	switch f.Decision {
	case "", store.Allowed, store.Denied, store.Unknown:
	default:
		return page, command.Usage(fmt.Sprintf("--decision %s: it is allowed, denied or unknown", in.Decision), "")
	}
	var err error
	if f.Since, err = when("--since", in.Since); err != nil {
		return page, err
	}
	if f.Until, err = when("--until", in.Until); err != nil {
		return page, err
	}
	log, err := auditLog(ctx, env)
	if err != nil {
		return page, err
	}
	rows, next, err := log.Search(ctx, f)
	if err != nil {
		return page, err
	}
	return auditPage{append(page.Items, rows...), next}, nil
}

// when reads a moment, or a time that has gone by since then.
func when(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return time.Now().Add(-ago), nil
	}
	if n, err := strconv.ParseUint(strings.TrimSuffix(text, "d"), 10, 16); err == nil && strings.HasSuffix(text, "d") {
		return time.Now().AddDate(0, 0, -int(n)), nil
	}
	for _, form := range []string{time.RFC3339, "2006-01-02T15:04:05", time.DateTime, time.DateOnly} {
		if at, err := time.ParseInLocation(form, text, time.Local); err == nil {
			return at, nil
		}
	}
	return time.Time{}, command.Usage(fmt.Sprintf("%s %.40q is no moment", flag, text), "write 2h, 7d, 2026-03-01 or 2026-03-01T10:00:00Z")
}

func verifyAudit(ctx context.Context, env *command.Env, in auditVerifyInput) (auditVerified, error) {
	var r audit.Report
	if in.File != "" {
		f, err := os.Open(in.File)
		if err != nil {
			return auditVerified{}, command.Usage("cannot read the export: "+err.Error(), "")
		}
		defer f.Close()
		if r, err = audit.VerifyExport(f, nil); err != nil {
			return auditVerified{}, auditError(err)
		}
	} else {
		log, err := auditLog(ctx, env)
		if err != nil {
			return auditVerified{}, err
		}
		done := env.Progress.Step("Verify the audit")
		r, err = log.Verify(ctx, nil)
		done(err)
		if err != nil {
			return auditVerified{}, auditError(err)
		}
	}
	return auditVerified{Rows: r.Rows, Seq: r.Last.Seq, Hash: r.Last.Hash, Gaps: r.Gaps, Begun: r.Begun}, nil
}

func exportAudit(ctx context.Context, env *command.Env, in auditExportInput) (e auditExported, err error) {
	log, err := auditLog(ctx, env)
	if err != nil {
		return e, err
	}
	e.File = in.File
	out := env.Stdout
	if in.File != "-" {
		f, err := os.OpenFile(in.File, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return e, command.Usage("cannot write the export: "+err.Error(), "name a file that is not there yet")
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		out = f
	}
	buffered := bufio.NewWriter(out)
	if e.Rows, err = log.Export(ctx, buffered, audit.Filter{RunID: in.Run}); err != nil {
		return e, err
	}
	return e, buffered.Flush()
}

func printAudit(env *command.Env, w io.Writer, rows []audit.Record) error {
	if len(rows) == 0 {
		return nil
	}
	columns := []safe.Column{{Title: "SEQ"}, {Title: "TIME"}, {Title: "CALLER"}, {Title: "DECISION"}, {Title: "ACTION"}, {Title: "OBJECT", Flex: true}}
	var lines [][]string
	for _, r := range rows {
		decision := string(r.Decision)
		if r.Count > 1 {
			decision += " ×" + strconv.FormatInt(r.Count, 10)
		}
		lines = append(lines, []string{strconv.FormatInt(r.Seq, 10), r.Time.Local().Format("15:04:05"), shortCaller(r.Caller), decision, r.Action, r.Object})
	}
	return printRows(env, w, "audit", columns, lines, "")
}
