-- +goose Up
-- What agents asked for before they did it (package approval): one command, once. place is the order in which they came.
CREATE TABLE approvals (
    place      INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    run_id     TEXT NOT NULL CHECK (run_id <> ''),
    session_id TEXT NOT NULL DEFAULT '',
    agent_id   TEXT NOT NULL DEFAULT '',
    tool       TEXT NOT NULL CHECK (tool <> ''),
    digest     TEXT NOT NULL CHECK (length(digest) = 64),
    command    TEXT NOT NULL CHECK (command <> ''),
    family     TEXT NOT NULL DEFAULT '',
    reason     TEXT NOT NULL DEFAULT '',
    status     TEXT NOT NULL CHECK (status IN ('pending','granted','denied','used','expired','withdrawn')),
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL CHECK (expires_at > created_at),
    decided_at INTEGER,
    decided_by TEXT NOT NULL DEFAULT '',
    note       TEXT NOT NULL DEFAULT '', -- of who decided
    ended_at   INTEGER,
    ending     TEXT NOT NULL DEFAULT '', -- why it ended, where nobody decided that
    CHECK ((ended_at IS NULL) = (status IN ('pending','granted'))),
    CHECK ((decided_at IS NULL) = (decided_by = '')),
    CHECK (status NOT IN ('granted','denied','used') OR decided_at IS NOT NULL)
) STRICT;
CREATE INDEX approvals_live ON approvals (ended_at);
CREATE INDEX approvals_run ON approvals (run_id);

-- What was asked for never changes, so what somebody reads is what is granted; only what was granted is used, and what
-- has ended stays so.
-- +goose StatementBegin
CREATE TRIGGER approvals_no_change BEFORE UPDATE ON approvals
WHEN NEW.place IS NOT OLD.place OR NEW.id IS NOT OLD.id OR NEW.run_id IS NOT OLD.run_id OR NEW.session_id IS NOT OLD.session_id
    OR NEW.agent_id IS NOT OLD.agent_id OR NEW.tool IS NOT OLD.tool OR NEW.digest IS NOT OLD.digest OR NEW.command IS NOT OLD.command
    OR NEW.family IS NOT OLD.family OR NEW.reason IS NOT OLD.reason OR NEW.created_at IS NOT OLD.created_at
    OR NEW.expires_at IS NOT OLD.expires_at
    OR OLD.ended_at IS NOT NULL
    OR (NEW.status = 'used' AND OLD.status <> 'granted')
    OR (NEW.status IN ('granted','denied','pending') AND OLD.status <> 'pending')
BEGIN
    SELECT raise(ABORT, 'what was asked for never changes, and what came of it stays');
END;
-- +goose StatementEnd
-- A new one waits. REPLACE deletes without a DELETE.
-- +goose StatementBegin
CREATE TRIGGER approvals_new BEFORE INSERT ON approvals
WHEN NEW.status <> 'pending' OR NEW.decided_at IS NOT NULL OR NEW.ended_at IS NOT NULL
    OR EXISTS (SELECT 1 FROM approvals WHERE id = NEW.id OR place = NEW.place)
BEGIN
    SELECT raise(ABORT, 'an approval begins with being asked for');
END;
-- +goose StatementEnd
