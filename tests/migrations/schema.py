"""A schema as a set of text lines, so that a failed comparison shows the difference."""

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from overnight_server.store.db import driver_url

COLUMN_TYPES = """
    SELECT c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
           || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
      FROM pg_attribute a
      JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p') AND NOT c.relispartition
     WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relnamespace = 'public'::regnamespace
"""
COLUMNS = """
    SELECT c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
           || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
           || CASE a.attidentity WHEN '' THEN '' ELSE ' identity ' || a.attidentity::text END
           || CASE WHEN d.oid IS NULL THEN ''
                   WHEN a.attgenerated = '' THEN ' default ' || pg_get_expr(d.adbin, d.adrelid)
                   ELSE ' generated ' || pg_get_expr(d.adbin, d.adrelid) END
      FROM pg_attribute a
      JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p') AND NOT c.relispartition
      LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relnamespace = 'public'::regnamespace
"""
CONSTRAINTS = """
    SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)
      FROM pg_constraint
     WHERE connamespace = 'public'::regnamespace
"""
INDEXES = """
    SELECT pg_get_indexdef(i.indexrelid)
      FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
     WHERE c.relnamespace = 'public'::regnamespace AND NOT c.relispartition
"""
STORAGE = """
    SELECT relname || ' ' || coalesce(array_to_string(reloptions, ', '), '')
      FROM pg_class
     WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace
"""
ROUTINES = """
    SELECT pg_get_functiondef(oid) || coalesce(proacl::text, '') FROM pg_proc
     WHERE pronamespace = 'public'::regnamespace
    UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT viewname || definition FROM pg_views WHERE schemaname = 'public'
"""
RIGHTS = """
    SELECT relname || ' ' || pg_get_userbyid(relowner) || ' ' || coalesce(relacl::text, '')
      FROM pg_class
     WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')
"""
EVERYTHING = (COLUMNS, CONSTRAINTS, INDEXES, STORAGE, ROUTINES, RIGHTS)


def lines(url: str, queries: tuple[str, ...] = EVERYTHING) -> set[str]:
    """Return one line per object of a database, without Alembic's own table."""
    engine = create_engine(driver_url(url), poolclass=NullPool)
    with engine.connect() as connection:
        return {
            line
            for query in queries
            for line in connection.execute(text(query)).scalars()
            if line and "alembic_version" not in line
        }
