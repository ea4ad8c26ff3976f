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
) STRICT;
INSERT INTO runs VALUES('run01kdefmzr5v3m2qyqs5xhsnc4f','failed','exit','["sh","-c","it''s\na \"test\""]','/r é','abc','mend ''it''',3,'/d','sbx01kdefmzr6d3m2qyqs5xhsnc4f','{"files":1,"insertions":2,"deletions":3,"bytes":4,"sha256":"x","applies":true}',1793534400005,1793534400005,1793534400005);
INSERT INTO runs VALUES('run01kdefmzr5v3m2qyqs5xhsnc4g','queued','','[]','','','',NULL,'',NULL,NULL,1793534401005,NULL,NULL);
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
) STRICT;
INSERT INTO sandboxes VALUES('sbx01kdefmzr6d3m2qyqs5xhsnc4f','run01kdefmzr5v3m2qyqs5xhsnc4f','gvisor','host','/w','running','creating','',7,-9223372036854775808,8,9,'/s','["/sys/fs/cgroup/x"]',4294967295,'{"cpus":1.5,"memory_mib":2048,"disk_mib":4096,"pids":512}',1793534400005,1793534400005,NULL);
INSERT INTO sandboxes VALUES('sbx01kdefmzr6d3m2qyqs5xhsnc4g',NULL,'host','','','ended','ended','done',0,0,0,0,'','[]',0,'{"cpus":0,"memory_mib":0,"disk_mib":0,"pids":0}',1793534401005,NULL,1793534400005);
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
INSERT INTO audit VALUES(1,1793534400005,'network.name','example.org','denied','run01kdefmzr5v3m2qyqs5xhsnc4f','sbx01kdefmzr6d3m2qyqs5xhsnc4f','1','it''s not allowed','{"a":"é"}',5,'','e3bc1fc3364b8c2e69406063ff21e88b20172eb74338cce8f819ce2ba7b0760b');
INSERT INTO audit VALUES(2,1793534401005,'secret.use','TOKEN','allowed','run01kdefmzr5v3m2qyqs5xhsnc4f','','','','',1,'e3bc1fc3364b8c2e69406063ff21e88b20172eb74338cce8f819ce2ba7b0760b','ceb8f891b73581c28e1d7e9e1bfedcef79e52e83b3afa445f83ea1b089f3df05');
INSERT INTO audit VALUES(3,1793534401005,'network.lost','','unknown','','','','','',1000,'ceb8f891b73581c28e1d7e9e1bfedcef79e52e83b3afa445f83ea1b089f3df05','838d52f5a4185ba645129f47f6acfbe6330fe4a3c3686b12f4ecb2f9e20eaa9e');
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('goose_db_version',3);
INSERT INTO sqlite_sequence VALUES('audit',3);
CREATE INDEX sandboxes_live ON sandboxes (created_at) WHERE seen NOT IN ('ended', 'failed');
CREATE INDEX sandboxes_run ON sandboxes (run_id);
CREATE INDEX runs_sandbox ON runs (sandbox_id);
CREATE INDEX runs_created ON runs (created_at);
CREATE INDEX audit_run ON audit (run_id, seq);
CREATE INDEX audit_time ON audit (time);
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
COMMIT;
