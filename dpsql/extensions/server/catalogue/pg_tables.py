"""PostgreSQL's catalogue tables, by name and columns, and the rows of those that say something here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from dpsql.extensions.server.catalogue.relations import MAIN, RELEASED, Relation
from dpsql.extensions.server.protocol.settings import Settings
from dpsql.policy.values import fold

# A line a table: its name, then its columns; a type stands after the columns that have it: b BIGINT, i SMALLINT,
# t VARCHAR, f BOOLEAN, d DOUBLE, and these as lists with a "s" after them.
TABLES = """
pg_namespace oid b nspname t nspowner b nspacl ts
pg_class oid b relname t relnamespace,reltype,reloftype,relowner,relam,relfilenode,reltablespace b relpages b
    reltuples d relallvisible b reltoastrelid b relhasindex,relisshared f relpersistence,relkind t relnatts,relchecks i
    relhasrules,relhastriggers,relhassubclass,relrowsecurity,relforcerowsecurity,relispopulated f relreplident t
    relispartition f relrewrite,relfrozenxid,relminmxid b relacl,reloptions ts relpartbound t relhasoids f
pg_attribute attrelid b attname t atttypid b attlen,attnum i attcacheoff,atttypmod b attndims i attbyval f
    attalign,attstorage,attcompression t attnotnull,atthasdef,atthasmissing f attidentity,attgenerated t
    attisdropped,attislocal f attinhcount i attcollation b attacl,attoptions,attfdwoptions ts attmissingval t
    attstattarget i
pg_type oid b typname t typnamespace,typowner b typlen i typbyval f typtype,typcategory t typispreferred,typisdefined f
    typdelim t typrelid b typsubscript t typelem,typarray b typinput,typoutput,typreceive,typsend,typmodin,typmodout t
    typanalyze,typalign,typstorage t typnotnull f typbasetype,typtypmod b typndims i typcollation b
    typdefaultbin,typdefault t typacl ts
pg_description objoid,classoid b objsubid b description t
pg_shdescription objoid,classoid b description t
pg_attrdef oid,adrelid b adnum i adbin t
pg_constraint oid b conname t connamespace b contype t condeferrable,condeferred,convalidated f
    conrelid,contypid,conindid,conparentid,confrelid b confupdtype,confdeltype,confmatchtype t conislocal f
    coninhcount i connoinherit f conkey,confkey is conpfeqop,conppeqop,conffeqop,confdelsetcols is conexclop is conbin t
pg_index indexrelid,indrelid b indnatts,indnkeyatts i
    indisunique,indnullsnotdistinct,indisprimary,indisexclusion,indimmediate,indisclustered,indisvalid f
    indcheckxmin,indisready,indislive,indisreplident f indkey is indcollation,indclass bs indoption is
    indexprs,indpred t
pg_roles oid b rolname t rolsuper,rolinherit,rolcreaterole,rolcreatedb,rolcanlogin,rolreplication f rolconnlimit i
    rolpassword,rolvaliduntil t rolbypassrls f rolconfig ts
pg_authid oid b rolname t rolsuper,rolinherit,rolcreaterole,rolcreatedb,rolcanlogin,rolreplication,rolbypassrls f
    rolconnlimit i rolpassword,rolvaliduntil t
pg_user usename t usesysid b usecreatedb,usesuper,userepl,usebypassrls f passwd,valuntil t useconfig ts
pg_group groname t grosysid b grolist bs
pg_auth_members oid,roleid,member,grantor b admin_option,inherit_option,set_option f
pg_am oid b amname,amhandler,amtype t
pg_settings name,setting,unit,category,short_desc,extra_desc,context,vartype,source,min_val,max_val t enumvals ts
    boot_val,reset_val,sourcefile t sourceline b pending_restart f
pg_proc oid b proname t pronamespace,proowner,prolang b procost,prorows d provariadic b prosupport,prokind t
    prosecdef,proleakproof,proisstrict,proretset f provolatile,proparallel t pronargs,pronargdefaults i prorettype b
    proargtypes,proallargtypes bs proargmodes,proargnames ts proargdefaults,prosrc,probin t proconfig,proacl ts
    proisagg f
