-- A ledger as schema version 7 wrote it, the last without periods: two charges of a quarter, one release.
PRAGMA application_id = 1685091185;
PRAGMA user_version = 7;
BEGIN TRANSACTION;
CREATE TABLE analysts (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, name TEXT NOT NULL, terms TEXT NOT NULL
) STRICT;
CREATE TABLE answers (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, dataset TEXT NOT NULL, label TEXT NOT NULL,
    description TEXT NOT NULL, payload BLOB NOT NULL, digest TEXT NOT NULL
) STRICT;
CREATE TABLE chain (
    link INTEGER PRIMARY KEY, kind TEXT NOT NULL, row INTEGER NOT NULL, head TEXT NOT NULL,
    UNIQUE (kind, row)
) STRICT;
INSERT INTO "chain" VALUES(1,'dataset',1,'b75e485dbc26c017f8c0172779b05f9d315107291a402899e51d66e8e2850bab');
INSERT INTO "chain" VALUES(2,'charge',1,'6a4824883cf29073acc4dd70893fa41c8bfae96072ccd30e39c1438411466276');
INSERT INTO "chain" VALUES(3,'release',1,'816738a4e6fecdd5d992ae7f53824dd5683a5c6c2c529f690beb32cd030e1c51');
INSERT INTO "chain" VALUES(4,'charge',2,'f1d29106210baf6c4f3cc29c6b8cfc0a646e681a6932b2e281114c8151175c1c');
CREATE TABLE charges (
    id INTEGER PRIMARY KEY AUTOINCREMENT, charge TEXT NOT NULL UNIQUE, time TEXT NOT NULL,
    dataset TEXT NOT NULL, label TEXT NOT NULL, purse TEXT NOT NULL REFERENCES purses (name),
    units INTEGER NOT NULL CHECK (units > 0), cost TEXT NOT NULL, description TEXT NOT NULL
) STRICT;
INSERT INTO "charges" VALUES(1,'first','2026-11-26T13:59:21.993+00:00','rand-1','ann','pure',250000000000,'{"epsilon":"1/4","guarantee":"epsilon 0.25 (pure)","noise":"laplace","purse":"pure","units":250000000000}','{"names":["by_state"]}');
INSERT INTO "charges" VALUES(2,'second','2026-11-26T13:59:22.091+00:00','rand-1','bob','pure',250000000000,'{"epsilon":"1/4","guarantee":"epsilon 0.25 (pure)","noise":"laplace","purse":"pure","units":250000000000}','{"names":["n"]}');
CREATE TABLE datasets (id INTEGER PRIMARY KEY, time TEXT NOT NULL, dataset TEXT NOT NULL UNIQUE) STRICT;
INSERT INTO "datasets" VALUES(1,'2026-11-26T13:59:21.969+00:00','rand-1');
CREATE TABLE events (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, number INTEGER NOT NULL, details TEXT NOT NULL
) STRICT;
CREATE TABLE files (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, dataset TEXT NOT NULL, place TEXT NOT NULL, salt TEXT NOT NULL,
    mark TEXT NOT NULL
) STRICT;
CREATE TABLE identity (
    one INTEGER PRIMARY KEY CHECK (one = 1), ledger TEXT NOT NULL, budget TEXT NOT NULL, created TEXT NOT NULL
) STRICT;
INSERT INTO "identity" VALUES(1,'f061736bbbc472690ec102dfb4a0c402','{"delta":"1/1000000000","epsilon":"4","local_epsilon":"2","pure_epsilon":"1"}','2026-11-26T13:59:21.969+00:00');
CREATE TABLE purses (
    name TEXT PRIMARY KEY, total INTEGER NOT NULL, spent INTEGER NOT NULL DEFAULT 0,
    CHECK (0 <= spent AND spent <= total)
) STRICT;
INSERT INTO "purses" VALUES('pure',1000000000000,500000000000);
INSERT INTO "purses" VALUES('gaussian',264685827628,0);
INSERT INTO "purses" VALUES('local',2000000000000,0);
CREATE TABLE releases (
    id INTEGER PRIMARY KEY REFERENCES charges (id), time TEXT NOT NULL, payload BLOB NOT NULL,
    digest TEXT NOT NULL
) STRICT;
INSERT INTO "releases" VALUES(1,'2026-11-26T13:59:22.027+00:00',X'746865206669727374206E6F697379206D6561737572656D656E74','b48713748dec5e1ed8c2701f8fd1eee8f38427d2f51a37c1858df2570f319998');
CREATE TABLE requests (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, request INTEGER NOT NULL, state TEXT NOT NULL, body TEXT NOT NULL
) STRICT;
CREATE TABLE upgrades (id INTEGER PRIMARY KEY, time TEXT NOT NULL, version INTEGER NOT NULL) STRICT;
CREATE TABLE views (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, release INTEGER NOT NULL, names TEXT NOT NULL
) STRICT;
CREATE TRIGGER identity_no_update BEFORE UPDATE ON identity BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER identity_no_delete BEFORE DELETE ON identity BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER datasets_no_update BEFORE UPDATE ON datasets BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER datasets_no_delete BEFORE DELETE ON datasets BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER charges_no_update BEFORE UPDATE ON charges BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER charges_no_delete BEFORE DELETE ON charges BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER releases_no_update BEFORE UPDATE ON releases BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER releases_no_delete BEFORE DELETE ON releases BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER chain_no_update BEFORE UPDATE ON chain BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER chain_no_delete BEFORE DELETE ON chain BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER upgrades_no_update BEFORE UPDATE ON upgrades BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER upgrades_no_delete BEFORE DELETE ON upgrades BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER purses_no_refund BEFORE UPDATE ON purses WHEN NEW.spent < OLD.spent OR NEW.total <> OLD.total OR NEW.name <> OLD.name BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER purses_no_delete BEFORE DELETE ON purses BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER answers_no_update BEFORE UPDATE ON answers BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER answers_no_delete BEFORE DELETE ON answers BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER views_no_update BEFORE UPDATE ON views BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER views_no_delete BEFORE DELETE ON views BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER files_no_update BEFORE UPDATE ON files BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER files_no_delete BEFORE DELETE ON files BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER events_no_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER events_no_delete BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER analysts_no_update BEFORE UPDATE ON analysts BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER analysts_no_delete BEFORE DELETE ON analysts BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER requests_no_update BEFORE UPDATE ON requests BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER requests_no_delete BEFORE DELETE ON requests BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('charges',2);
COMMIT;
