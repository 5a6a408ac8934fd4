-- name: facts_for_execution
-- What decides how the commands of new tasks run: the user's plan, and the agent profiles that they name.
SELECT u.plan_tier,
       (SELECT jsonb_object_agg(p.name, p.profile)
          FROM agent_profiles p
         WHERE p.name = ANY (CAST(:names AS text[])) AND p.removed_at IS NULL) AS profiles
  FROM users u
 WHERE u.id = :user_id;

-- name: set_agent_profile
-- Add a profile, or replace the one of that name, also a removed one.
INSERT INTO agent_profiles AS p (name, profile)
VALUES (:name, CAST(:profile AS jsonb))
    ON CONFLICT (name) DO UPDATE SET profile = excluded.profile, updated_at = clock(), removed_at = NULL;

-- name: remove_agent_profile
UPDATE agent_profiles
   SET removed_at = clock(), updated_at = clock()
 WHERE name = :name AND removed_at IS NULL
RETURNING name;

-- name: view_agent_profiles (not prepared)
SELECT name, profile, updated_at
  FROM agent_profiles
 WHERE removed_at IS NULL
   AND (CAST(:name AS text) IS NULL OR name = CAST(:name AS text))
 ORDER BY name;

-- name: note_external_run
-- Record where a run is executed, before it begins. A holder that lost the claim matches no row.
UPDATE attempts a
   SET external_id = :external_id, sandbox = CAST(:sandbox AS text)
  FROM (SELECT id, epoch
          FROM tasks
         WHERE id = :task_id
           AND epoch = :epoch
           AND token = :token
           AND state IN ('running', 'validating')
           FOR NO KEY UPDATE) t
 WHERE a.task_id = t.id AND a.epoch = t.epoch
RETURNING a.epoch;
