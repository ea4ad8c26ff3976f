-- +goose Up
-- place is the order in which rows came, whatever the clock said: lists go by it, and every index ends with it.

-- Who works: an agent has instructions (AGENTS.md), memory, and the profile that bounds what its keys may ask for.
CREATE TABLE agents (
    place        INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    name         TEXT NOT NULL UNIQUE CHECK (name <> ''),
    instructions TEXT NOT NULL DEFAULT '',
    -- Paths of memory, as patterns, of which what a run writes needs no approval.
    auto_approve TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(auto_approve)),
    profile      TEXT NOT NULL DEFAULT 'default',
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    archived_at  INTEGER
) STRICT;

-- A conversation with an agent.
CREATE TABLE sessions (
    place      INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    agent_id   TEXT NOT NULL REFERENCES agents (id),
    name       TEXT NOT NULL UNIQUE CHECK (name <> ''),
    title      TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    closed_at  INTEGER
) STRICT;
CREATE INDEX sessions_agent ON sessions (agent_id);
CREATE INDEX sessions_open ON sessions (closed_at);

CREATE TABLE messages (
    id         TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    seq        INTEGER NOT NULL, -- 1, 2, 3, … in its session
    role       TEXT NOT NULL CHECK (role IN ('user','assistant','system','tool')),
    author     TEXT NOT NULL DEFAULT '', -- whose words they are, for people
    channel    TEXT NOT NULL DEFAULT '', -- where they came in
    text       TEXT NOT NULL,
    key_id     TEXT NOT NULL DEFAULT '',
    run_id     TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL,
    UNIQUE (session_id, seq)
) STRICT;

-- Memory and skills are files of an agent's. Each writing is a row, so that what is pending changes nothing: what
-- holds at a path is the approved row that was decided last, unless that one is a removal.
CREATE TABLE memory (
    place      INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    agent_id   TEXT NOT NULL REFERENCES agents (id),
    kind       TEXT NOT NULL CHECK (kind IN ('memory','skill')),
    path       TEXT NOT NULL CHECK (path <> ''),
    content    TEXT NOT NULL DEFAULT '',
    removed    INTEGER NOT NULL DEFAULT 0 CHECK (removed IN (0, 1)),
    state      TEXT NOT NULL CHECK (state IN ('pending','approved','rejected')),
    author     TEXT NOT NULL DEFAULT '',
    key_id     TEXT NOT NULL DEFAULT '',
    run_id     TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL,
    decided_at INTEGER,
    decided_by TEXT NOT NULL DEFAULT '',
    CHECK ((state = 'pending') = (decided_at IS NULL))
) STRICT;
CREATE INDEX memory_path ON memory (agent_id, kind, path);
CREATE INDEX memory_holds ON memory (agent_id, kind, path, decided_at) WHERE state = 'approved';
CREATE INDEX memory_pending ON memory (state) WHERE state = 'pending';
CREATE INDEX memory_pending_agent ON memory (agent_id) WHERE state = 'pending';

CREATE TABLE tasks (
    place      INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    agent_id   TEXT REFERENCES agents (id),
    session_id TEXT REFERENCES sessions (id),
    title      TEXT NOT NULL CHECK (title <> ''),
    body       TEXT NOT NULL DEFAULT '',
    status     TEXT NOT NULL CHECK (status IN ('open','dispatched','in_progress','blocked','done','failed')),
    author     TEXT NOT NULL DEFAULT '',
    key_id     TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    ended_at   INTEGER
) STRICT;
CREATE INDEX tasks_status ON tasks (status);
CREATE INDEX tasks_agent ON tasks (agent_id);
CREATE INDEX tasks_session ON tasks (session_id);

