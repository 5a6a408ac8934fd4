-- Schedules: tasks and graphs that are submitted at fire times, and what became of each fire time.

-- When and what a user wants to be submitted. Exactly one of `cron`, `every_seconds` (counted from `anchor_at`) and
-- `once_at` gives the fire times; `said` is what the user wrote. `task` or `graph` is the request, with templates that
-- are filled in at each fire time. `edition` grows with each change by a person.
-- The fire times before `next_fire_at` have rows in schedule_fires. `next_fire_at` is due at `next_due_at`, which is
-- later by its jitter; both are NULL after the last fire time. After an unexpected error, `error` says which, and the
-- schedule is tried again some time after `failed_at`. Rows are never deleted.
CREATE TABLE schedules (
    id UUID NOT NULL,
    user_id UUID NOT NULL,
    name TEXT NOT NULL,
    said TEXT NOT NULL,
    cron TEXT,
    every_seconds INTEGER,
    anchor_at TIMESTAMP WITH TIME ZONE,
    once_at TIMESTAMP WITH TIME ZONE,
    zone TEXT NOT NULL,
    starts_at TIMESTAMP WITH TIME ZONE,
    ends_at TIMESTAMP WITH TIME ZONE,
    jitter_seconds INTEGER DEFAULT 0 NOT NULL,
    overlap TEXT NOT NULL,
    catch_up TEXT NOT NULL,
    catch_up_limit INTEGER NOT NULL,
    task JSONB,
    graph JSONB,
    created_by TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    edition INTEGER DEFAULT 1 NOT NULL,
    paused_at TIMESTAMP WITH TIME ZONE,
    deleted_at TIMESTAMP WITH TIME ZONE,
    next_fire_at TIMESTAMP WITH TIME ZONE,
    next_due_at TIMESTAMP WITH TIME ZONE,
    failed_at TIMESTAMP WITH TIME ZONE,
    error TEXT,
    PRIMARY KEY (id),
    CONSTRAINT schedules_one_kind_of_timing CHECK (num_nonnulls(cron, every_seconds, once_at) = 1),
    CONSTRAINT schedules_intervals_have_anchors CHECK ((every_seconds IS NULL) = (anchor_at IS NULL)),
    CONSTRAINT schedules_interval_positive CHECK (every_seconds > 0),
    CONSTRAINT schedules_jitter_not_negative CHECK (jitter_seconds >= 0),
    CONSTRAINT schedules_overlap_known CHECK (overlap IN ('cancel', 'queue', 'skip')),
    CONSTRAINT schedules_catch_up_known CHECK (catch_up IN ('all', 'last', 'none')),
    CONSTRAINT schedules_catch_up_limit_positive CHECK (catch_up_limit > 0),
    CONSTRAINT schedules_one_template CHECK (num_nonnulls(task, graph) = 1),
    CONSTRAINT schedules_next_whole_or_none CHECK ((next_fire_at IS NULL) = (next_due_at IS NULL)),
    CONSTRAINT schedules_error_has_instant CHECK ((failed_at IS NULL) = (error IS NULL)),
    FOREIGN KEY(user_id) REFERENCES users (id)
)
 WITH (fillfactor = 75);
CREATE UNIQUE INDEX schedules_name ON schedules (user_id, name) WHERE deleted_at IS NULL;
CREATE INDEX schedules_due ON schedules (next_due_at) WHERE next_due_at IS NOT NULL AND deleted_at IS NULL;

-- What became of a fire time. The key makes any number of sweeps harmless: whoever inserts the row decides, in the
-- transaction that submits.
--   waiting                it waits for the run before
--   queued                 it was submitted, as the task or graph `dag_id`
--   skipped_queue_full     the limit of waiting tasks of the user or of the deployment was reached
--   skipped_monthly_limit  the hours of the billing month were used up
--   skipped_overlap        the run before was not over
--   skipped_paused         the schedule was paused
--   skipped_missed         nothing looked at schedules when it was due, and the catch-up policy leaves it out
--   cancelled              it waited when the schedule was deleted
--   failed                 what it would have submitted is not valid any more; `reason` says why
-- A backfill repeats a fire time that was skipped, cancelled or failed. `is_open`: what was submitted had not ended when
-- somebody last looked.
CREATE TABLE schedule_fires (
    schedule_id UUID NOT NULL,
    fire_at TIMESTAMP WITH TIME ZONE NOT NULL,
    user_id UUID NOT NULL,
    kind TEXT NOT NULL,
    status TEXT DEFAULT 'waiting' NOT NULL,
    reason TEXT,
    task_id UUID,
    dag_id UUID,
    is_open BOOLEAN DEFAULT false NOT NULL,
    request_key TEXT,
    decided_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    PRIMARY KEY (schedule_id, fire_at),
    CONSTRAINT schedule_fires_kind_known CHECK (kind IN ('backfill', 'manual', 'scheduled')),
    CONSTRAINT schedule_fires_status_known CHECK (status IN ('cancelled', 'failed', 'queued', 'skipped_missed', 'skipped_monthly_limit',
                                                             'skipped_overlap', 'skipped_paused', 'skipped_queue_full', 'waiting')),
    CONSTRAINT schedule_fires_graph_exactly_when_queued CHECK ((dag_id IS NOT NULL) = (status = 'queued')),
    CONSTRAINT schedule_fires_task_is_lone CHECK (task_id = dag_id),
    CONSTRAINT schedule_fires_open_only_when_queued CHECK (status = 'queued' OR NOT is_open),
    CONSTRAINT schedule_fires_failed_with_reason CHECK (status <> 'failed' OR reason IS NOT NULL),
    FOREIGN KEY(schedule_id) REFERENCES schedules (id)
)
 WITH (fillfactor = 75);
CREATE INDEX schedule_fires_open ON schedule_fires (schedule_id) WHERE is_open;
CREATE INDEX schedule_fires_waiting ON schedule_fires (schedule_id, fire_at) WHERE status = 'waiting';
CREATE UNIQUE INDEX schedule_fires_request ON schedule_fires (schedule_id, request_key) WHERE request_key IS NOT NULL;
CREATE INDEX schedule_fires_decided ON schedule_fires (decided_at);
CREATE UNIQUE INDEX schedule_fires_graph ON schedule_fires (dag_id) WHERE dag_id IS NOT NULL;

-- Every change by a person sets the edition; a sweep does not.
CREATE TRIGGER schedules_audit AFTER UPDATE OF edition ON schedules
    FOR EACH ROW EXECUTE FUNCTION audit_change('schedule.changed', 'name');
CREATE TRIGGER schedules_audit_new AFTER INSERT ON schedules
    FOR EACH ROW EXECUTE FUNCTION audit_change('schedule.added', 'name');
