-- Roles. Six roles hold rights and cannot log in; two logins are members of them. A login selects one
-- role when it connects, so that even a superuser's session has only the rights of that role.
--   overnight_owner       owns every object; migrations run as it
--   overnight_app         the API for the user of a request; row-level security shows only that user's rows
--   overnight_reader      reads the rows of all users and changes nothing; for forecast and explain
--   overnight_admin       operators: users, keys, plans
--   overnight_dispatcher  dispatcher, workers and maintenance
--   overnight_gate        the API for pull agents: registers them and claims tasks for them
--   overnight_api         login of the API: app, reader, admin or gate, never dispatcher or owner
--   overnight_service     login of all other processes: dispatcher only
-- The server's operator sets the passwords of the logins. Without a password nobody can log in.
DO $roles$
DECLARE
    role_name text;
BEGIN
    FOREACH role_name IN ARRAY ARRAY['overnight_owner', 'overnight_app', 'overnight_reader', 'overnight_admin',
                                     'overnight_dispatcher', 'overnight_gate', 'overnight_api', 'overnight_service'] LOOP
        BEGIN
            IF role_name IN ('overnight_api', 'overnight_service') THEN
                EXECUTE format('CREATE ROLE %I LOGIN NOINHERIT', role_name);
            ELSE
                EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
            END IF;
        EXCEPTION
            -- Roles belong to the cluster; the migration of another database may have created them.
            WHEN duplicate_object OR unique_violation THEN NULL;
        END;
        IF role_name NOT IN ('overnight_api', 'overnight_service') AND NOT pg_has_role(current_user, role_name, 'SET') THEN
            EXECUTE format('GRANT %I TO CURRENT_USER', role_name);
        END IF;
    END LOOP;
    EXECUTE 'GRANT overnight_app, overnight_reader, overnight_admin, overnight_gate TO overnight_api';
    EXECUTE 'GRANT overnight_dispatcher TO overnight_service';
    EXECUTE 'GRANT USAGE, CREATE ON SCHEMA public TO overnight_owner';
    EXECUTE 'REVOKE CREATE ON SCHEMA public FROM PUBLIC';
    EXECUTE 'GRANT USAGE ON SCHEMA public TO overnight_app, overnight_reader, overnight_admin, overnight_dispatcher, overnight_gate';
    -- Postgres lets everybody execute a new function. 17_grants.sql says who may execute which.
    EXECUTE 'ALTER DEFAULT PRIVILEGES FOR ROLE overnight_owner REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC';
END
$roles$;
