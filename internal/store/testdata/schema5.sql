PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE goose_db_version (
		id INTEGER PRIMARY KEY AUTOINCREMENT,
		version_id INTEGER NOT NULL,
		is_applied INTEGER NOT NULL,
		tstamp TIMESTAMP DEFAULT (datetime('now'))
	);
INSERT INTO goose_db_version VALUES(1,0,1,'2026-11-30 00:49:02');
INSERT INTO goose_db_version VALUES(2,1,1,'2026-11-30 00:49:02');
INSERT INTO goose_db_version VALUES(3,2,1,'2026-11-30 00:49:02');
INSERT INTO goose_db_version VALUES(4,3,1,'2026-11-30 04:17:07');
INSERT INTO goose_db_version VALUES(5,4,1,'2026-11-30 09:32:19');
INSERT INTO goose_db_version VALUES(6,5,1,'2026-11-30 12:33:48');
CREATE TABLE runs (
    id         TEXT PRIMARY KEY,
    status     TEXT NOT NULL CHECK (status IN ('queued','running','succeeded','failed','timeout','oom','canceled','error')),
    reason     TEXT NOT NULL DEFAULT '',
    command    TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(command)),
    repo       TEXT NOT NULL DEFAULT '',
    base       TEXT NOT NULL DEFAULT '',
    task       TEXT NOT NULL DEFAULT '',
    exit_code  INTEGER,
    dir        TEXT NOT NULL DEFAULT '',
    sandbox_id TEXT REFERENCES sandboxes (id) ON DELETE SET NULL,
    patch      TEXT CHECK (patch IS NULL OR json_valid(patch)),
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at   INTEGER
, agent_id TEXT NOT NULL DEFAULT '', session_id TEXT NOT NULL DEFAULT '', task_id TEXT NOT NULL DEFAULT '', created_by TEXT NOT NULL DEFAULT '', owner_pid INTEGER NOT NULL DEFAULT 0, owner_start INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO runs VALUES('run01kdefmzr5v3m2qyqs5xhsnc4f','failed','exit','["sh","-c","it''s\na \"test\""]','/r é','abc','mend ''it''',3,'/d','sbx01kdefmzr6d3m2qyqs5xhsnc4f','{"files":1,"insertions":2,"deletions":3,"bytes":4,"sha256":"x","applies":true}',1793534400005,1793534400005,1793534400005,'','','','',0,0);
INSERT INTO runs VALUES('run01kdefmzr5v3m2qyqs5xhsnc4g','queued','','[]','','','',NULL,'',NULL,NULL,1793534401005,NULL,NULL,'','','','',0,0);
CREATE TABLE sandboxes (
    id           TEXT PRIMARY KEY,
    run_id       TEXT REFERENCES runs (id) ON DELETE SET NULL,
    backend      TEXT NOT NULL,
    image        TEXT NOT NULL DEFAULT '',
    workspace    TEXT NOT NULL DEFAULT '',
    desired      TEXT NOT NULL CHECK (desired IN ('running','paused','ended')),
    seen         TEXT NOT NULL CHECK (seen IN ('creating','running','paused','ended','failed')),
    reason       TEXT NOT NULL DEFAULT '',
    owner_pid    INTEGER NOT NULL DEFAULT 0,
    owner_start  INTEGER NOT NULL DEFAULT 0,
    keeper_pid   INTEGER NOT NULL DEFAULT 0,
    keeper_start INTEGER NOT NULL DEFAULT 0,
    dir          TEXT NOT NULL DEFAULT '',
    cgroups      TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(cgroups)),
    uid_base     INTEGER NOT NULL DEFAULT 0,
    limits       TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(limits)),
    created_at   INTEGER NOT NULL,
    started_at   INTEGER,
    ended_at     INTEGER
