-- Drop every constraint and unique index except the primary keys, so that tests can insert invalid rows. A fire time may
-- have two rows, too. The findings of the audit keep theirs.
DO $$
DECLARE
    guard record;
BEGIN
    FOR guard IN
        SELECT conrelid::regclass AS place, conname
          FROM pg_constraint
         WHERE connamespace = 'public'::regnamespace AND conislocal
           AND (contype IN ('c', 'u', 'f') OR conname = 'schedule_fires_pkey')
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', guard.place, guard.conname);
    END LOOP;
    FOR guard IN
        SELECT i.indexrelid::regclass AS place
          FROM pg_index i
          JOIN pg_class c ON c.oid = i.indrelid
         WHERE i.indisunique AND NOT i.indisprimary AND c.relname <> 'audit_findings' AND c.relnamespace = 'public'::regnamespace
    LOOP
        EXECUTE format('DROP INDEX %s', guard.place);
    END LOOP;
END
$$
