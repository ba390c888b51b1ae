"""The functions and views of PostgreSQL's catalogue as macros and views of DuckDB over the catalogue tables."""

from __future__ import annotations

import re
from functools import cache

import duckdb

from dpsql.common.quoting import string
from dpsql.extensions.server.catalogue.pg_tables import FORMATTED, OWNER, types
from dpsql.extensions.server.protocol.settings import SERVER_VERSION
from dpsql.free_sql.parse import Macro, Macros, parsed, without_places

# name(parameters) of each arity: what it is. Variables hold who asks, and how they call the database.
_MACROS = f"""
version() := 'PostgreSQL {SERVER_VERSION} (dpsql)'
current_database() := getvariable('dp_database')
current_catalog() := getvariable('dp_database')
current_user() := getvariable('dp_user')
session_user() := getvariable('dp_user')
current_role() := getvariable('dp_user')
getpgusername() := getvariable('dp_user')
current_schema() := 'main'
current_schemas(x) := CASE WHEN x THEN ['pg_catalog', 'main', 'dp'] ELSE ['main', 'dp'] END
current_setting(n) := (SELECT setting FROM pg_settings WHERE name = lower(n))
current_setting(n, m) := (SELECT setting FROM pg_settings WHERE name = lower(n))
set_config(n, v, l) := v
pg_backend_pid() := 1
pg_is_in_recovery() := false
pg_postmaster_start_time() := TIMESTAMP '2000-01-01'
pg_get_userbyid(x) := '{OWNER}'
pg_encoding_to_char(x) := 'UTF8'
pg_client_encoding() := 'UTF8'
pg_table_is_visible(x) := (SELECT any_value(relnamespace) FROM pg_class WHERE oid = x) IN (11, 2200, 16383)
pg_type_is_visible(x) := true
pg_function_is_visible(x) := true
pg_operator_is_visible(x) := true
pg_opclass_is_visible(x) := true
pg_collation_is_visible(x) := true
pg_statistics_obj_is_visible(x) := true
pg_ts_config_is_visible(x) := true
pg_get_expr(a, b) := NULL::VARCHAR
pg_get_expr(a, b, c) := NULL::VARCHAR
pg_get_viewdef(a) := ''
pg_get_viewdef(a, b) := ''
pg_get_ruledef(a) := NULL::VARCHAR
pg_get_ruledef(a, b) := NULL::VARCHAR
pg_get_indexdef(a) := NULL::VARCHAR
pg_get_indexdef(a, b, c) := NULL::VARCHAR
pg_get_triggerdef(a) := NULL::VARCHAR
pg_get_triggerdef(a, b) := NULL::VARCHAR
pg_get_functiondef(a) := NULL::VARCHAR
pg_get_function_result(a) := NULL::VARCHAR
pg_get_function_arguments(a) := NULL::VARCHAR
pg_get_function_identity_arguments(a) := NULL::VARCHAR
pg_get_partkeydef(a) := NULL::VARCHAR
pg_get_partition_constraintdef(a) := NULL::VARCHAR
pg_get_statisticsobjdef_columns(a) := NULL::VARCHAR
pg_get_serial_sequence(a, b) := NULL::VARCHAR
pg_get_keywords_word() := NULL::VARCHAR
pg_relation_is_publishable(a) := false
pg_relation_size(a) := 0::BIGINT
pg_relation_size(a, b) := 0::BIGINT
pg_table_size(a) := 0::BIGINT
pg_total_relation_size(a) := 0::BIGINT
pg_indexes_size(a) := 0::BIGINT
pg_database_size(a) := 0::BIGINT
pg_tablespace_size(a) := 0::BIGINT
pg_size_pretty(a) := NULL::VARCHAR
pg_tablespace_location(a) := ''
pg_stat_get_numscans(a) := 0::BIGINT
pg_index_column_has_property(a, b, c) := false
pg_char_to_encoding(a) := 6
age(a) := 0::BIGINT
obj_description(x) := (SELECT any_value(description) FROM pg_description WHERE objoid = x AND objsubid = 0)
obj_description(x, c) := (SELECT any_value(description) FROM pg_description WHERE objoid = x AND objsubid = 0)
shobj_description(x, c) := NULL::VARCHAR
col_description(x, n) := (SELECT any_value(description) FROM pg_description WHERE objoid = x AND objsubid = n AND n > 0)
to_regclass(t) := (SELECT min(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE replace(t, '"', '') IN (c.relname, n.nspname || '.' || c.relname, 'pg_catalog.' || c.relname))
to_regtype(t) := (SELECT min(oid) FROM pg_type WHERE typname = lower(t) OR format_type(oid, NULL) = lower(t))
to_regnamespace(t) := (SELECT min(oid) FROM pg_namespace WHERE nspname = replace(t, '"', ''))
regclass_name(x) := (SELECT any_value(relname) FROM pg_class WHERE oid = x)
regnamespace_name(x) := (SELECT any_value(nspname) FROM pg_namespace WHERE oid = x)
pg_get_constraintdef(x) := (SELECT any_value(constraint_text) FROM constraint_texts WHERE oid = x)
pg_get_constraintdef(x, p) := (SELECT any_value(constraint_text) FROM constraint_texts WHERE oid = x)
has_table_privilege(a, b) := lower(b) = 'select'
has_table_privilege(a, b, c) := lower(c) = 'select'
has_any_column_privilege(a, b) := lower(b) = 'select'
has_any_column_privilege(a, b, c) := lower(c) = 'select'
has_column_privilege(a, b, c) := lower(c) = 'select'
has_column_privilege(a, b, c, d) := lower(d) = 'select'
has_schema_privilege(a, b) := lower(b) = 'usage'
has_schema_privilege(a, b, c) := lower(c) = 'usage'
has_database_privilege(a, b) := lower(b) = 'connect'
has_database_privilege(a, b, c) := lower(c) = 'connect'
has_function_privilege(a, b) := false
has_sequence_privilege(a, b) := false
has_language_privilege(a, b) := false
has_type_privilege(a, b) := true
has_server_privilege(a, b) := false
pg_has_role(a, b) := false
pg_has_role(a, b, c) := false
row_security_active(x) := false
quote_ident(x) := '"' || replace(x, '"', '""') || '"'
quote_literal(x) := '''' || replace(x, '''', '''''') || ''''
array_lower(a, d) := CASE WHEN len(a) > 0 THEN 1 END
array_upper(a, d) := nullif(len(a), 0)
aclexplode(x) := NULL::VARCHAR
acldefault(a, b) := NULL::VARCHAR[]
txid_current() := 1::BIGINT
pg_export_snapshot() := '1'
inet_server_addr() := NULL::VARCHAR
inet_server_port() := NULL::INTEGER
inet_client_addr() := NULL::VARCHAR
inet_client_port() := NULL::INTEGER
pg_conf_load_time() := TIMESTAMP '2000-01-01'
pg_my_temp_schema() := 0
pg_is_other_temp_schema(x) := false
pg_is_wal_replay_paused() := false
pg_get_keywords() := NULL::VARCHAR
info._pg_expandarray(a) := unnest([{{x: a[i], n: i}} for i in range(1, len(a) + 1)])
_pg_char_max_length(a, b) := NULL::INTEGER
_pg_truetypid(a, b) := NULL::INTEGER
"""  # noqa: S608 - constants of this module

