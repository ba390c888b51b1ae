-- A ledger as schema version 1 wrote it: two data versions, four charges, two releases.
PRAGMA application_id = 1685091185;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE chain (
    link INTEGER PRIMARY KEY, kind TEXT NOT NULL, row INTEGER NOT NULL, head TEXT NOT NULL,
    UNIQUE (kind, row)
) STRICT;
INSERT INTO "chain" VALUES(1,'dataset',1,'5b4453559db87c088b58107d625a4b9bd89b5b126effc37319dd456c429e99fc');
INSERT INTO "chain" VALUES(2,'charge',1,'1e3c4d8a1d3a0afc8d4379ff73472ea1fc15b58d5b570d77e974e8573460754b');
INSERT INTO "chain" VALUES(3,'release',1,'b6ac5d4c1dc37800f5668c45a59af893aafdbc7a3096ee4a20521e71a25de4a5');
INSERT INTO "chain" VALUES(4,'charge',2,'2af8be715b13fe7d5cb65831cd6ce9f975558cb7a5467302b8f73fc009eb0d7f');
INSERT INTO "chain" VALUES(5,'dataset',2,'0c6dc076b76e49143131197f166e6c8f0bd1e118519505675ddf1b9d03310f93');
INSERT INTO "chain" VALUES(6,'charge',3,'db9132ff0e7f88765b9ec446734b40ea6e3e5c8b6ab9132583477e781aa21521');
INSERT INTO "chain" VALUES(7,'release',3,'bc954241fedde17b61c1317fdfe9d87efdd1ac1f7c506ea2f208987b2eb6b2e4');
INSERT INTO "chain" VALUES(8,'charge',4,'012b24b11de157ff38f43d0784a4638ef2fc13d2e93d6829d586365f40ccbb42');
CREATE TABLE charges (
    id INTEGER PRIMARY KEY AUTOINCREMENT, charge TEXT NOT NULL UNIQUE, time TEXT NOT NULL,
    dataset TEXT NOT NULL, label TEXT NOT NULL, purse TEXT NOT NULL REFERENCES purses (name),
    units INTEGER NOT NULL CHECK (units > 0), cost TEXT NOT NULL, description TEXT NOT NULL
) STRICT;
INSERT INTO "charges" VALUES(1,'first','2026-11-21T15:20:16.667+00:00','rand-1','ann','pure',250000000000,'{"epsilon":"1/4","guarantee":"epsilon 0.25 (pure)","noise":"laplace","purse":"pure","units":250000000000}','{"names":["by_state"],"statements":1}');
INSERT INTO "charges" VALUES(2,'second','2026-11-21T15:20:16.722+00:00','rand-1','bob','pure',500000000000,'{"epsilon":"1/2","guarantee":"epsilon 0.5 (pure)","noise":"laplace","purse":"pure","units":500000000000}','{"names":["by_age"]}');
INSERT INTO "charges" VALUES(3,'third','2026-11-21T15:20:16.779+00:00','rand-2','ann','gaussian',33114830490,'{"guarantee":"epsilon 1, delta 1e-9","noise":"gaussian","purse":"gaussian","units":33114830490}','{"names":["by_state","q1"]}');
INSERT INTO "charges" VALUES(4,'fourth','2026-11-21T15:20:16.822+00:00','rand-2','','local',500000000000,'{"epsilon":"1/2","guarantee":"epsilon 0.5 (pure)","noise":"response","purse":"local","units":500000000000}','{"names":["visits"]}');
CREATE TABLE datasets (id INTEGER PRIMARY KEY, time TEXT NOT NULL, dataset TEXT NOT NULL UNIQUE) STRICT;
INSERT INTO "datasets" VALUES(1,'2026-11-21T15:20:16.650+00:00','rand-1');
INSERT INTO "datasets" VALUES(2,'2026-11-21T15:20:16.746+00:00','rand-2');
CREATE TABLE identity (
    one INTEGER PRIMARY KEY CHECK (one = 1), ledger TEXT NOT NULL, budget TEXT NOT NULL, created TEXT NOT NULL
) STRICT;
INSERT INTO "identity" VALUES(1,'a248176abbf9f5880143a6bd4ed1e020','{"delta":"1/1000000000","epsilon":"4","local_epsilon":"2","pure_epsilon":"1"}','2026-11-21T15:20:16.650+00:00');
CREATE TABLE purses (
    name TEXT PRIMARY KEY, total INTEGER NOT NULL, spent INTEGER NOT NULL DEFAULT 0,
    CHECK (0 <= spent AND spent <= total)
) STRICT;
INSERT INTO "purses" VALUES('pure',1000000000000,750000000000);
INSERT INTO "purses" VALUES('gaussian',264685827628,33114830490);
INSERT INTO "purses" VALUES('local',2000000000000,500000000000);
CREATE TABLE releases (
    id INTEGER PRIMARY KEY REFERENCES charges (id), time TEXT NOT NULL, payload BLOB NOT NULL,
    digest TEXT NOT NULL
) STRICT;
INSERT INTO "releases" VALUES(1,'2026-11-21T15:20:16.706+00:00',X'746865206669727374206E6F697379206D6561737572656D656E74','b48713748dec5e1ed8c2701f8fd1eee8f38427d2f51a37c1858df2570f319998');
INSERT INTO "releases" VALUES(3,'2026-11-21T15:20:16.801+00:00',X'746865207468697264','1882236e7d471ec1536a657c3193f034aef596968ddc9c413b1a43e2b8c1cea4');
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('charges',4);
COMMIT;
