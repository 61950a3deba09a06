-- Curves are in the series store alone, which has had every point since it came. No release has left any here.
DROP TABLE samples;
DROP TABLE curves;
