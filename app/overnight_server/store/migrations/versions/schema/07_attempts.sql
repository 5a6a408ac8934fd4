-- What happened to claims: attempts, results that came too late, dead letters, artifacts and logs.
--
-- Attempts, ledger and events have no foreign key to tasks: they are written only by statements and
-- triggers that hold the task's row. A foreign key would lock the task's row once more with every write, and
-- search these tables once more for each task that retention deletes.

-- One claim of a task. `spent` says whether it counts against max_attempts. Rows are inserted in the order
-- of their claims, so a BRIN index on claimed_at is enough for reports about a period. `external_id` names a
-- run outside of the worker's process, written before it begins; `sandbox` says what encloses it. `validator` is
-- the method that rejected the output; `rejected` is that output with its summary and its changed files, kept for the
-- latest rejection of a task only.
CREATE TABLE attempts (
    task_id UUID NOT NULL,
    epoch INTEGER NOT NULL,
    user_id UUID NOT NULL,
    token UUID NOT NULL,
    pool TEXT NOT NULL,
    agent TEXT NOT NULL,
    bundle UUID,
    granted_seconds INTEGER NOT NULL,
    claimed_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    outcome TEXT,
    spent BOOLEAN DEFAULT false NOT NULL,
    error_class TEXT,
    error TEXT,
    detail TEXT,
    cost_usd NUMERIC(18, 6) DEFAULT 0 NOT NULL,
    tokens_used JSONB DEFAULT '{}' NOT NULL,
    external_id TEXT,
    sandbox TEXT,
    validator TEXT,
    rejected JSONB,
    PRIMARY KEY (task_id, epoch),
    CONSTRAINT attempts_outcome_exactly_when_ended CHECK ((ended_at IS NULL) = (outcome IS NULL))
)
 WITH (fillfactor = 80);
CREATE INDEX attempts_claimed ON attempts USING brin (claimed_at);
-- For the history of a task and the report of a night: which of a user's runs overlap a time.
CREATE INDEX attempts_user ON attempts (user_id, claimed_at);

-- Results from holders that had lost their claim; kept for inspection and never applied.
CREATE TABLE stale_results (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    task_id UUID NOT NULL,
    epoch INTEGER NOT NULL,
    agent TEXT NOT NULL,
    outcome TEXT NOT NULL,
    result JSONB NOT NULL,
    recorded_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    PRIMARY KEY (id)
);
CREATE UNIQUE INDEX stale_results_claim ON stale_results (task_id, epoch);
CREATE INDEX stale_results_recorded ON stale_results (recorded_at);

