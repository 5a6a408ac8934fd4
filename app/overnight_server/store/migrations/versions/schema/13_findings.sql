-- What the audit found: rows that contradict each other.

-- One row for each rule that a row of the database breaks (the `subject`: the id of a task, graph, user, …,
-- or the name of a pool). A finding is reported once: while it is `open` or `accepted`, later passes that see
-- it again add no row.
--   open       it needs a person; it is checked again in every pass
--   accepted   a person has seen it and lets it be; it is not reported again
--   repaired   the audit corrected it when it found it
--   gone       it was open or accepted, and a later pass found the rule kept
CREATE TABLE audit_findings (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    check_name TEXT NOT NULL,
    subject TEXT NOT NULL,
    user_id UUID,
    detail JSONB NOT NULL,
    status TEXT DEFAULT 'open' NOT NULL,
    found_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    checked_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    accepted_by TEXT,
    note TEXT,
    PRIMARY KEY (id),
    CONSTRAINT audit_findings_status_known CHECK (status IN ('accepted', 'gone', 'open', 'repaired')),
    CONSTRAINT audit_findings_ended_exactly_when_over CHECK ((ended_at IS NOT NULL) = (status IN ('gone', 'repaired')))
);
CREATE UNIQUE INDEX audit_findings_once ON audit_findings (check_name, subject) WHERE ended_at IS NULL;
CREATE INDEX audit_findings_to_check ON audit_findings (checked_at) WHERE ended_at IS NULL;
CREATE INDEX audit_findings_ended ON audit_findings (ended_at) WHERE ended_at IS NOT NULL;

CREATE TRIGGER audit_findings_audit_accepted AFTER UPDATE OF status ON audit_findings
    FOR EACH ROW WHEN (OLD.status <> NEW.status AND NEW.status = 'accepted')
    EXECUTE FUNCTION audit_change('finding.accepted', 'id');

-- Where the next pass of the audit continues in each area (NULL: at its start), and when a pass last reached
-- the area's end.
CREATE TABLE audit_positions (
    area TEXT NOT NULL,
    next_id UUID,
    round_ended_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (area)
);

-- Delete findings that ended long ago; return their number. Processes may not delete rows themselves.
CREATE FUNCTION delete_ended_findings(older_than interval, max_rows int) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    WITH gone AS (
        DELETE FROM audit_findings
         WHERE id IN (SELECT id
                        FROM audit_findings
                       WHERE ended_at < clock() - older_than
                       ORDER BY ended_at
                       LIMIT max_rows
                         FOR UPDATE SKIP LOCKED)
        RETURNING id
    )
    SELECT count(*) FROM gone
$$;

-- Make held_locks equal to the locks of a user's active tasks. The caller holds the lane, so no task of the
-- user becomes active or ends meanwhile. A lock that another active task holds is left to that task.
CREATE FUNCTION repair_locks(of_user uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    DELETE FROM held_locks h
     WHERE h.user_id = of_user
       AND NOT EXISTS (SELECT 1 FROM tasks t
                        WHERE t.id = h.task_id AND t.user_id = h.user_id AND is_active(t.state) AND h.key = ANY (t.locks));
    INSERT INTO held_locks (user_id, key, task_id)
    SELECT t.user_id, key, t.id
      FROM tasks t
     CROSS JOIN unnest(t.locks) key
     WHERE t.user_id = of_user AND t.finished_at IS NULL AND is_active(t.state)
     ORDER BY t.id
        ON CONFLICT DO NOTHING;
END
$$;
