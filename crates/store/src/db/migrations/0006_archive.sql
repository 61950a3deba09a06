-- How far records have left the database for the history archive (db/archive.rs): the chain goes on from this checksum.
CREATE TABLE archived (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    sequence INTEGER NOT NULL,
    checksum BLOB    NOT NULL
) STRICT;
