-- What the jobs of a sweep share, once; a row of jobs has only what is its own.
-- doc is the SweepRecord of model/sweep.rs as JSON, with its own version.
CREATE TABLE sweeps (
    sweep INTEGER PRIMARY KEY,
    doc   TEXT    NOT NULL
) STRICT;
