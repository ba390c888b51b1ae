-- A ledger as schema version 6 wrote it: an analyst, two charges, a release, a free answer, a new name, a marked file.
PRAGMA application_id = 1685091185;
PRAGMA user_version = 6;
BEGIN TRANSACTION;
CREATE TABLE analysts (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, name TEXT NOT NULL, terms TEXT NOT NULL
) STRICT;
INSERT INTO "analysts" VALUES(1,'2026-11-25T00:45:03.688+00:00','ann','{"budget":{"delta":"1/1000000000","epsilon":"1","max_epsilon":"3/10","pure_epsilon":"1/2"},"expires":null,"removed":false,"suspended":false,"tables":["visits"]}');
INSERT INTO "analysts" VALUES(2,'2026-11-25T00:45:03.745+00:00','ann','{"budget":{"delta":"1/1000000000","epsilon":"1","max_epsilon":"3/10","pure_epsilon":"1/2"},"expires":null,"removed":false,"suspended":true,"tables":["visits"]}');
CREATE TABLE answers (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, dataset TEXT NOT NULL, label TEXT NOT NULL,
    description TEXT NOT NULL, payload BLOB NOT NULL, digest TEXT NOT NULL
) STRICT;
INSERT INTO "answers" VALUES(2,'2026-11-25T00:45:03.716+00:00','rand-1','bob','{"guarantee":"free, from release 1","names":["q1"]}',X'61206672656520616E73776572','a06ac4c80232a4deeac7b5f0976d92dd348622cd3536fd59f82ea2bcd377b01c');
CREATE TABLE chain (
    link INTEGER PRIMARY KEY, kind TEXT NOT NULL, row INTEGER NOT NULL, head TEXT NOT NULL,
    UNIQUE (kind, row)
) STRICT;
INSERT INTO "chain" VALUES(1,'dataset',1,'0e04333a2c08fcbb14a63897ad6c711fc106a5b61c4189caaca4e945bcb39f3b');
INSERT INTO "chain" VALUES(2,'analyst',1,'58344acb6cecefc0e7b03eef6b0c83f039557b815073039b66525fc6c2a29232');
INSERT INTO "chain" VALUES(3,'charge',1,'d2efaaf866f61097ec047c39aa1029431e89ec9e70ae314ac3b561d6c6e9a99e');
INSERT INTO "chain" VALUES(4,'release',1,'fd7d42709cd6c6c39107dcb1c0889cc8c2c23f25fd04c0236468582718ae057c');
INSERT INTO "chain" VALUES(5,'answer',2,'ed1426d546bdaf455f90851039c5afa856437290633ae383a2a34f87687aebba');
INSERT INTO "chain" VALUES(6,'views',1,'27d4c7bff2df0e0e85417d4ec2d693ec834849811f0194500b07f76f77bffbc8');
INSERT INTO "chain" VALUES(7,'file',1,'af17d2d4ece1beff5e741d0dc69318e48e364369d9a545a5ced35431bd8525b4');
INSERT INTO "chain" VALUES(8,'charge',3,'df8ba60696685a6371e0710b017a7ff42a88c75d184acc75a9c5dfdd39a5880c');
INSERT INTO "chain" VALUES(9,'analyst',2,'c4cb9238d8ccc9e57c54a42c1726b7b47c45bdd24d6e54ce5db66c0bbcfa4492');
CREATE TABLE charges (
    id INTEGER PRIMARY KEY AUTOINCREMENT, charge TEXT NOT NULL UNIQUE, time TEXT NOT NULL,
    dataset TEXT NOT NULL, label TEXT NOT NULL, purse TEXT NOT NULL REFERENCES purses (name),
    units INTEGER NOT NULL CHECK (units > 0), cost TEXT NOT NULL, description TEXT NOT NULL
) STRICT;
INSERT INTO "charges" VALUES(1,'first','2026-11-25T00:45:03.699+00:00','rand-1','ann','pure',250000000000,'{"epsilon":"1/4","guarantee":"epsilon 0.25 (pure)","noise":"laplace","purse":"pure","units":250000000000}','{"names":["by_state"],"tables":["visits"]}');
INSERT INTO "charges" VALUES(3,'second','2026-11-25T00:45:03.733+00:00','rand-1','ann','pure',250000000000,'{"epsilon":"1/4","guarantee":"epsilon 0.25 (pure)","noise":"laplace","purse":"pure","units":250000000000}','{"names":["q1"],"tables":["visits"]}');
CREATE TABLE datasets (id INTEGER PRIMARY KEY, time TEXT NOT NULL, dataset TEXT NOT NULL UNIQUE) STRICT;
INSERT INTO "datasets" VALUES(1,'2026-11-25T00:45:03.667+00:00','rand-1');
CREATE TABLE events (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, number INTEGER NOT NULL, details TEXT NOT NULL
) STRICT;
CREATE TABLE files (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, dataset TEXT NOT NULL, place TEXT NOT NULL, salt TEXT NOT NULL,
    mark TEXT NOT NULL
) STRICT;
INSERT INTO "files" VALUES(1,'2026-11-25T00:45:03.730+00:00','rand-1','visits','1fbea2a2bab382f703f7e68e1f518507','6bac17390b2b17e41ccae3c968419cab5211f73318c2f04a556977d467dd4b9f');
CREATE TABLE identity (
    one INTEGER PRIMARY KEY CHECK (one = 1), ledger TEXT NOT NULL, budget TEXT NOT NULL, created TEXT NOT NULL
) STRICT;
INSERT INTO "identity" VALUES(1,'c646dd274f3fe00253c1803ee7129361','{"delta":"1/1000000000","epsilon":"4","local_epsilon":"2","pure_epsilon":"1"}','2026-11-25T00:45:03.667+00:00');
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
INSERT INTO "releases" VALUES(1,'2026-11-25T00:45:03.707+00:00',X'746865206669727374206E6F697379206D6561737572656D656E74','b48713748dec5e1ed8c2701f8fd1eee8f38427d2f51a37c1858df2570f319998');
CREATE TABLE upgrades (id INTEGER PRIMARY KEY, time TEXT NOT NULL, version INTEGER NOT NULL) STRICT;
CREATE TABLE views (
    id INTEGER PRIMARY KEY, time TEXT NOT NULL, release INTEGER NOT NULL, names TEXT NOT NULL
) STRICT;
INSERT INTO "views" VALUES(1,'2026-11-25T00:45:03.722+00:00',1,'["by_region"]');
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
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('charges',3);
COMMIT;