pg_inherits inhrelid,inhparent b inhseqno b inhdetachpending f
pg_trigger oid,tgrelid,tgparentid b tgname t tgfoid b tgtype i tgenabled t tgisinternal f tgconstrrelid,tgconstrindid b
    tgconstraint b tgdeferrable,tginitdeferred f tgnargs i tgattr is tgargs,tgqual,tgoldtable,tgnewtable t
pg_rewrite oid b rulename t ev_class b ev_type,ev_enabled t is_instead f ev_qual,ev_action t
pg_depend classid,objid,objsubid,refclassid,refobjid,refobjsubid b deptype t
pg_shdepend dbid,classid,objid,objsubid,refclassid,refobjid b deptype t
pg_enum oid,enumtypid b enumsortorder d enumlabel t
pg_range rngtypid,rngsubtype,rngmultitypid,rngcollation,rngsubopc b rngcanonical,rngsubdiff t
pg_collation oid b collname t collnamespace,collowner b collprovider t collisdeterministic f collencoding i
    collcollate,collctype,colliculocale,collversion t
pg_sequence seqrelid,seqtypid,seqstart,seqincrement,seqmax,seqmin,seqcache b seqcycle f
pg_sequences schemaname,sequencename,sequenceowner,data_type t start_value,min_value,max_value,increment_by b cycle f
    cache_size,last_value b
pg_extension oid b extname t extowner,extnamespace b extrelocatable f extversion t extconfig bs extcondition ts
pg_available_extensions name,default_version,installed_version,comment t
pg_language oid b lanname t lanowner b lanispl,lanpltrusted f lanplcallfoid,laninline,lanvalidator b lanacl ts
pg_tablespace oid b spcname t spcowner b spcacl,spcoptions ts
pg_operator oid b oprname t oprnamespace,oprowner b oprkind t oprcanmerge,oprcanhash f oprleft,oprright,oprresult b
    oprcom,oprnegate b oprcode,oprrest,oprjoin t