_VIEWS = f"""
pg_tables := SELECT n.nspname AS schemaname, c.relname AS tablename, '{OWNER}' AS tableowner,
    NULL::VARCHAR AS tablespace, false AS hasindexes, false AS hasrules, false AS hastriggers, false AS rowsecurity
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r'
pg_views := SELECT n.nspname AS schemaname, c.relname AS viewname, '{OWNER}' AS viewowner, '' AS definition
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'v'
constraint_texts := SELECT c.oid, CASE c.contype WHEN 'p' THEN 'PRIMARY KEY (' || (SELECT string_agg(a.attname, ', '
    ORDER BY list_position(c.conkey, a.attnum)) FROM pg_attribute a WHERE a.attrelid = c.conrelid
    AND list_contains(c.conkey, a.attnum)) || ')' WHEN 'f' THEN 'FOREIGN KEY (' || (SELECT any_value(a.attname)
    FROM pg_attribute a WHERE a.attrelid = c.conrelid AND a.attnum = c.conkey[1]) || ') REFERENCES '
    || regclass_name(c.confrelid) || '(' || (SELECT any_value(a.attname) FROM pg_attribute a
    WHERE a.attrelid = c.confrelid AND a.attnum = c.confkey[1]) || ')' END AS constraint_text FROM pg_constraint c
info.schemata := SELECT current_database() AS catalog_name, nspname AS schema_name, '{OWNER}' AS schema_owner,
    NULL::VARCHAR AS default_character_set_catalog, NULL::VARCHAR AS sql_path FROM pg_namespace
info.tables := SELECT current_database() AS table_catalog, n.nspname AS table_schema, c.relname AS table_name,
    CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'BASE TABLE' END AS table_type,
    NULL::VARCHAR AS self_referencing_column_name, NULL::VARCHAR AS reference_generation,
    NULL::VARCHAR AS user_defined_type_catalog, NULL::VARCHAR AS user_defined_type_schema,
    NULL::VARCHAR AS user_defined_type_name, 'NO' AS is_insertable_into, 'NO' AS is_typed,
    NULL::VARCHAR AS commit_action FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
info.views := SELECT current_database() AS table_catalog, n.nspname AS table_schema, c.relname AS table_name,
    ''::VARCHAR AS view_definition, 'NONE' AS check_option, 'NO' AS is_updatable, 'NO' AS is_insertable_into
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'v'
info.columns := SELECT current_database() AS table_catalog, n.nspname AS table_schema, c.relname AS table_name,
    a.attname AS column_name, a.attnum::INTEGER AS ordinal_position, NULL::VARCHAR AS column_default,
    CASE WHEN a.attnotnull THEN 'NO' ELSE 'YES' END AS is_nullable,
    CASE t.typcategory WHEN 'A' THEN 'ARRAY' ELSE format_type(t.oid, NULL) END AS data_type,
    NULL::INTEGER AS character_maximum_length, NULL::INTEGER AS character_octet_length,
    CASE t.typname WHEN 'int2' THEN 16 WHEN 'int4' THEN 32 WHEN 'int8' THEN 64 WHEN 'float4' THEN 24
    WHEN 'float8' THEN 53 WHEN 'numeric' THEN CASE WHEN a.atttypmod > 0 THEN (a.atttypmod - 4) >> 16 END
    END::INTEGER AS numeric_precision,
    CASE WHEN t.typname LIKE 'int_' OR t.typname LIKE 'float_' THEN 2 WHEN t.typname = 'numeric' THEN 10
    END::INTEGER AS numeric_precision_radix,
    CASE WHEN t.typname LIKE 'int_' THEN 0 WHEN t.typname = 'numeric' AND a.atttypmod > 0
    THEN (a.atttypmod - 4) & 65535 END::INTEGER AS numeric_scale,
    CASE WHEN t.typcategory IN ('D', 'T') THEN CASE t.typname WHEN 'date' THEN 0 ELSE 6 END
    END::INTEGER AS datetime_precision, NULL::VARCHAR AS interval_type, NULL::INTEGER AS interval_precision,
    NULL::VARCHAR AS character_set_name, NULL::VARCHAR AS collation_name, NULL::VARCHAR AS domain_name,
    NULL::VARCHAR AS domain_schema, current_database() AS udt_catalog, 'pg_catalog' AS udt_schema,
    t.typname AS udt_name, a.attnum::VARCHAR AS dtd_identifier, 'NO' AS is_identity,
    NULL::VARCHAR AS identity_generation, 'NEVER' AS is_generated, NULL::VARCHAR AS generation_expression,
    'NO' AS is_updatable FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_type t ON t.oid = a.atttypid
info.table_constraints := SELECT current_database() AS constraint_catalog, n.nspname AS constraint_schema,
    k.conname AS constraint_name, current_database() AS table_catalog, n.nspname AS table_schema,
    c.relname AS table_name, CASE k.contype WHEN 'p' THEN 'PRIMARY KEY' ELSE 'FOREIGN KEY' END AS constraint_type,
    'NO' AS is_deferrable, 'NO' AS initially_deferred, 'YES' AS enforced FROM pg_constraint k
    JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
info.key_column_usage := SELECT current_database() AS constraint_catalog, n.nspname AS constraint_schema,
    k.conname AS constraint_name, current_database() AS table_catalog, n.nspname AS table_schema,
    c.relname AS table_name, a.attname AS column_name,
    list_position(k.conkey, a.attnum)::INTEGER AS ordinal_position,
    CASE k.contype WHEN 'f' THEN 1 END::INTEGER AS position_in_unique_constraint FROM pg_constraint k
    JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_attribute a ON a.attrelid = c.oid AND list_contains(k.conkey, a.attnum)
info.referential_constraints := SELECT current_database() AS constraint_catalog, '' AS constraint_schema,
    k.conname AS constraint_name, current_database() AS unique_constraint_catalog, '' AS unique_constraint_schema,
    p.conname AS unique_constraint_name, 'NONE' AS match_option, 'NO ACTION' AS update_rule, 'NO ACTION' AS delete_rule
    FROM pg_constraint k LEFT JOIN pg_constraint p ON p.conrelid = k.confrelid AND p.contype = 'p'
    WHERE k.contype = 'f'
info.constraint_column_usage := SELECT table_catalog, table_schema, table_name, column_name, constraint_catalog,
    constraint_schema, constraint_name FROM info.key_column_usage
info.routines := SELECT ''::VARCHAR AS specific_schema, '' AS specific_name, '' AS routine_schema,
    '' AS routine_name, '' AS routine_type, '' AS data_type WHERE false
info.parameters := SELECT ''::VARCHAR AS specific_schema, '' AS specific_name, 0 AS ordinal_position,
    '' AS parameter_name, '' AS data_type WHERE false
info.sequences := SELECT ''::VARCHAR AS sequence_schema, '' AS sequence_name WHERE false
info.triggers := SELECT ''::VARCHAR AS trigger_schema, '' AS trigger_name, '' AS event_object_table WHERE false
info.table_privileges := SELECT '{OWNER}' AS grantor, getvariable('dp_user') AS grantee, table_catalog, table_schema,
    table_name, 'SELECT' AS privilege_type, 'NO' AS is_grantable, 'NO' AS with_hierarchy FROM info.tables
info.role_table_grants := SELECT * FROM info.table_privileges
info.enabled_roles := SELECT getvariable('dp_user') AS role_name
info.applicable_roles := SELECT getvariable('dp_user') AS grantee, getvariable('dp_user') AS role_name,
    'NO' AS is_grantable
info.information_schema_catalog_name := SELECT current_database() AS catalog_name
info.character_sets := SELECT 'UTF8' AS character_set_name, 'UTF8' AS default_collate_name
"""  # noqa: S608 - constants of this module


