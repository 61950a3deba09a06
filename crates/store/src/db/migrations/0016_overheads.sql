-- What a device of a node costs beside its price (codec/capacity.rs, whose JSON it is); null if nothing.
ALTER TABLE capacity ADD COLUMN overheads TEXT;
-- Incidents that people looked after: of a job, or of a node (codec/incident.rs, whose JSON is in entry).
-- Bills are made of these rows, and retention removes none.
CREATE TABLE incidents (
    subject         TEXT    NOT NULL,
    at_unix_nanos   INTEGER NOT NULL,
    entry           BLOB    NOT NULL,
    sum             BLOB    NOT NULL,
    PRIMARY KEY (subject, at_unix_nanos)
) STRICT, WITHOUT ROWID;
CREATE INDEX incidents_times ON incidents (at_unix_nanos);
