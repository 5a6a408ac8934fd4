-- Six plain roles that hold rights, and two that log in. Nobody logs in as one of the six: a login
-- that is a member chooses one when it connects, so even a superuser's session works with no more
-- than the role's rights.
--   overnight_owner       owns every object; migrations run as it
--   overnight_app         what the API may do for the user it serves; sees that user's rows only
--   overnight_reader      looks at everybody's work and changes nothing: forecasts, explanations
--   overnight_admin       what operators may do with users, keys and plans
--   overnight_dispatcher  what dispatcher, workers and maintenance may do
--   overnight_gate        what the API may do for agents outside the deployment: register them, and claim
--   overnight_api         logs in for the API: app, reader, admin or gate, never dispatcher or owner
--   overnight_service     logs in for all other processes: dispatcher only
-- The logins get their passwords from whoever runs the server; without one nobody comes in.
DO $roles$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['overnight_owner', 'overnight_app', 'overnight_reader', 'overnight_admin',
                                  'overnight_dispatcher', 'overnight_gate', 'overnight_api', 'overnight_service'] LOOP
        BEGIN
            IF wanted IN ('overnight_api', 'overnight_service') THEN
                EXECUTE format('CREATE ROLE %I LOGIN NOINHERIT', wanted);
            ELSE
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            END IF;
        EXCEPTION
            -- roles belong to the cluster: another of its databases may have made them
            WHEN duplicate_object OR unique_violation THEN NULL;
        END;
        IF wanted NOT IN ('overnight_api', 'overnight_service') AND NOT pg_has_role(current_user, wanted, 'SET') THEN
            EXECUTE format('GRANT %I TO CURRENT_USER', wanted);
        END IF;
    END LOOP;
    EXECUTE 'GRANT overnight_app, overnight_reader, overnight_admin, overnight_gate TO overnight_api';
    EXECUTE 'GRANT overnight_dispatcher TO overnight_service';
    EXECUTE 'GRANT USAGE, CREATE ON SCHEMA public TO overnight_owner';
    EXECUTE 'GRANT USAGE ON SCHEMA public TO overnight_app, overnight_reader, overnight_admin, overnight_dispatcher, overnight_gate';
END
$roles$;
