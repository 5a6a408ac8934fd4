-- The rights of Overnight's roles, as the catalog shows them, and as this schema gave them. Roles belong to the
-- cluster and are not in a dump: a dump that is restored before the roles exist has all tables, but lacks their
-- grants, policies and owners. Partitions come and go, and need none: they are used through their table.
-- `overnight migrate` and every process that starts compare the two.
CREATE FUNCTION granted_rights() RETURNS TABLE (granted text)
LANGUAGE sql STABLE
AS $$
SELECT format('%s on %s for %s', acl.privilege_type, c.relname, r.rolname) AS granted
  FROM pg_class c
 CROSS JOIN LATERAL aclexplode(c.relacl) acl
  JOIN pg_roles r ON r.oid = acl.grantee AND r.oid <> c.relowner
 WHERE c.relnamespace = 'public'::regnamespace
UNION ALL
SELECT format('%s on %s (%s) for %s', acl.privilege_type, c.relname, a.attname, r.rolname)
  FROM pg_attribute a
  JOIN pg_class c ON c.oid = a.attrelid AND c.relnamespace = 'public'::regnamespace
 CROSS JOIN LATERAL aclexplode(a.attacl) acl
  JOIN pg_roles r ON r.oid = acl.grantee
UNION ALL
SELECT format('%s on %s for %s', acl.privilege_type, f.oid::regprocedure, r.rolname)
  FROM pg_proc f
 CROSS JOIN LATERAL aclexplode(f.proacl) acl
  JOIN pg_roles r ON r.oid = acl.grantee AND r.oid <> f.proowner
 WHERE f.pronamespace = 'public'::regnamespace
UNION ALL
SELECT format('policy %s on %s for %s', p.polname, c.relname, coalesce(r.rolname, 'everybody'))
  FROM pg_policy p
  JOIN pg_class c ON c.oid = p.polrelid
 CROSS JOIN LATERAL unnest(p.polroles) AS member(oid)
  LEFT JOIN pg_roles r ON r.oid = member.oid
UNION ALL
SELECT format('row-level security on %s', c.relname)
  FROM pg_class c
 WHERE c.relnamespace = 'public'::regnamespace AND c.relrowsecurity AND c.relforcerowsecurity
UNION ALL
SELECT format('%s as owner of %s', r.rolname, c.relname)
  FROM pg_class c
  JOIN pg_roles r ON r.oid = c.relowner
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S') AND NOT c.relispartition
UNION ALL
SELECT format('%s as owner of %s', r.rolname, f.oid::regprocedure)
  FROM pg_proc f
  JOIN pg_roles r ON r.oid = f.proowner
 WHERE f.pronamespace = 'public'::regnamespace AND f.prosecdef
$$;

CREATE TABLE expected_rights (
    granted TEXT NOT NULL,
    PRIMARY KEY (granted)
);
INSERT INTO expected_rights SELECT DISTINCT granted FROM granted_rights() WHERE granted ~ '\movernight_' OR granted LIKE 'row-level security %';
-- The logins compare them before they choose a role.
GRANT SELECT ON expected_rights TO overnight_api, overnight_service;
GRANT EXECUTE ON FUNCTION granted_rights TO overnight_api, overnight_service;