pg_opclass oid,opcmethod b opcname t opcnamespace,opcowner,opcfamily,opcintype b opcdefault f opckeytype b
pg_opfamily oid,opfmethod b opfname t opfnamespace,opfowner b
pg_cast oid,castsource,casttarget b castfunc b castcontext,castmethod t
pg_conversion oid b conname t connamespace,conowner b conforencoding,contoencoding i conproc t condefault f
pg_aggregate aggfnoid b aggkind t aggnumdirectargs i
pg_policy oid b polname t polrelid b polcmd t polpermissive f polroles bs polqual,polwithcheck t
pg_policies schemaname,tablename,policyname,permissive t roles ts cmd,qual,with_check t
pg_statistic_ext oid,stxrelid b stxname t stxnamespace,stxowner b stxstattarget i stxkeys is stxkind ts stxexprs t
pg_publication oid b pubname t pubowner b puballtables,pubinsert,pubupdate,pubdelete,pubtruncate,pubviaroot f
pg_publication_rel oid,prpubid,prrelid b prqual t prattrs is
pg_publication_namespace oid,pnpubid,pnnspid b
pg_subscription oid,subdbid b subname t subowner b subenabled f
pg_foreign_table ftrelid,ftserver b ftoptions ts
pg_foreign_server oid b srvname t srvowner,srvfdw b srvtype,srvversion t srvacl,srvoptions ts
pg_foreign_data_wrapper oid b fdwname t fdwowner,fdwhandler,fdwvalidator b fdwacl,fdwoptions ts
pg_user_mappings umid,srvid b srvname t umuser b usename t umoptions ts
pg_event_trigger oid b evtname,evtevent t evtowner,evtfoid b evtenabled t evttags ts
pg_partitioned_table partrelid b partstrat t partnatts i partdefid b partattrs is partclass,partcollation bs partexprs t
pg_matviews schemaname,matviewname,matviewowner,tablespace t hasindexes,ispopulated f definition t
pg_indexes schemaname,tablename,indexname,tablespace,indexdef t
pg_rules schemaname,tablename,rulename,definition t
pg_default_acl oid,defaclrole,defaclnamespace b defaclobjtype t defaclacl ts
pg_db_role_setting setdatabase,setrole b setconfig ts
pg_seclabels objoid,classoid,objsubid b objtype t objnamespace b objname,provider,label t
pg_ts_config oid b cfgname t cfgnamespace,cfgowner,cfgparser b
pg_ts_dict oid b dictname t dictnamespace,dictowner,dicttemplate b dictinitoption t
pg_locks locktype t database,relation b mode t granted f pid b
pg_stat_activity datid b datname t pid,usesysid b usename,application_name,client_addr,state,query t
pg_stat_user_tables relid b schemaname,relname t
pg_statio_user_tables relid b schemaname,relname t
pg_timezone_names name,abbrev,utc_offset t is_dst f
pg_largeobject_metadata oid,lomowner b lomacl ts
pg_init_privs objoid,classoid,objsubid b privtype t initprivs ts
pg_transform oid,trftype,trflang b trffromsql,trftosql t
"""
_KINDS = {"b": "BIGINT", "i": "SMALLINT", "t": "VARCHAR", "f": "BOOLEAN", "d": "DOUBLE"}
OWNER = "dpsql"
_OWNER, _HEAP, _CATALOGUE, _MAIN_OID, _DP = 10, 2, 11, 2200, 16383

# name, oid, bytes, category, oid of its array
_TYPES = """
bool 16 1 B 1000; bytea 17 -1 U 1001; char 18 1 Z 1002; name 19 64 S 1003; int8 20 8 N 1016; int2 21 2 N 1005
int4 23 4 N 1007; regproc 24 4 N 1008; text 25 -1 S 1009; oid 26 4 N 1028; json 114 -1 U 199; float4 700 4 N 1021
float8 701 8 N 1022; unknown 705 -2 X 0; bpchar 1042 -1 S 1014; varchar 1043 -1 S 1015; date 1082 4 D 1182
time 1083 8 D 1183; timestamp 1114 8 D 1115; timestamptz 1184 8 D 1185; interval 1186 16 T 1187; timetz 1266 12 D 1270
numeric 1700 -1 N 1231; regclass 2205 4 N 2210; regtype 2206 4 N 2211; uuid 2950 16 U 2951; jsonb 3802 -1 U 3807
int2vector 22 -1 A 1006; oidvector 30 -1 A 1013; record 2249 -1 P 2287; void 2278 4 P 0; inet 869 -1 I 1041
bit 1560 -1 V 1561; varbit 1562 -1 V 1563; money 790 8 N 791; xml 142 -1 U 143
"""
# What format_type calls them where that is another name.
FORMATTED = {
    **{"bool": "boolean", "int8": "bigint", "int2": "smallint", "int4": "integer", "float4": "real"},
    **{"float8": "double precision", "bpchar": "character", "varchar": "character varying", "char": '"char"'},
    **{"timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone"},
    **{"time": "time without time zone", "timetz": "time with time zone", "varbit": "bit varying"},
}

Row = dict[str, Any]


@cache
def columns() -> dict[str, list[tuple[str, str]]]:
    """The columns of every catalogue table: name and DuckDB type."""
    found: dict[str, list[tuple[str, str]]] = {}
    name, waiting = "", ""
    for line in TABLES.strip().split("\n"):
        words = line.split()
        if not line.startswith(" "):
            name, *words = words
            found[name] = []
        for word in words:
            if waiting:
                kind = _KINDS[word[0]] + "[]" * (len(word) > 1)
                found[name] += [(column, kind) for column in waiting.split(",")]
                waiting = ""
            else:
                waiting = word
    return found


def types() -> list[tuple[str, int, int, str, int]]:
    """Name, object id, bytes, category and object id of the array of each type."""
    parts = [part.split() for line in _TYPES.strip().split("\n") for part in line.split(";")]
    return [(name, int(oid), int(size), category, int(array)) for name, oid, size, category, array in parts]


def rows(relations: Mapping[int, Relation]) -> Iterator[tuple[str, Row]]:
    """The rows of the catalogue tables that say something: table, and values by column."""
    schemas = _schemas(relations)
    for schema, oid in schemas.items():
        yield "pg_namespace", {"oid": oid, "nspname": schema, "nspowner": _OWNER}
    yield "pg_description", _described(schemas[MAIN], "tables of the policy; asking them is charged", "pg_namespace")
    yield "pg_description", _described(schemas[RELEASED], "what was released; asking it is free", "pg_namespace")
    yield "pg_am", {"oid": _HEAP, "amname": "heap", "amhandler": "heap_tableam_handler", "amtype": "t"}
    yield "pg_language", {"oid": 14, "lanname": "sql", "lanowner": _OWNER, "lanispl": False, "lanpltrusted": True}
    yield "pg_tablespace", {"oid": 1663, "spcname": "pg_default", "spcowner": _OWNER}
    yield "pg_collation", {"oid": 100, "collname": "default", "collnamespace": _CATALOGUE, "collowner": _OWNER}
    for role in ("pg_roles", "pg_authid"):
        flags = dict.fromkeys(("rolsuper", "rolcreaterole", "rolcreatedb", "rolreplication", "rolbypassrls"), False)
        yield (
            role,
            {"oid": _OWNER, "rolname": OWNER, "rolinherit": True, "rolcanlogin": False, "rolconnlimit": -1} | flags,
        )
    for name, value in Settings().values().items():
        yield (
            "pg_settings",
            {"name": name, "setting": value, "vartype": "string", "context": "user", "source": "default"},
        )
    yield from _type_rows()
    reading = sorted({row["typreceive"] for name, row in _type_rows() if name == "pg_type"})
    for number, name in enumerate(reading):
        yield "pg_proc", {"oid": 2_400 + number, "proname": name, "pronamespace": _CATALOGUE, "proowner": _OWNER}
    for oid, relation in relations.items():
        yield from _relation_rows(oid, relation, schemas)
        yield from _constraint_rows(oid, relation, relations, schemas)
    for name in columns():
        yield "pg_class", _class_row(CLASS_OIDS[name], name, _CATALOGUE, "r", len(columns()[name]))


CLASS_OIDS = {
    **{name: 12_000 + number for number, name in enumerate(columns())},
    **{"pg_type": 1247, "pg_attribute": 1249, "pg_proc": 1255, "pg_class": 1259, "pg_namespace": 2615},
    **{"pg_database": 1262, "pg_constraint": 2606, "pg_attrdef": 2604, "pg_description": 2609},
}


def _schemas(relations: Mapping[int, Relation]) -> dict[str, int]:
    known = {"pg_catalog": _CATALOGUE, "information_schema": 13_000, MAIN: _MAIN_OID, RELEASED: _DP}
    others = sorted({relation.schema for relation in relations.values()} - known.keys())
    return known | {schema: 13_100 + number for number, schema in enumerate(others)}


def _described(oid: int, text: str, of: str, number: int = 0) -> Row:
    return {"objoid": oid, "classoid": CLASS_OIDS[of], "objsubid": number, "description": text}


def _class_row(oid: int, name: str, schema: int, kind: str, count: int) -> Row:
    flags = ("relhasindex", "relisshared", "relhasrules", "relhastriggers", "relhassubclass", "relispartition")
    more = ("relrowsecurity", "relforcerowsecurity", "relhasoids")
    numbers = ("reltype", "reloftype", "reltablespace", "relpages", "relallvisible", "reltoastrelid", "relchecks")
    return {
        **dict.fromkeys((*flags, *more), False),
        **dict.fromkeys(numbers, 0),
        **{"oid": oid, "relname": name, "relnamespace": schema, "relowner": _OWNER, "relfilenode": oid},
        **{"relam": _HEAP if kind == "r" else 0, "reltuples": -1.0, "relpersistence": "p", "relkind": kind},
        **{"relnatts": count, "relispopulated": True, "relreplident": "d"},
    }


def _relation_rows(oid: int, relation: Relation, schemas: Mapping[str, int]) -> Iterator[tuple[str, Row]]:
    yield (
        "pg_class",
        _class_row(oid, relation.name, schemas[relation.schema], relation.kind, len(relation.columns)),
    )
    if relation.comment:
        yield "pg_description", _described(oid, relation.comment, "pg_class")
    for number, column in enumerate(relation.columns, 1):
        held = column.type
        yield (
            "pg_attribute",
            {
                **dict.fromkeys(("atthasdef", "atthasmissing", "attisdropped", "attbyval"), False),
                **dict.fromkeys(("attidentity", "attgenerated", "attcompression"), ""),
                **dict.fromkeys(("attinhcount", "attndims"), 0),
                **{"attrelid": oid, "attname": column.name, "atttypid": held.oid, "attlen": held.size},
                **{"attnum": number, "attcacheoff": -1, "atttypmod": held.modifier, "attalign": "i"},
                **{"attstorage": "p", "attnotnull": column.required, "attislocal": True, "attstattarget": -1},
                "attcollation": 100 if held.oid == 25 else 0,
            },
        )
        if column.comment:
            yield "pg_description", _described(oid, column.comment, "pg_class", number)


def _constraint_rows(
    oid: int, relation: Relation, relations: Mapping[int, Relation], schemas: Mapping[str, int]
) -> Iterator[tuple[str, Row]]:
    flags = dict.fromkeys(("condeferrable", "condeferred"), False) | {"convalidated": True, "conislocal": True}
    numbers = dict.fromkeys(("contypid", "conindid", "conparentid", "coninhcount"), 0)
    shared = {**flags, **numbers, "connamespace": schemas[relation.schema], "conrelid": oid, "connoinherit": True}
    here = relation.numbers
    if relation.key and all(fold(name) in here for name in relation.key):
        name = f"{relation.name}_pkey"
        key = [here[fold(column)] for column in relation.key]
        yield (
            "pg_constraint",
            {**shared, "oid": oid + 1, "conname": name, "contype": "p", "conkey": key, "confrelid": 0},
        )
    for count, (column, table, target) in enumerate(relation.references):
        schema, _, last = table.rpartition(".")
        wanted = fold(schema or MAIN), fold(last)
        found = next(((o, r) for o, r in relations.items() if (fold(r.schema), fold(r.name)) == wanted), None)
        if found is None or fold(column) not in here or fold(target) not in found[1].numbers:
            continue
        keys = {"conkey": [here[fold(column)]], "confkey": [found[1].numbers[fold(target)]], "confrelid": found[0]}
        kinds = {"contype": "f", "confupdtype": "a", "confdeltype": "a", "confmatchtype": "s"}
        name = f"{relation.name}_{column}_fkey"
        yield "pg_constraint", {**shared, **keys, **kinds, "oid": oid + 2 + count, "conname": name}


def _type_rows() -> Iterator[tuple[str, Row]]:
    shared = {
        "typnamespace": _CATALOGUE,
        "typowner": _OWNER,
        "typisdefined": True,
        "typdelim": ",",
        "typnotnull": False,
    }
    shared |= dict.fromkeys(("typrelid", "typbasetype", "typndims"), 0) | {"typtypmod": -1, "typcollation": 0}
    shared |= dict.fromkeys(("typmodin", "typmodout", "typanalyze", "typsubscript"), "-")
    shared |= {"typalign": "i", "typstorage": "p", "typispreferred": False}
    for name, oid, size, category, array in types():
        # Functions that read and write values, by whose names drivers tell types.
        word = f"{name}_" if name in _UNDERSCORED else name
        steps = {f"typ{step}": f"{word}{ending}" for step, ending in _STEPS.items()}
        kind = "p" if category in "PX" else "b"
        yield (
            "pg_type",
            {
                **shared,
                **{"oid": oid, "typname": name, "typlen": size, "typbyval": 0 < size <= 8, "typtype": kind},
                **{"typcategory": category, "typelem": 0, "typarray": array, **steps},
                "typcollation": 100 if category == "S" else 0,
            },
        )
        if array:
            steps = {f"typ{step}": f"array_{ending}" for step, ending in _STEPS.items()}
            yield (
                "pg_type",
                {
                    **shared,
                    **{"oid": array, "typname": f"_{name}", "typlen": -1, "typbyval": False, "typtype": "b"},
                    **{"typcategory": "A", "typelem": oid, "typarray": 0, **steps},
                    "typcollation": 0,
                },
            )


_UNDERSCORED = {
    *("date", "time", "timetz", "timestamp", "timestamptz", "numeric", "interval", "uuid", "json", "jsonb", "record"),
    *("void", "inet", "bit", "varbit", "xml"),
}
_STEPS = {"input": "in", "output": "out", "receive": "recv", "send": "send"}
