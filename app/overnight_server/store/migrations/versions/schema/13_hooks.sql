-- Events in: webhooks that make tasks, and what became of each delivery.

-- A sender of webhooks and what its events become. `scheme` says how it proves who it is, `header` where, if not in the
-- usual one; until `old_secret_until` the old secret is accepted too. `id_pointer` is where an event names its delivery, if
-- not where the scheme's well-known senders do. An event that meets every condition of `filter`
-- becomes a task, or a graph if `is_graph`, made from `template`. A paused or removed source answers as one that never
-- existed. Rows are never deleted, but a removed source has no secrets.
CREATE TABLE webhook_sources (
    id UUID NOT NULL,
    user_id UUID NOT NULL,
    name TEXT NOT NULL,
    scheme TEXT NOT NULL,
    header TEXT,
    id_pointer TEXT,
    secret TEXT,
    old_secret TEXT,
    old_secret_until TIMESTAMP WITH TIME ZONE,
    filter JSONB DEFAULT '[]' NOT NULL,
    template JSONB NOT NULL,
    is_graph BOOLEAN NOT NULL,
    per_minute INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    paused_at TIMESTAMP WITH TIME ZONE,
    removed_at TIMESTAMP WITH TIME ZONE,
    last_refused_at TIMESTAMP WITH TIME ZONE,
    last_refusal TEXT,
    PRIMARY KEY (id),
    CONSTRAINT webhook_sources_scheme_known CHECK (scheme IN ('github', 'slack', 'standard', 'stripe', 'token')),
    CONSTRAINT webhook_sources_header_where_it_can_differ CHECK (header IS NULL OR scheme IN ('stripe', 'token')),
    CONSTRAINT webhook_sources_id_where_it_can_differ CHECK (id_pointer IS NULL OR scheme <> 'standard'),
    CONSTRAINT webhook_sources_old_secret_ends CHECK ((old_secret IS NULL) = (old_secret_until IS NULL)),
    CONSTRAINT webhook_sources_secret_until_removed CHECK ((secret IS NULL) = (removed_at IS NOT NULL)),
    CONSTRAINT webhook_sources_per_minute_positive CHECK (per_minute > 0),
    CONSTRAINT webhook_sources_refusal_has_time CHECK ((last_refused_at IS NULL) = (last_refusal IS NULL)),
    FOREIGN KEY(user_id) REFERENCES users (id)
)
 WITH (fillfactor = 75);
CREATE UNIQUE INDEX webhook_sources_name ON webhook_sources (user_id, name) WHERE removed_at IS NULL;

-- A request that was proven to come from the sender. `delivery_key` is the same when the sender repeats the request;
-- it is NULL for a sender that names no delivery, and for a replay by a person.
--   accepted  it became the tasks `task_ids`
--   ignored   the filter left it out
--   failed    no task could be made of it; a repetition or a replay tries again
CREATE TABLE received_hooks (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    source_id UUID NOT NULL,
    user_id UUID NOT NULL,
    delivery_key TEXT,
    received_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    headers JSONB NOT NULL,
    body TEXT NOT NULL,
    outcome TEXT NOT NULL,
    reason TEXT,
    dag_id UUID,
    task_ids UUID[] DEFAULT '{}' NOT NULL,
    replay_of BIGINT,
    PRIMARY KEY (id),
    CONSTRAINT received_hooks_once UNIQUE (source_id, delivery_key),
    CONSTRAINT received_hooks_outcome_known CHECK (outcome IN ('accepted', 'failed', 'ignored')),
    CONSTRAINT received_hooks_tasks_exactly_when_accepted CHECK ((outcome = 'accepted') = (dag_id IS NOT NULL)),
    CONSTRAINT received_hooks_failed_with_reason CHECK ((outcome = 'failed') = (reason IS NOT NULL)),
    FOREIGN KEY(source_id) REFERENCES webhook_sources (id)
);
CREATE INDEX received_hooks_source ON received_hooks (source_id, id);
CREATE INDEX received_hooks_rate ON received_hooks (source_id, received_at);
CREATE INDEX received_hooks_age ON received_hooks (received_at);

-- What is needed to check who sent a request, before any user is known. No row for a source that is paused or removed,
-- or whose user is disabled.
CREATE FUNCTION secrets_of_source(of_source uuid)
RETURNS TABLE (user_id uuid, name text, scheme text, header text, id_pointer text, secrets text[], now double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    SELECT s.user_id, s.name, s.scheme, s.header, s.id_pointer,
           CASE WHEN s.old_secret_until > clock() THEN ARRAY[s.secret, s.old_secret] ELSE ARRAY[s.secret] END,
           extract(epoch FROM clock())::double precision
      FROM webhook_sources s
      JOIN users u ON u.id = s.user_id
     WHERE s.id = of_source
       AND s.paused_at IS NULL
       AND s.removed_at IS NULL
       AND u.disabled_at IS NULL
$$;

-- Note why a request was refused, at most once a minute: its owner sees a wrong secret, and a flood of forged requests
-- writes nothing.
CREATE FUNCTION note_refused_hook(of_source uuid, why text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
    UPDATE webhook_sources
       SET last_refused_at = clock(), last_refusal = left(why, 500)
     WHERE id = of_source
       AND (last_refused_at IS NULL OR last_refused_at < clock() - interval '1 minute')
$$;

-- The secret itself is not recorded; the end of the old one shows that it was replaced.
CREATE TRIGGER webhook_sources_audit AFTER UPDATE OF name, header, id_pointer, old_secret_until, filter, template, is_graph, per_minute,
                                                     paused_at, removed_at ON webhook_sources
    FOR EACH ROW EXECUTE FUNCTION audit_change('webhook_source.changed', 'name');
CREATE TRIGGER webhook_sources_audit_new AFTER INSERT ON webhook_sources
    FOR EACH ROW EXECUTE FUNCTION audit_change('webhook_source.added', 'name');
