-- Notifications: what users are told about, through which channels, and what became of each message.

-- A way to reach a user. `address` is what people see, `full_address` what the notifier calls: it may hold a secret.
-- `secret` signs messages to a webhook; until `old_secret_until` they are signed with `old_secret` too. `subscribed`
-- holds the kinds of events that the channel is told about. During quiet hours nothing is sent. If more than
-- `digest_after` events of one kind come within `digest_minutes`, they are sent as one message (0: never).
-- `private_allowed`: an operator added it, so it may lead into a private network. The notifier counts `failures` in a
-- row of the receiver, and leaves the channel alone until `blocked_until`; a channel whose receiver said that it is
-- gone is disabled, and told nothing until its user enables it. Rows are never deleted, but a removed channel has neither
-- its secrets nor its full address.
CREATE TABLE notification_channels (
    id UUID DEFAULT gen_random_uuid() NOT NULL,
    user_id UUID NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    address TEXT NOT NULL,
    full_address TEXT NOT NULL,
    secret TEXT,
    old_secret TEXT,
    old_secret_until TIMESTAMP WITH TIME ZONE,
    private_allowed BOOLEAN DEFAULT false NOT NULL,
    subscribed TEXT[] DEFAULT '{}' NOT NULL,
    quiet_zone TEXT,
    quiet_from TIME WITHOUT TIME ZONE,
    quiet_to TIME WITHOUT TIME ZONE,
    digest_after INTEGER DEFAULT 0 NOT NULL,
    digest_minutes INTEGER DEFAULT 10 NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    removed_at TIMESTAMP WITH TIME ZONE,
    disabled_at TIMESTAMP WITH TIME ZONE,
    failures INTEGER DEFAULT 0 NOT NULL,
    blocked_until TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id),
    CONSTRAINT notification_channels_kind_known CHECK (kind IN ('email', 'service', 'slack', 'webhook')),
    CONSTRAINT notification_channels_webhooks_have_secrets CHECK ((kind = 'webhook' AND removed_at IS NULL) = (secret IS NOT NULL)),
    CONSTRAINT notification_channels_old_secret_ends CHECK ((old_secret IS NULL) = (old_secret_until IS NULL)),
    CONSTRAINT notification_channels_quiet_whole_or_none CHECK (num_nonnulls(quiet_zone, quiet_from, quiet_to) IN (0, 3)),
    CONSTRAINT notification_channels_quiet_has_length CHECK (quiet_from <> quiet_to),
    CONSTRAINT notification_channels_digest_in_range CHECK (digest_after >= 0 AND digest_minutes > 0),
    -- It raises an error for a zone that Postgres does not know.
    CONSTRAINT notification_channels_zone_known CHECK (timestamptz 'epoch' AT TIME ZONE quiet_zone IS NOT NULL OR quiet_zone IS NULL),
    FOREIGN KEY(user_id) REFERENCES users (id)
)
 WITH (fillfactor = 75);
CREATE UNIQUE INDEX notification_channels_name ON notification_channels (user_id, name) WHERE removed_at IS NULL;
-- Events that concern the operators look for channels by what they are subscribed to.
CREATE INDEX notification_channels_of_operators ON notification_channels (id)
    WHERE removed_at IS NULL AND subscribed @> '{worker.lost}';