LONGEST_NAME = 250
"""Characters of the name of who asks, and of the database as it is called, as far as the catalogue shows them."""


def statements() -> list[str]:
    """What makes the macros and views, once the tables are there."""
    made = []
    for name, forms in _forms().items():
        written = ", ".join(f"({', '.join(parameters)}) AS ({body})" for parameters, body in forms)
        made.append(f"CREATE MACRO {name}{written}")
    views = [f"CREATE VIEW {name} AS {body}" for name, _, body in (line.partition(" := ") for line in _lines(_VIEWS))]
    late = [statement for statement in made if "constraint_texts" in statement]
    early = [statement for statement in made if statement not in late]
    return ["CREATE SCHEMA info", *early, *views, *late]


@cache
def views() -> frozenset[str]:
    """The names of the views, as a query writes them."""
    return frozenset(line.partition(" := ")[0] for line in _lines(_VIEWS)) | {"pg_database"}


@cache
def macros() -> Macros:
    """The macros as they are judged: a variable has as many bytes as it may have at most."""
    forms = [
        (name.rpartition(".")[2], parameters, re.sub(r"getvariable\('\w+'\)", f"repeat(' ', {4 * LONGEST_NAME})", body))
        for name, forms in _forms().items()
        for parameters, body in forms
    ]
    with duckdb.connect(":memory:", config={"threads": "1"}) as parser:
        (query,) = parsed("SELECT " + ", ".join(body for _, _, body in forms), parser)
    found: dict[str, dict[int, Macro]] = {}
    for (name, parameters, _), body in zip(forms, query["select_list"], strict=True):
        found.setdefault(name, {})[len(parameters)] = Macro(parameters, without_places(body))
    return found