-- A task that failed for good, with all its attempts, until a person resolves it. `fingerprint` is equal for failures of
-- the same kind (error_fingerprint); it is kept here so that groups are counted without reading their tasks.
CREATE TABLE dead_letters (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    task_id UUID NOT NULL,
    dag_id UUID NOT NULL,
    user_id UUID NOT NULL,
    fingerprint TEXT NOT NULL,
    failure_history JSONB NOT NULL,
    total_cost_usd NUMERIC(18, 6) NOT NULL,
    poison_pill BOOLEAN DEFAULT false NOT NULL,
    dead_lettered_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    reviewed BOOLEAN DEFAULT false NOT NULL,
    resolution TEXT,
    resolved_at TIMESTAMP WITH TIME ZONE,
    resolved_by TEXT,
    note TEXT,
    PRIMARY KEY (id),
    CONSTRAINT dead_letters_resolution_known CHECK (resolution IN ('cancel', 'modify_and_retry', 'overrule', 'retry')),
    CONSTRAINT dead_letters_resolved_exactly_with_resolution CHECK ((resolution IS NULL) = (resolved_at IS NULL)),
    FOREIGN KEY(task_id) REFERENCES tasks (id),
    FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE UNIQUE INDEX dead_letters_open ON dead_letters (task_id) WHERE resolution IS NULL;
CREATE INDEX dead_letters_task ON dead_letters (task_id);
CREATE INDEX dead_letters_user ON dead_letters (user_id, id);
CREATE INDEX dead_letters_open_of_user ON dead_letters (user_id, id) WHERE resolution IS NULL;
CREATE INDEX dead_letters_open_alike ON dead_letters (user_id, fingerprint, id) WHERE resolution IS NULL;

-- Files and values that a run stored for other tasks or for people, besides its output. A small content is in
-- the row; a large one is in the artifact store, under its SHA-256.
CREATE TABLE artifacts (
    id UUID NOT NULL,
    task_id UUID NOT NULL,
    user_id UUID NOT NULL,
    epoch INTEGER NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    size BIGINT NOT NULL,
    content BYTEA,
    digest TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT artifacts_once UNIQUE (task_id, name),
    CONSTRAINT artifacts_kind_known CHECK (kind IN ('bytes', 'json', 'text')),
    CONSTRAINT artifacts_here_or_in_store CHECK (num_nonnulls(content, digest) = 1),
    FOREIGN KEY(task_id) REFERENCES tasks (id),
    FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE INDEX artifacts_user ON artifacts (user_id, created_at) INCLUDE (size);
CREATE INDEX artifacts_created ON artifacts (created_at);
CREATE INDEX artifacts_digest ON artifacts (digest) WHERE digest IS NOT NULL;

-- Artifacts of a run that has not ended. The settle of that run makes them visible, and so does a task that the run
-- spawns with a reference to one; the artifacts of a run that was lost or handed back are deleted after a day.
-- `artifact_id` is the same for all runs of a task that store under one name: a later run takes over the row.
CREATE TABLE staged_artifacts (
    task_id UUID NOT NULL,
    epoch INTEGER NOT NULL,
    name TEXT NOT NULL,
    artifact_id UUID NOT NULL,
    user_id UUID NOT NULL,
    kind TEXT NOT NULL,
    size BIGINT NOT NULL,
    content BYTEA,
    digest TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    PRIMARY KEY (task_id, name),
    CONSTRAINT staged_artifacts_kind_known CHECK (kind IN ('bytes', 'json', 'text')),
    CONSTRAINT staged_artifacts_here_or_in_store CHECK (num_nonnulls(content, digest) = 1)
);
CREATE INDEX staged_artifacts_digest ON staged_artifacts (digest) WHERE digest IS NOT NULL;
CREATE INDEX staged_artifacts_created ON staged_artifacts (created_at);
CREATE INDEX staged_artifacts_user ON staged_artifacts (user_id) INCLUDE (size);

-- How many artifacts a user has, and their size, visible and staged ones together. A user without artifacts may have
-- no row. It is no part of the lane: a run that stores an artifact would wait there for claims and settles.
CREATE TABLE artifact_usage (
    user_id UUID NOT NULL,
    artifacts BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (user_id)
)
 WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- Add to the usage of a user, and lock it until the transaction ends. Called by the trigger.
CREATE FUNCTION add_artifact_usage(of_user uuid, number bigint, size bigint) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO artifact_usage AS u (user_id, artifacts, bytes) VALUES (of_user, number, size)
        ON CONFLICT (user_id) DO UPDATE
       SET artifacts = u.artifacts + excluded.artifacts, bytes = u.bytes + excluded.bytes
$$;

-- Count artifacts that a statement inserted, changed or deleted, by user id.
CREATE FUNCTION count_artifact_usage() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID NOT IN ('public.artifacts'::regclass, 'public.staged_artifacts'::regclass) THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    IF TG_OP = 'INSERT' THEN
        PERFORM add_artifact_usage(c.user_id, c.number, c.size)
           FROM (SELECT user_id, count(*) AS number, sum(size)::bigint AS size
                   FROM new_rows GROUP BY user_id ORDER BY user_id) c;
    ELSIF TG_OP = 'DELETE' THEN
        PERFORM add_artifact_usage(c.user_id, -c.number, -c.size)
           FROM (SELECT user_id, count(*) AS number, sum(size)::bigint AS size
                   FROM old_rows GROUP BY user_id ORDER BY user_id) c;
    ELSE
        PERFORM add_artifact_usage(c.user_id, 0, c.size)
           FROM (SELECT user_id, sum(size)::bigint AS size
                   FROM (SELECT user_id, size FROM new_rows UNION ALL SELECT user_id, -size FROM old_rows) changed
                  GROUP BY user_id HAVING sum(size) <> 0 ORDER BY user_id) c;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER artifacts_count_new AFTER INSERT ON artifacts
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION count_artifact_usage();
CREATE TRIGGER artifacts_count_changed AFTER UPDATE ON artifacts
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION count_artifact_usage();
CREATE TRIGGER artifacts_count_deleted AFTER DELETE ON artifacts
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION count_artifact_usage();
CREATE TRIGGER staged_artifacts_count_new AFTER INSERT ON staged_artifacts
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION count_artifact_usage();
CREATE TRIGGER staged_artifacts_count_changed AFTER UPDATE ON staged_artifacts
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION count_artifact_usage();
CREATE TRIGGER staged_artifacts_count_deleted AFTER DELETE ON staged_artifacts
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION count_artifact_usage();

-- Recompute the usage of a user, which is locked first: who stores or promotes an artifact waits.
CREATE FUNCTION recount_artifact_usage(of_user uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    PERFORM add_artifact_usage(of_user, 0, 0);
    UPDATE artifact_usage u
       SET artifacts = c.number, bytes = c.size
      FROM (SELECT count(*) AS number, coalesce(sum(size), 0) AS size
              FROM (SELECT size FROM artifacts WHERE user_id = of_user
                    UNION ALL
                    SELECT size FROM staged_artifacts WHERE user_id = of_user) a) c
     WHERE u.user_id = of_user;
END
$$;

-- Make artifacts of one run visible, all or those with the given ids; an artifact with the same name is replaced.
-- The caller holds the task's row, under the claim of that run. Processes may not delete rows themselves.
CREATE FUNCTION promote_artifacts(of_task uuid, of_epoch int, only_ids uuid[]) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    WITH moved AS (
        DELETE FROM staged_artifacts
         WHERE task_id = of_task
           AND epoch = of_epoch
           AND (only_ids IS NULL OR artifact_id = ANY (only_ids))
        RETURNING *
    ), promoted AS (
        INSERT INTO artifacts (id, task_id, user_id, epoch, name, kind, size, content, digest, created_at)
        SELECT artifact_id, task_id, user_id, epoch, name, kind, size, content, digest, created_at FROM moved
            ON CONFLICT ON CONSTRAINT artifacts_once DO UPDATE
           SET epoch = excluded.epoch, kind = excluded.kind, size = excluded.size, content = excluded.content,
               digest = excluded.digest, created_at = excluded.created_at
        RETURNING id
    )
    SELECT count(*) FROM promoted
$$;

-- Those of the given blobs that an artifact of any user needs.
CREATE FUNCTION needed_blobs(of_digests text[]) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    SELECT d.digest
      FROM unnest(of_digests) d(digest)
     WHERE EXISTS (SELECT 1 FROM artifacts a WHERE a.digest = d.digest)
        OR EXISTS (SELECT 1 FROM staged_artifacts s WHERE s.digest = d.digest)
$$;

-- Lock a blob until the transaction ends: whoever stores a row for it and whoever deletes it wait for each other.
CREATE FUNCTION lock_blob(of_digest text) RETURNS void
LANGUAGE sql
RETURN pg_advisory_xact_lock(hashtext('blob'), hashtext(of_digest));

-- Delete artifacts of runs that ended without making them visible, of the user with the oldest one; return their
-- number. One user in a transaction: who holds the usage of one user never waits for rows of another.
CREATE FUNCTION delete_stale_artifacts(older_than interval, max_rows int) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    WITH stale AS (
        SELECT s.task_id, s.epoch, s.name, s.user_id
          FROM staged_artifacts s
          LEFT JOIN tasks t ON t.id = s.task_id AND t.epoch = s.epoch AND t.token IS NOT NULL
         WHERE s.created_at < clock() - older_than
           AND t.id IS NULL
         ORDER BY s.created_at
         LIMIT max_rows
    ), gone AS (
        DELETE FROM staged_artifacts s
         USING stale
         WHERE (s.task_id, s.epoch, s.name) = (stale.task_id, stale.epoch, stale.name)
           AND s.user_id = (SELECT user_id FROM stale LIMIT 1)
        RETURNING s.name
    )
    SELECT count(*) FROM gone
$$;

-- Delete artifacts of a user whose tasks ended long ago, but those in `needed`, and return their number. The caller
-- holds the lane, so no new task refers to one of them.
CREATE FUNCTION delete_old_artifacts(of_user uuid, older_than interval, needed uuid[], max_rows int) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    WITH gone AS (
        DELETE FROM artifacts
         WHERE id IN (SELECT a.id
                        FROM artifacts a
                        JOIN tasks t ON t.id = a.task_id
                       WHERE a.user_id = of_user
                         AND a.created_at < clock() - older_than
                         AND t.finished_at < clock() - older_than
                         AND a.id <> ALL (needed)
                       ORDER BY a.created_at
                       LIMIT max_rows)
        RETURNING id
    )
    SELECT count(*) FROM gone
$$;

-- Delete one artifact of a user; return its task and its blob, no row if there is none.
CREATE FUNCTION delete_artifact(of_user uuid, of_artifact uuid) RETURNS TABLE (task_id uuid, digest text)
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    DELETE FROM artifacts a WHERE a.id = of_artifact AND a.user_id = of_user RETURNING a.task_id, a.digest
$$;

-- What a run printed and logged, in chunks of up to 16 KB. The holder of the claim counts `seq`, from 1. Of a run
-- the first 256 KB and the last 768 KB are kept; a row of the stream `cut` stands for what is missing, and its
-- `lines` and `bytes` say how much that is. `is_tail` marks the end of the log of a failed run that is kept longer
-- than other logs. Like attempts, chunks have no foreign key to tasks. Partitioned by the task's id like events:
-- 13_partitions.sql.
CREATE TABLE log_chunks (
    task_id UUID NOT NULL,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    user_id UUID NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    stream TEXT NOT NULL,
    lines BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    text TEXT NOT NULL,
    is_tail BOOLEAN DEFAULT false NOT NULL,
    PRIMARY KEY (task_id, epoch, seq),
    CONSTRAINT log_chunks_stream_known CHECK (stream IN ('stdout', 'stderr', 'log', 'cut'))
)
 PARTITION BY RANGE (task_id);
CREATE TABLE log_chunks_default PARTITION OF log_chunks DEFAULT;
CREATE INDEX log_chunks_at ON log_chunks (at) WHERE NOT is_tail;
CREATE INDEX log_chunks_tail_at ON log_chunks (at) WHERE is_tail;

-- Delete chunks in the middle of the log of a claim that is still held. Processes may not delete rows themselves.
CREATE FUNCTION cut_log(of_task uuid, of_epoch int, of_token uuid, after_seq int, before_seq int) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    WITH gone AS (
        DELETE FROM log_chunks
         WHERE task_id = of_task
           AND epoch = of_epoch
           AND seq > after_seq
           AND seq < before_seq
           AND EXISTS (SELECT 1 FROM tasks t WHERE t.id = of_task AND t.epoch = of_epoch AND t.token = of_token)
        RETURNING seq
    )
    SELECT count(*) FROM gone
$$;

-- Add parts of text to the log of a run of a pull agent, in order; `bytes` and `lines` are those of each part. The answer
-- is 'written', 'lost' if the claim is not held or not started, 'worker' if a worker writes the log itself, or 'full'.
-- Here `seq` is where a chunk ends in the whole output, in bytes: so what lies between the first `head_bytes` and the last
-- `tail_bytes` is found without counting, and becomes one row with the text `cut_text`.
CREATE FUNCTION append_log(of_task uuid, of_epoch int, of_token uuid, stream text, parts jsonb, head_bytes int,
                           tail_bytes int, cut_text text)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    run record;
    size bigint;
    missing record;
BEGIN
    SELECT t.user_id, t.pool LIKE 'pull:%' AS is_pulled INTO run
      FROM tasks t
     WHERE t.id = of_task AND t.epoch = of_epoch AND t.token = of_token AND t.state IN ('running', 'validating')
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'lost';
    ELSIF NOT run.is_pulled THEN
        RETURN 'worker';
    END IF;
    SELECT coalesce(max(c.seq), 0) INTO size FROM log_chunks c WHERE c.task_id = of_task AND c.epoch = of_epoch;
    -- A position has nine digits at most.
    IF size > 990000000 THEN
        RETURN 'full';
    END IF;
    INSERT INTO log_chunks (task_id, epoch, seq, user_id, stream, lines, bytes, text)
    SELECT of_task, of_epoch, size + sum(p.bytes) OVER (ORDER BY p.number), run.user_id, append_log.stream, p.lines,
           p.bytes, p.text
      FROM jsonb_to_recordset(parts) AS p (number int, lines bigint, bytes bigint, text text);
    SELECT max(c.seq) - tail_bytes INTO size FROM log_chunks c WHERE c.task_id = of_task AND c.epoch = of_epoch;
    WITH gone AS (
        DELETE FROM log_chunks c
         WHERE c.task_id = of_task AND c.epoch = of_epoch AND c.seq > head_bytes AND c.seq <= size
        RETURNING c.seq, c.lines, c.bytes
    )
    SELECT max(g.seq) AS seq, sum(g.lines) AS lines, sum(g.bytes) AS bytes INTO missing FROM gone g;
    IF missing.seq IS NOT NULL THEN
        INSERT INTO log_chunks (task_id, epoch, seq, user_id, stream, lines, bytes, text)
        VALUES (of_task, of_epoch, missing.seq, run.user_id, 'cut', missing.lines, missing.bytes,
                replace(replace(cut_text, '{lines}', to_char(missing.lines, 'FM999,999,999,999')),
                        '{bytes}', to_char(missing.bytes, 'FM999,999,999,999')));
    END IF;
    RETURN 'written';
END
$$;

-- The attempts that count against a task since an operator last reset its failures.
CREATE FUNCTION spent_runs(of_task uuid, after_epoch int) RETURNS jsonb
LANGUAGE sql STABLE
RETURN (SELECT jsonb_agg(jsonb_build_object('agent', agent, 'outcome', outcome) ORDER BY epoch)
          FROM attempts
         WHERE task_id = of_task AND spent AND epoch > after_epoch);

-- Whether a task was ever started. Its deadline no longer applies then: it may be retried, and continue after
-- a wait or a shutdown.
CREATE FUNCTION has_started(of_task uuid) RETURNS boolean
LANGUAGE sql STABLE
RETURN EXISTS (SELECT 1 FROM attempts WHERE task_id = of_task AND started_at IS NOT NULL);

-- Why a pending task that has run before waits: for a budget, or for tasks that it spawned.
CREATE FUNCTION wait_reason(task uuid, state text, epoch int, unmet int, awaits_budget text) RETURNS text
LANGUAGE sql STABLE
RETURN CASE WHEN awaits_budget IS NOT NULL THEN 'approval'
            WHEN state = 'pending' AND epoch > 0 AND unmet > 0
                 AND EXISTS (SELECT 1
                               FROM task_edges e
                               JOIN tasks child ON child.id = e.parent_id
                              WHERE e.child_id = task AND e.satisfied_at IS NULL AND child.parent_id = task)
            THEN 'children' END;
