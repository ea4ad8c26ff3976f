package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"ravi/internal/command"
	safe "ravi/internal/term"
)

// addDaemonKeep adds the commands that look after the record itself.
func addDaemonKeep(t *command.Table) {
	command.Add(t, command.Spec[daemonBackupInput, daemonBackup]{
		Group: "daemon", Name: "backup", Access: command.Read, Reach: command.LocalOnly,
		Summary: "Copy the database while it is in use",
		Long: `Writes the database as it is at this moment to a new file, which is yours
alone. Nothing has to be stopped. Put back, it lacks what came later, also in
the audit: see ravi audit accept. Secrets, config.json and the folders of runs
are not in it.`,
		Examples: []command.Example{{Line: "ravi daemon backup ravi-monday.db"}},
		Handler: func(ctx context.Context, env *command.Env, in daemonBackupInput) (out daemonBackup, err error) {
			st, err := env.Store(ctx)
			if err != nil {
				return out, err
			}
			if out.File, err = filepath.Abs(in.File); err != nil {
				return out, err
			}
			done := env.Progress.Step("Copy the database")
			err = st.Backup(ctx, out.File)
			done(err)
			if err != nil {
				return out, &command.Error{Code: command.CodeUsage, Message: err.Error(), Hint: "name a file that is not there yet, on a disk with room", Exit: command.ExitFailed, Err: err}
			}
			info, err := os.Stat(out.File)
			if err == nil {
				out.Bytes = info.Size()
			}
			return out, err
		},
		Print: func(env *command.Env, w io.Writer, b daemonBackup) error {
			if !env.Quiet {
				fmt.Fprintf(w, "%d bytes in %s\n", b.Bytes, safe.Safe(b.File))
			}
			return nil
		},
	})
	command.Add(t, command.Spec[daemonCheckInput, daemonChecked]{
		Group: "daemon", Name: "check", Access: command.Read, Reach: command.LocalOnly,
		Summary: "Prove that the database and the audit are whole",
		Long: `Reads all of the database and all of the audit, and ends with 1 if anything of
them is damaged, missing or changed.`,
		Examples: []command.Example{{Line: "ravi daemon check"}},
		Handler: func(ctx context.Context, env *command.Env, _ daemonCheckInput) (out daemonChecked, err error) {
			st, err := env.Store(ctx)
			if err != nil {
				return out, err
			}
			done := env.Progress.Step("Check the database")
			err = st.Check(ctx)
			done(err)
			if err != nil {
				return out, &command.Error{Code: command.CodeInternal, Message: err.Error(), Hint: "keep ravi.db as it is, and put back the newest backup beside it: see ravi daemon backup", Exit: command.ExitFailed, Err: err}
			}
			verified, err := verifyAudit(ctx, env, auditVerifyInput{})
			return daemonChecked{AuditRows: verified.Rows}, err
		},
		Print: func(env *command.Env, w io.Writer, c daemonChecked) error {
			if !env.Quiet {
				fmt.Fprintf(w, "the database is whole, and so is the audit of %d rows\n", c.AuditRows)
			}
			return nil
		},
	})
}

type daemonBackupInput struct {
	File string `json:"file" arg:"FILE" host:"path" usage:"where to; it must not be there yet"`
}

type daemonBackup struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
}

type daemonCheckInput struct{}

type daemonChecked struct {
	AuditRows int64 `json:"audit_rows"`
}