, created_by TEXT NOT NULL DEFAULT '', name TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO sandboxes VALUES('sbx01kdefmzr6d3m2qyqs5xhsnc4f','run01kdefmzr5v3m2qyqs5xhsnc4f','gvisor','host','/w','running','creating','',7,-9223372036854775808,8,9,'/s','["/sys/fs/cgroup/x"]',4294967295,'{"cpus":1.5,"memory_mib":2048,"disk_mib":4096,"pids":512}',1793534400005,1793534400005,NULL,'','');
INSERT INTO sandboxes VALUES('sbx01kdefmzr6d3m2qyqs5xhsnc4g',NULL,'host','','','ended','ended','done',0,0,0,0,'','[]',0,'{"cpus":0,"memory_mib":0,"disk_mib":0,"pids":0}',1793534401005,NULL,1793534400005,'','');
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
, caller TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO audit VALUES(1,1793534400005,'network.name','example.org','denied','run01kdefmzr5v3m2qyqs5xhsnc4f','sbx01kdefmzr6d3m2qyqs5xhsnc4f','1','it''s not allowed','{"a":"é"}',5,'','e3bc1fc3364b8c2e69406063ff21e88b20172eb74338cce8f819ce2ba7b0760b','');
INSERT INTO audit VALUES(2,1793534401005,'secret.use','TOKEN','allowed','run01kdefmzr5v3m2qyqs5xhsnc4f','','','','',1,'e3bc1fc3364b8c2e69406063ff21e88b20172eb74338cce8f819ce2ba7b0760b','ceb8f891b73581c28e1d7e9e1bfedcef79e52e83b3afa445f83ea1b089f3df05','');
INSERT INTO audit VALUES(3,1793534401005,'network.lost','','unknown','','','','','',1000,'ceb8f891b73581c28e1d7e9e1bfedcef79e52e83b3afa445f83ea1b089f3df05','838d52f5a4185ba645129f47f6acfbe6330fe4a3c3686b12f4ecb2f9e20eaa9e','');
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
, program TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO agents VALUES(1,'agt01kdefmzr5v3m2qyqs5xhsnc4h','eve',replace('be kind\n','\n',char(10)),'["notes/*"]','small',1793534402000,1793534402000,NULL,'');
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
INSERT INTO sessions VALUES(1,'ses01kdefmzr5v3m2qyqs5xhsnc4h','agt01kdefmzr5v3m2qyqs5xhsnc4h','old','',1793534402000,1793534402000,NULL);
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
CREATE TABLE profiles (
    name       TEXT PRIMARY KEY CHECK (name <> ''),
    spec       TEXT NOT NULL CHECK (json_valid(spec)),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;
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
INSERT INTO leases VALUES(1,'lse01kdefmzr5v3m2qyqs5xhsnc4h','OLD','run01kdefmzr5v3m2qyqs5xhsnc4f',0,0,1793534402000,NULL,NULL,'');
CREATE TABLE events (
    seq    INTEGER PRIMARY KEY AUTOINCREMENT,
    time   INTEGER NOT NULL,
    kind   TEXT NOT NULL CHECK (kind <> ''), -- such as task.changed
    object TEXT NOT NULL DEFAULT '',
    run_id TEXT NOT NULL DEFAULT '',
    data   TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(data))
) STRICT;
INSERT INTO events VALUES(1,1796012227156,'agent.created','agt01kdefmzr5v3m2qyqs5xhsnc4h','','{}');
INSERT INTO events VALUES(2,1796012227156,'session.created','ses01kdefmzr5v3m2qyqs5xhsnc4h','','{"agent_id":"agt01kdefmzr5v3m2qyqs5xhsnc4h"}');
INSERT INTO events VALUES(3,1796012227156,'lease.begun','lse01kdefmzr5v3m2qyqs5xhsnc4h','run01kdefmzr5v3m2qyqs5xhsnc4f','{"secret":"OLD"}');
INSERT INTO events VALUES(4,1796031139477,'model_lease.begun','mls01kdefmzr5v3m2qyqs5xhsnc4h','run01kdefmzr5v3m2qyqs5xhsnc4f','{"models":["anthropic/claude-*"],"providers":["anthropic"]}');
INSERT INTO events VALUES(5,1796042028738,'approval.asked','run01kdefmzr5v3m2qyqs5xhsnc4g','run01kdefmzr5v3m2qyqs5xhsnc4g','{"family":"publish","id":"apr01kdefmzr5v3m2qyqs5xhsnc4g","status":"pending","tool":"exec"}');
CREATE TABLE model_leases (
    place       INTEGER PRIMARY KEY,
    id          TEXT NOT NULL UNIQUE,
    hash        TEXT NOT NULL UNIQUE CHECK (length(hash) = 64),
    run_id      TEXT NOT NULL CHECK (run_id <> ''),
    agent_id    TEXT NOT NULL DEFAULT '',
    session_id  TEXT NOT NULL DEFAULT '',
    created_by  TEXT NOT NULL DEFAULT '',
    providers   TEXT NOT NULL CHECK (json_valid(providers)),
    models      TEXT NOT NULL CHECK (json_valid(models)),
    limits      TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(limits)),
    owner_pid   INTEGER NOT NULL DEFAULT 0,
    owner_start INTEGER NOT NULL DEFAULT 0,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    ended_at    INTEGER,
    reason      TEXT NOT NULL DEFAULT ''
) STRICT;
INSERT INTO model_leases VALUES(1,'mls01kdefmzr5v3m2qyqs5xhsnc4h','00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff','run01kdefmzr5v3m2qyqs5xhsnc4f','agt01kdefmzr5v3m2qyqs5xhsnc4h','ses01kdefmzr5v3m2qyqs5xhsnc4h','operator','["anthropic"]','["anthropic/claude-*"]','{"requests":9,"tokens":0,"usd":1.5,"requests_per_minute":0}',0,0,1793534403000,1793538003000,NULL,'');
CREATE TABLE model_usage (
    lease_id    TEXT NOT NULL,
    provider    TEXT NOT NULL,
    model       TEXT NOT NULL,
    hour        INTEGER NOT NULL, -- when it began
    run_id      TEXT NOT NULL,
    agent_id    TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    created_by  TEXT NOT NULL,
    requests    INTEGER NOT NULL CHECK (requests >= 0),
    failed      INTEGER NOT NULL CHECK (failed >= 0),
    unpriced    INTEGER NOT NULL CHECK (unpriced >= 0), -- requests that used something of which no price is known
    input       INTEGER NOT NULL CHECK (input >= 0),
    output      INTEGER NOT NULL CHECK (output >= 0),
    cache_read  INTEGER NOT NULL CHECK (cache_read >= 0),
    cache_write INTEGER NOT NULL CHECK (cache_write >= 0),
    micro_usd   INTEGER NOT NULL CHECK (micro_usd >= 0),
    first_at    INTEGER NOT NULL,
    last_at     INTEGER NOT NULL,
    PRIMARY KEY (lease_id, provider, model, hour)
) STRICT;
INSERT INTO model_usage VALUES('mls01kdefmzr5v3m2qyqs5xhsnc4h','anthropic','claude-1',1796029200000,'run01kdefmzr5v3m2qyqs5xhsnc4f','agt01kdefmzr5v3m2qyqs5xhsnc4h','ses01kdefmzr5v3m2qyqs5xhsnc4h','operator',1,0,1,2,0,0,0,0,1796031139477,1796031139477);
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
INSERT INTO approvals VALUES(1,'apr01kdefmzr5v3m2qyqs5xhsnc4g','run01kdefmzr5v3m2qyqs5xhsnc4g','','','exec','9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08','git push ''it''','publish','it''s "so"','pending',1793534400000,1793535000000,NULL,'','',NULL,'');
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('goose_db_version',6);
INSERT INTO sqlite_sequence VALUES('audit',3);
INSERT INTO sqlite_sequence VALUES('events',5);
CREATE INDEX runs_sandbox ON runs (sandbox_id);
CREATE INDEX audit_run ON audit (run_id, seq);
CREATE INDEX audit_time ON audit (time);
CREATE INDEX sessions_agent ON sessions (agent_id);
CREATE INDEX sessions_open ON sessions (closed_at);
CREATE INDEX memory_path ON memory (agent_id, kind, path);
CREATE INDEX memory_holds ON memory (agent_id, kind, path, decided_at) WHERE state = 'approved';
CREATE INDEX memory_pending ON memory (state) WHERE state = 'pending';
CREATE INDEX memory_pending_agent ON memory (agent_id) WHERE state = 'pending';
CREATE INDEX tasks_status ON tasks (status);
CREATE INDEX tasks_agent ON tasks (agent_id);
CREATE INDEX tasks_session ON tasks (session_id);
CREATE INDEX task_comments_task ON task_comments (task_id);
CREATE INDEX keys_parent ON keys (parent_id);
CREATE INDEX keys_run ON keys (run_id);
CREATE INDEX keys_live ON keys (revoked_at);
CREATE INDEX leases_live ON leases (ended_at);
CREATE INDEX leases_run ON leases (run_id);
CREATE UNIQUE INDEX sandboxes_name ON sandboxes (name) WHERE name <> '' AND seen NOT IN ('ended', 'failed');
CREATE INDEX sandboxes_named ON sandboxes (name, created_at);
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
CREATE INDEX audit_caller ON audit (caller, seq);
CREATE TRIGGER audit_at_the_end BEFORE INSERT ON audit
WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM audit)
BEGIN
    SELECT raise(ABORT, 'the audit goes on at its end only');