-- The instant after `after` at which it is `at` o'clock in a zone. A time that is skipped when clocks change comes an hour
-- later; one that occurs twice is its second occurrence.
CREATE FUNCTION next_daily(zone text, at time, after timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE
RETURN (SELECT min(instant)
          FROM (SELECT ((after AT TIME ZONE zone)::date + days + at) AT TIME ZONE zone AS instant
                  FROM generate_series(0, 2) days) candidate
         WHERE instant > after);

-- When users get their morning report, in their own time zone; `next_at` is the next time. Without a row a user gets none.
CREATE TABLE report_times (
    user_id UUID NOT NULL,
    zone TEXT NOT NULL,
    at TIME WITHOUT TIME ZONE NOT NULL,
    next_at TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (user_id),
    FOREIGN KEY(user_id) REFERENCES users (id)
)
 WITH (fillfactor = 75);
CREATE INDEX report_times_due ON report_times (next_at);

-- The outbox: an event that a channel was subscribed to, written in the transaction of the event. `subject` names the
-- event among those of its kind, so that an event which is reported twice is told once.
CREATE TABLE notifications (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    user_id UUID NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    task_id UUID,
    dag_id UUID,
    detail JSONB DEFAULT '{}' NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT notifications_once UNIQUE (user_id, kind, subject)
);
CREATE INDEX notifications_at ON notifications (at);

-- One message about a notification to one channel. A channel gets the deliveries of one `thread` (a task, or else a
-- graph) in the order of their ids. A sender that holds a `token` sends until `claimed_until`; then another may send it
-- again. Deliveries with the same `message` were sent as one. `due_at` is when it may be sent, or claimed again; a
-- delivery that waits for an earlier one of its thread is due when that one has ended. After `give_up_at` it is dead.
--   pending    it is sent when it is due
--   sending    a sender has claimed it
--   delivered  the receiver has accepted it
--   dead       it was given up; only a replay sends it again
CREATE TABLE notification_deliveries (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    notification_id BIGINT NOT NULL,
    channel_id UUID NOT NULL,
    user_id UUID NOT NULL,
    kind TEXT NOT NULL,
    thread UUID,
    state TEXT DEFAULT 'pending' NOT NULL,
    attempts INTEGER DEFAULT 0 NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    due_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    give_up_at TIMESTAMP WITH TIME ZONE DEFAULT clock() + interval '3 days' NOT NULL,
    token UUID,
    claimed_until TIMESTAMP WITH TIME ZONE,
    message TEXT,
    ended_at TIMESTAMP WITH TIME ZONE,
    response_status INTEGER,
    error TEXT,
    PRIMARY KEY (id),
    CONSTRAINT notification_deliveries_once UNIQUE (notification_id, channel_id),
    CONSTRAINT notification_deliveries_state_known CHECK (state IN ('dead', 'delivered', 'pending', 'sending')),
    CONSTRAINT notification_deliveries_ended_exactly_when_over CHECK ((ended_at IS NOT NULL) = (state IN ('dead', 'delivered'))),
    CONSTRAINT notification_deliveries_claimed_exactly_when_sending CHECK ((num_nonnulls(token, claimed_until) = 2) = (state = 'sending')),
    FOREIGN KEY(notification_id) REFERENCES notifications (id),
    FOREIGN KEY(channel_id) REFERENCES notification_channels (id)
)
 WITH (fillfactor = 75);
CREATE INDEX notification_deliveries_due ON notification_deliveries (channel_id, due_at, id) WHERE ended_at IS NULL;
CREATE INDEX notification_deliveries_thread ON notification_deliveries (channel_id, thread, id) WHERE ended_at IS NULL;
CREATE INDEX notification_deliveries_sent ON notification_deliveries (channel_id, kind, ended_at) WHERE state = 'delivered';
CREATE INDEX notification_deliveries_ended ON notification_deliveries (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX notification_deliveries_user ON notification_deliveries (user_id, id);
CREATE INDEX notification_deliveries_sending ON notification_deliveries (channel_id) WHERE state = 'sending';
CREATE INDEX notification_deliveries_dead_of_channel ON notification_deliveries (channel_id, id) WHERE state = 'dead';
CREATE INDEX notification_deliveries_tests ON notification_deliveries (channel_id) WHERE kind = 'test' AND ended_at IS NULL;
CREATE INDEX notification_deliveries_given_up ON notification_deliveries (give_up_at) WHERE ended_at IS NULL;

-- Whether a channel is to be left alone now: between two local times of its zone, maybe over midnight.
CREATE FUNCTION is_quiet(zone text, from_time time, to_time time) RETURNS boolean
LANGUAGE sql STABLE
RETURN CASE WHEN zone IS NULL THEN false
            WHEN from_time < to_time THEN (clock() AT TIME ZONE zone)::time >= from_time AND (clock() AT TIME ZONE zone)::time < to_time
            ELSE (clock() AT TIME ZONE zone)::time >= from_time OR (clock() AT TIME ZONE zone)::time < to_time END;

-- Whether the notifier may send to a channel now; a test message is sent at any time.
CREATE FUNCTION may_send(c notification_channels) RETURNS boolean
LANGUAGE sql STABLE
RETURN c.removed_at IS NULL AND c.disabled_at IS NULL
   AND (c.blocked_until IS NULL OR c.blocked_until <= clock())
   AND NOT is_quiet(c.quiet_zone, c.quiet_from, c.quiet_to);

-- A new secret of a webhook: the old one remains until `old_secret_until`. Whoever replaces it may not read it. A removed
-- channel keeps none.
CREATE FUNCTION keep_old_secret() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    NEW.old_secret := CASE WHEN NEW.removed_at IS NULL THEN OLD.secret END;
    RETURN NEW;
END
$$;
CREATE TRIGGER notification_channels_keep_old_secret BEFORE UPDATE OF secret ON notification_channels
    FOR EACH ROW EXECUTE FUNCTION keep_old_secret();

-- Record an event for the channels that are subscribed to its kind, or to one of the kinds `also`; return the number of
-- deliveries. Nothing is written if there is none. Without a user it concerns the operators: each admin who is
-- subscribed is told. The caller's transaction makes the event, so both happen or neither. A repetition of (user,
-- kind, subject) does nothing.
CREATE FUNCTION record_notification(of_user uuid, of_kind text, of_subject text, of_task uuid, of_dag uuid, of_detail jsonb,
                                    also text[] DEFAULT '{}') RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    kinds constant text[] := of_kind || also;
    receivers uuid[];
    deliveries bigint;
BEGIN
    IF of_user IS NOT NULL THEN
        SELECT array_agg(c.id) INTO receivers
          FROM notification_channels c
         WHERE c.user_id = of_user AND c.removed_at IS NULL AND c.disabled_at IS NULL AND c.subscribed && kinds;
    ELSE
        SELECT array_agg(c.id) INTO receivers
          FROM notification_channels c
          JOIN users u ON u.id = c.user_id
         WHERE c.removed_at IS NULL AND c.disabled_at IS NULL
           AND c.subscribed @> '{worker.lost}' AND c.subscribed && kinds
           AND u.is_admin AND u.disabled_at IS NULL;
    END IF;
    IF receivers IS NULL THEN
        RETURN 0;
    END IF;
    WITH receiver AS MATERIALIZED (
        SELECT c.id, c.user_id FROM notification_channels c WHERE c.id = ANY (receivers)
    ), recorded AS (
        INSERT INTO notifications (user_id, kind, subject, task_id, dag_id, detail)
        SELECT DISTINCT user_id, of_kind, of_subject, of_task, of_dag, of_detail FROM receiver ORDER BY user_id
            ON CONFLICT ON CONSTRAINT notifications_once DO NOTHING
        RETURNING id, user_id
    ), sent AS (
        INSERT INTO notification_deliveries (notification_id, channel_id, user_id, kind, thread)
        SELECT n.id, r.id, r.user_id, of_kind, coalesce(of_task, of_dag)
          FROM recorded n
          JOIN receiver r ON r.user_id = n.user_id
         ORDER BY r.id
        RETURNING id
    )
    SELECT count(*) INTO deliveries FROM sent;
    RETURN deliveries;
END
$$;

-- What a notification says of a task; nobody need read the task to understand the message.
CREATE FUNCTION notification_detail(t tasks) RETURNS jsonb
LANGUAGE sql STABLE
RETURN jsonb_strip_nulls(jsonb_build_object('title', left(t.title, 500), 'type', t.type, 'reason', t.failure_reason,
                                            'error', left(t.error, 2000), 'attempts', t.attempts, 'cost_usd', t.cost_usd));

CREATE FUNCTION notify_dead_letters() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'public.dead_letters'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    PERFORM record_notification(n.user_id, CASE WHEN n.poison_pill THEN 'task.poisoned' ELSE 'task.dead_lettered' END,
                                'dead_letter:' || n.id, n.task_id, n.dag_id, notification_detail(t),
                                CASE WHEN n.poison_pill THEN ARRAY['task.dead_lettered'] ELSE '{}' END)
       FROM new_rows n
       JOIN tasks t ON t.id = n.task_id
      -- Dead letters of users without channels cost one look at an index.
      WHERE EXISTS (SELECT 1 FROM notification_channels c WHERE c.user_id = n.user_id AND c.removed_at IS NULL);
    RETURN NULL;
END
$$;
CREATE TRIGGER dead_letters_notify AFTER INSERT ON dead_letters
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION notify_dead_letters();

CREATE FUNCTION notify_dag_end() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'public.dag_events'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    PERFORM record_notification(g.user_id, 'dag.finished', 'event:' || NEW.id, NULL, g.id,
                                jsonb_build_object('title', left(g.title, 500), 'status', NEW.status, 'total', g.total,
                                                   'completed', g.completed, 'dead', g.dead, 'cancelled', g.cancelled,
                                                   'cost_usd', g.spent_usd))
       FROM dags g
      WHERE g.id = NEW.dag_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER dag_events_notify AFTER INSERT ON dag_events
    FOR EACH ROW EXECUTE FUNCTION notify_dag_end();

-- Usage of hours at 50, 80 and 100 %, and tasks that keep failing.
CREATE FUNCTION notify_notices() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'public.notices'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    PERFORM record_notification(NEW.user_id, NEW.kind, NEW.subject, NEW.task_id, NULL, NEW.detail);
    RETURN NULL;
END
$$;
CREATE TRIGGER notices_notify AFTER INSERT ON notices
    FOR EACH ROW EXECUTE FUNCTION notify_notices();

-- A budget has stopped a task. Many tasks may wait for one budget: the subject is the budget with its limit.
CREATE FUNCTION notify_budget() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    IF TG_RELID <> 'public.tasks'::regclass THEN
        PERFORM refuse_trigger(TG_NAME, TG_RELID);
    END IF;
    PERFORM record_notification(NEW.user_id, 'needs_you.budget',
                                CASE NEW.awaits_budget
                                    WHEN 'dag' THEN 'dag:' || NEW.dag_id || ':' || g.budget_ceiling_usd
                                    WHEN 'night' THEN 'night:' || l.night_started_at || ':' || l.night_limit_usd
                                    ELSE 'task:' || NEW.id || ':' || NEW.epoch END,
                                NEW.id, NEW.dag_id, notification_detail(NEW) || jsonb_build_object('budget', NEW.awaits_budget))
       FROM lanes l
       LEFT JOIN dags g ON g.id = NEW.dag_id
      WHERE l.user_id = NEW.user_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_notify_budget AFTER UPDATE OF awaits_budget ON tasks
    FOR EACH ROW WHEN (NEW.awaits_budget IS NOT NULL AND OLD.awaits_budget IS DISTINCT FROM NEW.awaits_budget)
    EXECUTE FUNCTION notify_budget();

-- The secret itself is not recorded; the end of the old one shows that it was replaced.
CREATE TRIGGER notification_channels_audit AFTER UPDATE OF name, address, full_address, old_secret_until, private_allowed, subscribed,
                                                           quiet_zone, quiet_from, quiet_to, digest_after, digest_minutes,
                                                           removed_at, disabled_at ON notification_channels
    FOR EACH ROW EXECUTE FUNCTION audit_change('notification_channel.changed', 'name');
CREATE TRIGGER notification_channels_audit_new AFTER INSERT ON notification_channels
    FOR EACH ROW EXECUTE FUNCTION audit_change('notification_channel.added', 'name');
