-- Three plain roles. Nobody logs in as one: a login role that is a member chooses one when it
-- connects, so even a superuser's session works with no more than the role's rights.
--   overnight_owner       owns every object; migrations run as it
--   overnight_app         what the API may do
--   overnight_dispatcher  what dispatcher, workers and maintenance may do
DO $roles$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['overnight_owner', 'overnight_app', 'overnight_dispatcher'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
        EXCEPTION
            -- roles belong to the cluster: another of its databases may have made them
            WHEN duplicate_object OR unique_violation THEN NULL;
        END;
        IF NOT pg_has_role(current_user, wanted, 'SET') THEN
            EXECUTE format('GRANT %I TO CURRENT_USER', wanted);
        END IF;
    END LOOP;
    EXECUTE 'GRANT USAGE, CREATE ON SCHEMA public TO overnight_owner';
    EXECUTE 'GRANT USAGE ON SCHEMA public TO overnight_app, overnight_dispatcher';
END
$roles$;
