-- Improvement rules: figures of a user's own runs that file a task when they are bad.

-- A rule about the ended tasks of a user in a window, grouped by type, tag or agent; `subject` is the one group that it
-- concerns, NULL for each. If `figure` of at least `min_tasks` tasks is above `threshold`, a task is made from
-- `template`. `problem` says why that last failed. `applied_at` is when it was last looked at: the oldest is next. Rows are
-- never deleted.
CREATE TABLE improvement_rules (
    id UUID NOT NULL,
    user_id UUID NOT NULL,
    name TEXT NOT NULL,
    figure TEXT NOT NULL,
    grouped_by TEXT NOT NULL,
    subject TEXT,
    threshold NUMERIC(18, 6) NOT NULL,
    window_seconds INTEGER NOT NULL,
    min_tasks INTEGER NOT NULL,
    template JSONB NOT NULL,
    created_by TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    removed_at TIMESTAMP WITH TIME ZONE,
    problem TEXT,
    applied_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id),
    CONSTRAINT improvement_rules_figure_known CHECK (figure IN ('cost_usd', 'duration_seconds', 'failure_rate', 'retries')),
    CONSTRAINT improvement_rules_group_known CHECK (grouped_by IN ('agent', 'tag', 'type')),
    CONSTRAINT improvement_rules_bounds_positive CHECK (threshold >= 0 AND window_seconds > 0 AND min_tasks > 0),
    FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE UNIQUE INDEX improvement_rules_name ON improvement_rules (user_id, name) WHERE removed_at IS NULL;

-- A task that a rule has filed about a subject, and the figures at that time. No other is filed until it has ended
-- well or was cancelled.
CREATE TABLE improvement_tasks (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    rule_id UUID NOT NULL,
    user_id UUID NOT NULL,
    subject TEXT NOT NULL,
    task_id UUID NOT NULL,
    evidence JSONB NOT NULL,
    filed_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    PRIMARY KEY (id),
    FOREIGN KEY(rule_id) REFERENCES improvement_rules (id)
);
CREATE INDEX improvement_tasks_age ON improvement_tasks (filed_at);
CREATE INDEX improvement_tasks_rule ON improvement_tasks (rule_id, subject, id);

CREATE TRIGGER improvement_rules_audit AFTER UPDATE OF removed_at ON improvement_rules
    FOR EACH ROW EXECUTE FUNCTION audit_change('improvement_rule.removed', 'name');
CREATE TRIGGER improvement_rules_audit_new AFTER INSERT ON improvement_rules
    FOR EACH ROW EXECUTE FUNCTION audit_change('improvement_rule.added', 'name');