@cache
def _forms() -> dict[str, list[tuple[tuple[str, ...], str]]]:
    """The parameters and the body of each arity of the macros, by name."""
    found: dict[str, list[tuple[tuple[str, ...], str]]] = {"format_type": [(("t", "m"), _format_type())]}
    for line in _lines(_MACROS):
        head, _, body = line.partition(" := ")
        name, _, parameters = head.removesuffix(")").partition("(")
        found.setdefault(name, []).append((tuple(parameters.split(", ")) if parameters else (), body))
    return found


def _lines(written: str) -> list[str]:
    return written.replace("\n    ", " ").strip().split("\n")


def _format_type() -> str:
    """What a type is called in full: numeric(9,2), text[], timestamp without time zone."""
    named = {oid: FORMATTED.get(name, name) for name, oid, *_ in types()}
    named |= {array: f"{named[oid]}[]" for _, oid, *_, array in types() if array}
    numeric = "WHEN t = 1700 AND m > 0 THEN 'numeric(' || ((m - 4) >> 16) || ',' || ((m - 4) & 65535) || ')'"
    held = f"[{', '.join(map(string, named.values()))}]", f"[{', '.join(map(str, named))}]"
    return f"CASE {numeric} ELSE coalesce(list_extract({held[0]}, list_position({held[1]}, t)), '???') END"
