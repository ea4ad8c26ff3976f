-- +goose Up
-- What was decided about access. Runs and sandboxes may be forgotten, what was decided is not: nothing is referenced.
CREATE TABLE audit (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    time       INTEGER NOT NULL,
    action     TEXT NOT NULL CHECK (action <> ''),
    object     TEXT NOT NULL DEFAULT '',
    decision   TEXT NOT NULL CHECK (decision IN ('allowed','denied','unknown')),
    run_id     TEXT NOT NULL DEFAULT '',
    sandbox_id TEXT NOT NULL DEFAULT '',
    rule       TEXT NOT NULL DEFAULT '',
    reason     TEXT NOT NULL DEFAULT '',
    detail     TEXT NOT NULL DEFAULT '' CHECK (detail = '' OR json_valid(detail)),
    count      INTEGER NOT NULL DEFAULT 1 CHECK (count >= 1),
    prev       TEXT NOT NULL,
    hash       TEXT NOT NULL CHECK (length(hash) = 64)
) STRICT;

CREATE INDEX audit_run ON audit (run_id, seq);
CREATE INDEX audit_time ON audit (time);

-- Rows are added at the end, and stay. REPLACE deletes without a DELETE, hence the first one.
-- +goose StatementBegin
CREATE TRIGGER audit_at_the_end BEFORE INSERT ON audit
WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM audit)
BEGIN
    SELECT raise(ABORT, 'the audit goes on at its end only');
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit
BEGIN
    SELECT raise(ABORT, 'the audit is never changed');
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit
BEGIN
    SELECT raise(ABORT, 'the audit is never shortened');
END;
-- +goose StatementEnd
