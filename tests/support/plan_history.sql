-- Record every user's limits with the time from which they apply. A claim is judged by the limits at
-- its own time, and only a trigger in the changing transaction knows that time exactly. A disabled user
-- has the limit 0.
CREATE TABLE plan_history (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    user_id uuid NOT NULL,
    since timestamptz NOT NULL,
    max_active int NOT NULL,
    limit_seconds bigint
);
GRANT SELECT ON plan_history TO PUBLIC;
INSERT INTO plan_history (user_id, since, max_active, limit_seconds)
SELECT id, '-infinity', CASE WHEN disabled_at IS NULL THEN max_concurrent_agents ELSE 0 END,
       monthly_agent_hours_limit * 3600::bigint
  FROM users;

CREATE FUNCTION keep_plan() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
BEGIN
    INSERT INTO plan_history (user_id, since, max_active, limit_seconds)
    VALUES (NEW.id, CASE TG_OP WHEN 'INSERT' THEN '-infinity' ELSE clock() END,
            CASE WHEN NEW.disabled_at IS NULL THEN NEW.max_concurrent_agents ELSE 0 END,
            NEW.monthly_agent_hours_limit * 3600::bigint);
    RETURN NULL;
END
$$;
CREATE TRIGGER users_keep_plan AFTER INSERT OR UPDATE ON users
    FOR EACH ROW EXECUTE FUNCTION keep_plan();
