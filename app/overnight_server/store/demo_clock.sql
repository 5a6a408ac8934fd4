-- The clock of a demo: an instant that the demo sets, and that stands still or goes on from there.
-- Only `overnight demo` executes this, in a database of its own.
CREATE TABLE demo_clock (at timestamptz NOT NULL, set_at timestamptz NOT NULL, goes_on boolean NOT NULL);
GRANT SELECT ON demo_clock TO PUBLIC;
CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN (SELECT c.at + CASE WHEN c.goes_on THEN statement_timestamp() - c.set_at ELSE interval '0' END FROM public.demo_clock c);
