"""The functions that SQL over releases may call, each with the largest value that it can give and the steps it takes.

The list is closed: a function without a line here is refused. A rule sees the extents of the arguments and gives that
of the result, so that a nested expression is judged as a whole. Sizes are bytes, and upper bounds: DuckDB computes one
call for up to 2,048 rows without looking for an interrupt or at its limit of memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from . import rules
from .constants import DAYS
from .extents import ELEMENTS, NUMBER, TEXT, Extent, Rule, series, text, times


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


def _each(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


GATHERING = _words("string_agg group_concat listagg list array_agg json_group_array json_group_object histogram")
"""Aggregates whose result has every row that goes in."""

SCALARS: Mapping[str, Rule] = {
    **_each(
        rules.any_number,
        """
        / ^ ** & | ~ xor >> << ! @ abs acos acosh asin asinh atan atan2 atanh cbrt cos cosh cot degrees radians even
        exp fdiv fmod gamma lgamma factorial gcd lcm greatest_common_divisor least_common_multiple isfinite isinf
        isnan ln log log10 log2 nextafter pi signbit sin sinh sqrt tan tanh divide geomean geometric_mean bit_count
        ascii ord unicode = <> != < <= > >= ~~ !~~ ~~* !~~* ~~~ like_escape not_like_escape ilike_escape
        not_ilike_escape contains starts_with ends_with prefix suffix ^@ regexp_matches regexp_full_match hash
        json_valid json_exists json_contains in_search_path age century date_diff datediff date_sub datesub date_part
        datepart day dayofmonth dayofweek dayofyear decade epoch epoch_ms epoch_ns epoch_us era hour isodow isoyear
        julian last_day make_timestamp_ms make_timestamp_ns microsecond millennium millisecond minute month quarter
        second timezone timezone_hour timezone_minute week weekday weekofyear year yearweek days_in_month strptime
        try_strptime to_timestamp nanosecond dayname monthname to_centuries to_decades to_millennia get_current_time
        current_localtime ago md5 sha1 sha256 uuid gen_random_uuid uuidv4 uuidv7 random typeof pg_typeof format_bytes
        formatreadablesize formatreadabledecimalsize list_contains list_has list_has_all list_has_any array_contains
        list_median list_product list_stddev_pop list_stddev_samp list_var_pop list_var_samp md5_number json_type
        json_array_length && @> <@ IS_DISTINCT_FROM levenshtein editdist3 damerau_levenshtein jaro_similarity
        jaro_winkler_similarity jaccard hamming mismatches error array_distance array_inner_product array_dot_product
        array_negative_inner_product array_cosine_similarity array_cosine_distance array_negative_dot_product
        list_distance list_inner_product list_dot_product list_negative_inner_product list_cosine_similarity
        list_cosine_distance list_negative_dot_product version grouping grouping_id alias
        """,
    ),
    **_each(
        rules.any_number,
        "date_trunc datetrunc date_add time_bucket make_date make_time make_timestamp make_timestamptz",
    ),
    **_each(
        rules.any_number,
        "array_has array_has_all array_has_any list_sum list_avg list_count list_bool_and list_bool_or",
    ),
    **_each(
        rules.first_argument,
        """
        list_reduce array_reduce reduce list_slice array_slice list_sort list_reverse_sort list_distinct list_reverse
        list_where array_sort array_reverse_sort array_distinct array_reverse array_where array_pop_back
        array_pop_front list_filter array_filter filter list_select array_select list_intersect array_intersect
        regexp_extract split_part constant_or_null strip_accents reverse map_keys map_values list_grade_up
        array_grade_up json_extract_string json_extract_path_text json_value ->> url_decode parse_filename
        parse_dirname parse_dirpath list_min list_max list_first list_last list_any_value list_mode map_extract_value
        map_extract element_at struct_extract struct_extract_at map_contains left right left_grapheme right_grapheme
        substr substring substring_grapheme trim ltrim rtrim
        """,
    ),
    **{name: rules.of_days(*days) for name, days in DAYS.items()},
    **_each(rules.today, "now today current_date get_current_timestamp transaction_timestamp current_localtimestamp"),
    **_each(rules.within(-1, 1), "sign"),
    **_each(rules.length, "length len strlen char_length character_length length_grapheme octet_length bit_length"),
    **_each(rules.length, "instr strpos position list_position list_indexof array_position array_indexof array_length"),
    **_each(rules.length, "cardinality list_unique array_unique"),
    **_each(rules.plus, "+ add"),
    **_each(rules.difference, "- subtract"),
    **_each(rules.product, "* multiply"),
    **_each(rules.quotient, "//"),
    **_each(rules.remainder, "% mod"),
    **_each(rules.power, "pow power"),
    **_each(rules.rounded, "floor ceil ceiling round trunc round_even roundbankers"),
    **_each(rules.least, "least"),
    **_each(rules.greatest, "greatest"),
    **_each(rules.one_argument, "if ifnull nullif coalesce switch"),
    **_each(rules.list_aggregate(GATHERING), "list_aggr list_aggregate array_aggr array_aggregate aggregate"),
    **_each(rules.element, "list_extract list_element array_extract unnest"),
    **_each(rules.flat, "flatten map_entries json_keys"),
    **_each(rules.grown(1), "concat || list_concat list_cat array_concat array_cat list_append list_prepend"),
    **_each(rules.grown(1), "array_append array_prepend array_push_back array_push_front overlay"),
    **_each(rules.subscripts, "generate_subscripts"),
    **_each(rules.separated, "concat_ws"),
    **_each(rules.listed_out, "array_to_string list_string_agg"),
    **_each(rules.grown(3), "upper lower ucase lcase hex to_hex to_base64 base64 regexp_escape nfc_normalize"),
    **_each(rules.grown(3), "json_extract json_extract_path -> url_encode json_merge_patch"),
    # Bytes as text take four letters each.
    **_each(rules.grown(4), "translate encode decode from_base64 from_hex unhex from_binary unbin"),
    **_each(rules.grown(8), "to_json json json_object json_array json_quote row_to_json array_to_json bin to_binary"),
    **_each(rules.packed, "list_value list_pack array_value struct_pack row map map_from_entries"),
    **_each(rules.packed, "struct_insert struct_update"),
    **_each(rules.zipped, "list_zip array_zip"),
    **_each(rules.repeated, "repeat"),
    **_each(rules.padded, "lpad rpad to_base"),
    **_each(rules.bar, "bar"),
    **_each(rules.replaced, "replace"),
    **_each(rules.regexp_replaced, "regexp_replace"),
    **_each(rules.pieces, "string_split str_split split string_to_array string_split_regex str_split_regex"),
    **_each(rules.pieces, "regexp_split_to_array regexp_extract_all regexp_split_to_table"),
    **_each(rules.series_between(0), "range"),
    **_each(rules.series_between(1), "generate_series"),
    **_each(rules.resized, "list_resize array_resize"),
    **_each(rules.mapped, "list_transform array_transform list_apply array_apply apply"),
    **_each(rules.formatted("{"), "format"),
    **_each(rules.formatted("%"), "printf"),
    **_each(rules.dated, "strftime"),
    **_each(lambda args: text(4), "chr"),
    **_each(lambda args: text(TEXT), "current_database current_schema current_catalog"),
    **_each(lambda args: series(ELEMENTS, NUMBER), "current_schemas"),
}
"""What each scalar function gives, by its name in lower case."""


def _both(args: Sequence[Extent]) -> float:
    return times(args[0].size, args[1].size) if len(args) > 1 else 0.0


def _searched(args: Sequence[Extent]) -> float:
    """Steps of a regular expression: those of its states at each letter, where they are too many for a table."""
    if len(args) < 2:
        return 0.0
    pattern = args[1].constant
    if pattern is None:
        return times(args[0].size, args[1].size * _MOST_REPEATED)
    repeated = math.prod(max(1, int(number)) for number in re.findall(r"\d+(?=\})", pattern)[:64])
    states = len(pattern.encode()) * min(repeated, _MOST_REPEATED)
    return args[0].size if states <= _FEW_STATES else times(args[0].size, states)


def _liked(args: Sequence[Extent]) -> float:
    """Steps of LIKE and GLOB: once over the text for each wildcard."""
    pattern = args[1].constant if len(args) > 1 else ""
    return _both(args) if pattern is None else times(args[0].size, 1 + len(re.findall(r"[%*]", pattern)))


_FEW_STATES = 64
_MOST_REPEATED = 1_000  # a sign of a regular expression, as RE2 takes it


_PATTERNS = "regexp_matches regexp_full_match regexp_extract regexp_extract_all regexp_split_to_array"
_SORTS = "list_sort list_reverse_sort array_sort array_reverse_sort list_distinct array_distinct list_mode list_median "
_SORTS += "list_unique array_unique list_grade_up array_grade_up list_aggr list_aggregate array_aggr"
STEPS: Mapping[str, Callable[[Sequence[Extent]], float]] = {
    **dict.fromkeys(_words("levenshtein editdist3 jaro_similarity jaro_winkler_similarity translate"), _both),
    **dict.fromkeys(_words("list_has_all list_has_any list_intersect array_intersect && @> <@ array_has_all"), _both),
    "array_has_any": _both,
    "damerau_levenshtein": lambda args: 8 * _both(args),
    **dict.fromkeys(_words(f"{_PATTERNS} string_split_regex str_split_regex regexp_split_to_table"), _searched),
    "regexp_replace": lambda args: 3 * _searched(args),
    "histogram": lambda args: 1_500,
    **dict.fromkeys(_words("md5 sha1 md5_number printf format"), lambda args: 64 + args[0].size),
    "sha256": lambda args: 128 + 2 * args[0].size,
    **dict.fromkeys(_words("~~ !~~ ~~* !~~* ~~~ like_escape not_like_escape ilike_escape not_ilike_escape"), _liked),
    **dict.fromkeys(_words(f"{_SORTS} array_aggregate aggregate"), lambda args: 20 * args[0].size),
}
"""Steps of a call beyond the bytes that it gives, where these grow faster than its arguments."""

_QUANTILES = ("median", "quantile", "quantile_cont", "quantile_disc")
_RECOUNTED = {
    "mode": 2,
    "mad": 2,
    "entropy": 40,
    "histogram": 40,
    "approx_quantile": 40,
    **dict.fromkeys(_QUANTILES, 20),
}
_ON_THE_WAY = re.compile(r"(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL.*|DATE|TIME.*|INTERVAL|UUID)")


def recounted(name: str, kind: str, *, distinct: bool, moves: bool) -> int:
    """Steps of a window function for each row of a frame that ``moves``, if it does not go on from the frame before.

    ``kind``: the type of its argument where that is a column, else nothing. DuckDB moves quantiles of numbers and times
    along with the frame, those of Booleans, lists and structs are found anew in each.
    """
    if distinct and name in _RECOUNTED:
        return max(_RECOUNTED.values())
    if name in _QUANTILES and _ON_THE_WAY.fullmatch(kind.upper()):
        return 0
    return _RECOUNTED.get(name, 0) if moves or name == "histogram" else 0


LAMBDAS = _words("list_transform array_transform list_apply array_apply apply list_filter array_filter filter")
"""Functions whose second argument is a lambda, of an element and its place."""

REDUCTIONS = _words("list_reduce array_reduce reduce")
"""Functions whose lambda takes what it gave for the element before, and the element."""

AGGREGATES = _words(
    "any_value approx_count_distinct approx_quantile arbitrary arg_max arg_max_null arg_min arg_min_null argmax "
    "argmin avg bit_and bit_or bit_xor bool_and bool_or corr count count_if count_star countif covar_pop "
    "covar_samp entropy favg first fsum histogram kahan_sum kurtosis kurtosis_pop last mad max max_by mean median "
    "min min_by mode product quantile quantile_cont quantile_disc regr_avgx regr_avgy regr_count regr_intercept "
    "regr_r2 regr_slope regr_sxx regr_sxy regr_syy sem skewness stddev stddev_pop stddev_samp sum sumkahan "
    "var_pop var_samp variance wavg weighted_avg "
    # of a window
    "row_number rank dense_rank rank_dense percent_rank cume_dist ntile lag lead first_value last_value nth_value "
    "fill"
)
"""Aggregates and window functions whose result is no longer than a value that goes in, or a number."""
COUNTS = _words("count count_if count_star countif approx_count_distinct row_number rank dense_rank ntile")

SERIES = frozenset(["range", "generate_series", "unnest"])
"""Table functions that make rows of their arguments."""
LISTS = frozenset(["duckdb_columns", "duckdb_tables", "duckdb_views", "pragma_table_info", "pragma_show"])
"""Table functions that list what is released, and nothing of the server."""
LISTED = frozenset(["duckdb_columns", "duckdb_tables", "duckdb_views"])
"""Views of DuckDB with these contents."""

TYPES = _words(
    "boolean bool logical tinyint int1 smallint int2 short integer int int4 signed bigint int8 long hugeint int128 "
    "utinyint usmallint uinteger ubigint uhugeint float float4 real double float8 decimal numeric dec date time "
    "timetz timestamp datetime timestamptz timestamp_s timestamp_ms timestamp_ns timestamp_us interval uuid "
    "varchar char bpchar text string json blob bytea binary varbinary list name oid regclass"
) | {"timestamp with time zone", "time with time zone", "struct", "enum", "array", "map"}
"""Types that a cast may name."""
WORDS = _words("varchar char bpchar text string json blob bytea binary varbinary name enum")
"""Those of them whose values are texts."""
