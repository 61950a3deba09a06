-- The journal itself. Times are nanoseconds since the Unix epoch; checksums are chained BLAKE3, see record.rs.
CREATE TABLE records (
    sequence      INTEGER PRIMARY KEY,
    at_unix_nanos INTEGER NOT NULL,
    body          BLOB    NOT NULL,
    checksum      BLOB    NOT NULL
) STRICT;

-- States of the engine, so that a start reads only the records after the newest sound one.
-- record_checksum is that of the record with the same sequence: the chain goes on from there.
CREATE TABLE snapshots (
    sequence        INTEGER PRIMARY KEY,
    body            BLOB NOT NULL,
    record_checksum BLOB NOT NULL,
    checksum        BLOB NOT NULL
) STRICT;

-- Records that a start put aside because they were damaged or followed damage: nothing is deleted.
CREATE TABLE dropped (
    id            INTEGER PRIMARY KEY,
    sequence      INTEGER NOT NULL,
    at_unix_nanos INTEGER NOT NULL,
    body          BLOB    NOT NULL,
    checksum      BLOB    NOT NULL,
    reason        TEXT    NOT NULL
) STRICT;
