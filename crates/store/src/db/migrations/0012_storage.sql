-- How much data each folder holds from a time on, until its next row (codec/storage.rs, whose JSON is in entry). Bills are
-- made of these rows, and retention removes none.
CREATE TABLE storage (
    folder          TEXT    NOT NULL,
    from_unix_nanos INTEGER NOT NULL,
    entry           BLOB    NOT NULL,
    sum             BLOB    NOT NULL,
    PRIMARY KEY (folder, from_unix_nanos)
) STRICT, WITHOUT ROWID;