CREATE TABLE task_comments (
    place      INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    task_id    TEXT NOT NULL REFERENCES tasks (id),
    kind       TEXT NOT NULL CHECK (kind IN ('comment','report','status')),
    status     TEXT NOT NULL DEFAULT '', -- what the task became
    text       TEXT NOT NULL DEFAULT '',
    author     TEXT NOT NULL DEFAULT '',
    key_id     TEXT NOT NULL DEFAULT '',
    run_id     TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX task_comments_task ON task_comments (task_id);

-- What a keyed caller may ask of a sandbox (package access).
CREATE TABLE profiles (
    name       TEXT PRIMARY KEY CHECK (name <> ''),
    spec       TEXT NOT NULL CHECK (json_valid(spec)),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;

-- Context keys (package contextkey). The key itself is not here, only its hash.
CREATE TABLE keys (
    place        INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    hash         TEXT NOT NULL UNIQUE CHECK (length(hash) = 64),
    kind         TEXT NOT NULL CHECK (kind IN ('key','run')),
    label        TEXT NOT NULL DEFAULT '',
    agent_id     TEXT NOT NULL DEFAULT '',
    session_id   TEXT NOT NULL DEFAULT '',
    task_id      TEXT NOT NULL DEFAULT '',
    run_id       TEXT NOT NULL DEFAULT '',
    capabilities TEXT NOT NULL CHECK (json_valid(capabilities)),
    profile      TEXT NOT NULL DEFAULT 'default',
    parent_id    TEXT NOT NULL DEFAULT '',
    created_by   TEXT NOT NULL DEFAULT '',
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    revoked_at   INTEGER,
    reason       TEXT NOT NULL DEFAULT '',
    CHECK (kind <> 'run' OR run_id <> '')
) STRICT;
CREATE INDEX keys_parent ON keys (parent_id);
CREATE INDEX keys_run ON keys (run_id);
CREATE INDEX keys_live ON keys (revoked_at);

-- What a key is, and whose child, never changes; what was revoked stays revoked.
-- +goose StatementBegin
CREATE TRIGGER keys_no_change BEFORE UPDATE ON keys
WHEN NEW.id IS NOT OLD.id OR NEW.hash IS NOT OLD.hash OR NEW.kind IS NOT OLD.kind OR NEW.agent_id IS NOT OLD.agent_id
    OR NEW.session_id IS NOT OLD.session_id OR NEW.task_id IS NOT OLD.task_id OR NEW.run_id IS NOT OLD.run_id
    OR NEW.capabilities IS NOT OLD.capabilities OR NEW.profile IS NOT OLD.profile OR NEW.parent_id IS NOT OLD.parent_id
    OR NEW.created_by IS NOT OLD.created_by OR NEW.created_at IS NOT OLD.created_at
    OR NEW.place IS NOT OLD.place
    OR (OLD.revoked_at IS NOT NULL AND (NEW.revoked_at IS NOT OLD.revoked_at OR NEW.expires_at IS NOT OLD.expires_at))
BEGIN
    SELECT raise(ABORT, 'what a key is never changes');
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER keys_no_delete BEFORE DELETE ON keys
BEGIN
    SELECT raise(ABORT, 'keys are revoked, not deleted');
END;
-- +goose StatementEnd

-- A key's parent is there before it, so that no line of keys is a circle. REPLACE deletes without a DELETE.
-- +goose StatementBegin
CREATE TRIGGER keys_parent BEFORE INSERT ON keys
WHEN NEW.parent_id <> '' AND NOT EXISTS (SELECT 1 FROM keys WHERE id = NEW.parent_id)
BEGIN
    SELECT raise(ABORT, 'a key has a parent that is there');
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER keys_no_replace BEFORE INSERT ON keys
WHEN EXISTS (SELECT 1 FROM keys WHERE id = NEW.id OR hash = NEW.hash OR place = NEW.place)
BEGIN
    SELECT raise(ABORT, 'what a key is never changes');
END;
-- +goose StatementEnd

-- Secrets that were lent to runs. The values are not here.
CREATE TABLE leases (
    place       INTEGER PRIMARY KEY,
    id          TEXT NOT NULL UNIQUE,
    secret      TEXT NOT NULL,
    run_id      TEXT NOT NULL,
    owner_pid   INTEGER NOT NULL DEFAULT 0,
    owner_start INTEGER NOT NULL DEFAULT 0,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER,
    ended_at    INTEGER,
    reason      TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX leases_live ON leases (ended_at);
CREATE INDEX leases_run ON leases (run_id);

-- What happened, for those who listen; old ones are forgotten.
CREATE TABLE events (
    seq    INTEGER PRIMARY KEY AUTOINCREMENT,
    time   INTEGER NOT NULL,
    kind   TEXT NOT NULL CHECK (kind <> ''), -- such as task.changed
    object TEXT NOT NULL DEFAULT '',
    run_id TEXT NOT NULL DEFAULT '',
    data   TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(data))
) STRICT;

-- Runs belong to somebody, and have an owner: the process that does them.
ALTER TABLE runs ADD COLUMN agent_id TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN session_id TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN task_id TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN created_by TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN owner_pid INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN owner_start INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN created_by TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN name TEXT NOT NULL DEFAULT '';
-- A name is free again when its sandbox is over, and still leads to the last that had it.
CREATE UNIQUE INDEX sandboxes_name ON sandboxes (name) WHERE name <> '' AND seen NOT IN ('ended', 'failed');
CREATE INDEX sandboxes_named ON sandboxes (name, created_at);

-- The lists, the newest first; the id makes the order whole.
DROP INDEX runs_created;
DROP INDEX sandboxes_live;
DROP INDEX sandboxes_run;
CREATE INDEX runs_created ON runs (created_at, id);
CREATE INDEX runs_live ON runs (created_at, id) WHERE status IN ('queued', 'running');
CREATE INDEX runs_agent ON runs (agent_id, created_at, id);
CREATE INDEX runs_session ON runs (session_id, created_at, id);
CREATE INDEX runs_task ON runs (task_id, created_at, id);
CREATE INDEX runs_creator ON runs (created_by, created_at, id);
CREATE INDEX sandboxes_created ON sandboxes (created_at, id);
CREATE INDEX sandboxes_live ON sandboxes (created_at, id) WHERE seen NOT IN ('ended', 'failed');
CREATE INDEX sandboxes_run ON sandboxes (run_id, created_at, id);
CREATE INDEX sandboxes_creator ON sandboxes (created_by, created_at, id);

-- Who asked: operator, or the id of a key.
ALTER TABLE audit ADD COLUMN caller TEXT NOT NULL DEFAULT '';
CREATE INDEX audit_caller ON audit (caller, seq);
