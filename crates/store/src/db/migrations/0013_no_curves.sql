-- Curves are kept in the series store alone. No released version wrote any rows here.
DROP TABLE samples;
DROP TABLE curves;
