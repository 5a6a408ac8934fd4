-- A user's limits and usage under the names of the plan's documents. The hours used are read
-- from the lane, so there is no second copy that could disagree.
CREATE VIEW user_limits AS
SELECT u.id AS user_id,
       u.name,
       u.plan_tier,
       u.max_concurrent_agents,
       u.max_task_duration_minutes,
       u.monthly_agent_hours_limit,
       round(l.used_seconds / 3600, 4) AS monthly_agent_hours_used,
       l.resets_at AS billing_cycle_reset_at
  FROM users u
  JOIN lanes l ON l.user_id = u.id;