END;
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit
BEGIN
    SELECT raise(ABORT, 'the audit is never changed');
END;
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit
BEGIN
    SELECT raise(ABORT, 'the audit is never shortened');
END;
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
CREATE TRIGGER keys_no_delete BEFORE DELETE ON keys
BEGIN
    SELECT raise(ABORT, 'keys are revoked, not deleted');
END;
CREATE TRIGGER keys_parent BEFORE INSERT ON keys
WHEN NEW.parent_id <> '' AND NOT EXISTS (SELECT 1 FROM keys WHERE id = NEW.parent_id)
BEGIN
    SELECT raise(ABORT, 'a key has a parent that is there');
END;
CREATE TRIGGER keys_no_replace BEFORE INSERT ON keys
WHEN EXISTS (SELECT 1 FROM keys WHERE id = NEW.id OR hash = NEW.hash OR place = NEW.place)
BEGIN
    SELECT raise(ABORT, 'what a key is never changes');
END;
CREATE INDEX model_leases_live ON model_leases (ended_at);
CREATE INDEX model_leases_run ON model_leases (run_id);
CREATE INDEX model_usage_hour ON model_usage (hour);
CREATE INDEX model_usage_run ON model_usage (run_id, hour);
CREATE INDEX model_usage_session ON model_usage (session_id, hour);
CREATE INDEX model_usage_agent ON model_usage (agent_id, hour);
CREATE INDEX model_usage_creator ON model_usage (created_by, hour);
CREATE INDEX runs_owned ON runs (created_at, id) WHERE owner_pid <> 0;
CREATE INDEX approvals_live ON approvals (ended_at);
CREATE INDEX approvals_run ON approvals (run_id);
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
CREATE TRIGGER approvals_new BEFORE INSERT ON approvals
WHEN NEW.status <> 'pending' OR NEW.decided_at IS NOT NULL OR NEW.ended_at IS NOT NULL
    OR EXISTS (SELECT 1 FROM approvals WHERE id = NEW.id OR place = NEW.place)
BEGIN
    SELECT raise(ABORT, 'an approval begins with being asked for');
END;
COMMIT;
