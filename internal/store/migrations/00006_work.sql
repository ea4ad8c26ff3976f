-- +goose Up
-- Whom the organisation works for. Each has an account of its own on the bus; its name is its subjects', and never changes.
CREATE TABLE clients (
    place       INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE CHECK (name <> '' AND name NOT GLOB '*[^a-z0-9-]*'),
    title       TEXT NOT NULL DEFAULT '',
    -- How many of its messages are worked on at once, while others wait as well; 0: no bound.
    most        INTEGER NOT NULL DEFAULT 0 CHECK (most >= 0),
    created_at  INTEGER NOT NULL,
    archived_at INTEGER
) STRICT;
INSERT INTO clients (name, created_at) VALUES ('default', 0);

ALTER TABLE agents ADD COLUMN client TEXT NOT NULL DEFAULT 'default';
-- How runs of messages to the agent are made, as JSON; empty: messages are kept, and nobody works on them.
ALTER TABLE agents ADD COLUMN work TEXT NOT NULL DEFAULT '' CHECK (work = '' OR json_valid(work));

-- A message that somebody works on. place is the order in which they came.
CREATE TABLE work (
    place        INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    client       TEXT NOT NULL REFERENCES clients (name),
    agent_id     TEXT NOT NULL REFERENCES agents (id),
    session_id   TEXT NOT NULL REFERENCES sessions (id),
    message_id   TEXT NOT NULL UNIQUE REFERENCES messages (id),
    priority     INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 3),
    status       TEXT NOT NULL CHECK (status IN ('queued','running','done','failed','canceled')),
    reason       TEXT NOT NULL DEFAULT '',
    tries        INTEGER NOT NULL DEFAULT 0 CHECK (tries >= 0),
    run_id       TEXT NOT NULL DEFAULT '', -- of the try that was begun last
    runner       TEXT NOT NULL DEFAULT '', -- whose sandbox that has; empty: this machine's own
    reply_id     TEXT NOT NULL DEFAULT '', -- the message that came of it
    not_before   INTEGER,                  -- when the next try may begin
    published_at INTEGER,
    created_by   TEXT NOT NULL DEFAULT '',
    created_at   INTEGER NOT NULL,
    started_at   INTEGER,
    ended_at     INTEGER,
    CHECK ((ended_at IS NULL) = (status IN ('queued','running'))),
    CHECK (status <> 'running' OR run_id <> '')
) STRICT;
-- One at a time in a session.
CREATE UNIQUE INDEX work_running ON work (session_id) WHERE status = 'running';
CREATE INDEX work_live ON work (client, priority, place) WHERE ended_at IS NULL;
CREATE INDEX work_session_live ON work (session_id, place) WHERE ended_at IS NULL;
CREATE INDEX work_unpublished ON work (place) WHERE published_at IS NULL AND ended_at IS NULL;
CREATE INDEX work_session ON work (session_id);
CREATE INDEX work_agent ON work (agent_id);
CREATE INDEX work_client ON work (client);
CREATE INDEX work_run ON work (run_id);

-- What is asked for never changes, and what has ended stays so.
-- +goose StatementBegin
CREATE TRIGGER work_no_change BEFORE UPDATE ON work
WHEN NEW.place IS NOT OLD.place OR NEW.id IS NOT OLD.id OR NEW.client IS NOT OLD.client OR NEW.agent_id IS NOT OLD.agent_id
    OR NEW.session_id IS NOT OLD.session_id OR NEW.message_id IS NOT OLD.message_id OR NEW.created_at IS NOT OLD.created_at
    OR NEW.created_by IS NOT OLD.created_by OR NEW.tries < OLD.tries OR OLD.ended_at IS NOT NULL
BEGIN
    SELECT raise(ABORT, 'what is asked for never changes, and what came of it stays');
END;
-- +goose StatementEnd

-- Credentials for the bus (package bus). The user is the public half of the key; the other half is not here.
CREATE TABLE bus_credentials (
    place      INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,        -- the user: an nkey, U…
    kind       TEXT NOT NULL CHECK (kind IN ('runner','guest','owner','operator')),
    name       TEXT NOT NULL CHECK (name <> ''),
    client     TEXT NOT NULL DEFAULT '',    -- whose account; empty: the control account
    run_id     TEXT NOT NULL DEFAULT '',
    xkey       TEXT NOT NULL DEFAULT '',    -- of a runner: the public key that is sealed to
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    reason     TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX bus_credentials_run ON bus_credentials (run_id);
CREATE INDEX bus_credentials_revoked ON bus_credentials (client) WHERE revoked_at IS NOT NULL;
-- A runner has one credential that holds.
CREATE UNIQUE INDEX bus_credentials_runner ON bus_credentials (name) WHERE kind = 'runner' AND revoked_at IS NULL;

-- What runners said of themselves last.
CREATE TABLE runners (
    name    TEXT PRIMARY KEY CHECK (name <> ''),
    status  TEXT NOT NULL CHECK (json_valid(status)),
    seen_at INTEGER NOT NULL
) STRICT;
