"""The functions that SQL over releases may call, each with the largest value that it can give and the steps it takes.

The list is closed: a function without a line here is refused. A rule sees the extents of the arguments and gives that
of the result, so that a nested expression is judged as a whole. Sizes are bytes, and upper bounds: DuckDB computes one
call for up to 2,048 rows without looking for an interrupt or at its limit of memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeAlias

NUMBER = 64
"""Bytes that a number, date or Boolean takes at most, as text, too."""
TEXT = 1_000
"""Bytes that a text of a column is taken to have at most."""
ELEMENTS = 100
"""Elements that a list of a column is taken to have at most."""


@dataclass(frozen=True)
class Extent:
    """How large a value can be: its bytes and, of a number, its least and largest value.

    Of a list also how many ``elements`` it has and the bytes of ``each``. ``constant``: a text that is written out.
    ``plain``: a column of a table, as a join looks for it.
    """

    size: float = NUMBER
    least: float = -inf
    most: float = inf
    elements: float = 1
    each: float = NUMBER
    constant: str | None = None
    plain: bool = False


Rule: TypeAlias = Callable[[Sequence[Extent]], Extent]
"""The extent of a call's result, from those of its arguments."""


def text(size: float) -> Extent:
    """A text of at most ``size`` bytes; whatever is split out of it is no longer."""
    return Extent(size, elements=size + 1, each=size)


def series(elements: float, each: float) -> Extent:
    """A list of at most so many elements, ``each`` of so many bytes."""
    return Extent(max(NUMBER, times(elements, each)), elements=elements, each=each)


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


def either(extents: Iterable[Extent]) -> Extent:
    """One of several values."""
    held = list(extents) or [Extent()]
    return Extent(
        max(one.size for one in held),
        min(one.least for one in held),
        max(one.most for one in held),
        max(one.elements for one in held),
        max(one.each for one in held),
        held[0].constant if len(held) == 1 else None,
        all(one.plain for one in held),
    )


def times(a: float, b: float) -> float:
    """A product in which nothing times infinity is nothing."""
    return a * b if a and b else 0.0


def _total(args: Sequence[Extent]) -> float:
    return sum(one.size for one in args)


def _number(args: Sequence[Extent]) -> Extent:
    return Extent()


def _within(least: float, most: float) -> Rule:
    return lambda args: Extent(NUMBER, least, most)


def _length(args: Sequence[Extent]) -> Extent:
    return Extent(NUMBER, 0, max((one.size for one in args), default=0))


def _grown(factor: float) -> Rule:
    """A text, or a list of the elements of all arguments, ``factor`` times as long as these together."""
    return lambda args: Extent(
        max(NUMBER, factor * _total(args)),
        elements=sum(one.elements for one in args) + factor * _total(args) * (factor > 1),
        each=factor * max((one.each for one in args), default=NUMBER),
    )


def _separated(args: Sequence[Extent]) -> Extent:
    """Values, and the elements of lists, one behind the other; the separator, between each two of them, comes first."""
    between = times(args[0].size, sum(max(1, one.elements) for one in args[1:])) if args else 0
    return text(_total(args) + between)


def _listed_out(args: Sequence[Extent]) -> Extent:
    """The elements of a list as a text, with the last argument between each two of them."""
    between = times(args[0].elements, args[-1].size) if len(args) > 1 else 0
    return text(3 * _total(args) + between)


def _list_aggregate(args: Sequence[Extent]) -> Extent:
    """Of a list, the name of an aggregate and what goes to it: an element, all of them, or a text of all."""
    known = len(args) > 1 and args[1].constant is not None
    gathers = not known or str(args[1].constant).lower() in GATHERING
    if not gathers:
        return _first(args)
    found = _listed_out([args[0], *args[2:]])
    return replace(found, elements=max(found.elements, args[0].elements), each=max(found.each, args[0].each))


def _one_of(args: Sequence[Extent]) -> Extent:
    return replace(either(args), plain=False)


def _first(args: Sequence[Extent]) -> Extent:
    return replace(args[0], constant=None, plain=False) if args else Extent()


def _flat(args: Sequence[Extent]) -> Extent:
    size = args[0].size if args else NUMBER
    return Extent(size, elements=size, each=size)


def _element(args: Sequence[Extent]) -> Extent:
    return replace(text(max((args[0].each if args else NUMBER), NUMBER)), plain=False)


def _pack(args: Sequence[Extent]) -> Extent:
    return Extent(
        _total(args) + NUMBER * len(args), elements=len(args), each=max((one.size for one in args), default=NUMBER)
    )


def _at(args: Sequence[Extent], place: int, otherwise: float = inf) -> float:
    """The largest value of a numeric argument."""
    return max(args[place].most, 0) if len(args) > place else otherwise


def _repeat(args: Sequence[Extent]) -> Extent:
    count = _at(args, 1)
    return Extent(times(args[0].size, count), elements=times(args[0].elements, count), each=args[0].each)


def _pad(args: Sequence[Extent]) -> Extent:
    return text(4 * _at(args, 1))


def _bar(args: Sequence[Extent]) -> Extent:
    return text(4 * _at(args, 3, 80))


def _replaced(args: Sequence[Extent]) -> Extent:
    return text(args[0].size * max(1, args[2].size if len(args) > 2 else inf))


def _regexp_replaced(args: Sequence[Extent]) -> Extent:
    # What is put in stands at every place at most, and may repeat what was found half as often as it is long.
    return text(2 * (args[0].size + 1) * ((args[2].size if len(args) > 2 else inf) + 1))


def _split(args: Sequence[Extent]) -> Extent:
    pieces = args[0].size + 1
    return Extent(17 * pieces, elements=pieces, each=args[0].size)


def _range(last: int) -> Rule:
    """A series of numbers; ``last``: 1 where the end is one of them."""

    def rule(args: Sequence[Extent]) -> Extent:
        start, stop = (args[0], args[1]) if len(args) > 1 else (Extent(NUMBER, 0, 0), args[0])
        step = args[2] if len(args) > 2 else Extent(NUMBER, 1, 1)
        span = inf
        if step.least >= 1 and stop.most < inf and start.least > -inf:
            span = stop.most - start.least
        elif step.most <= -1 and start.most < inf and stop.least > -inf:
            span = start.most - stop.least
        count = max(0.0, span + last) / max(step.least, -step.most, 1)
        count = math.ceil(count) if count < inf else inf
        low, high = min(start.least, stop.least), max(start.most, stop.most)
        return Extent(times(count, 16), low, high, count, 16)

    return rule


def _resized(args: Sequence[Extent]) -> Extent:
    return series(_at(args, 1), max(args[0].each, args[2].size if len(args) > 2 else NUMBER))


def _zipped(args: Sequence[Extent]) -> Extent:
    return series(max(one.elements for one in args), sum(one.each for one in args) + 8)


def _mapped(args: Sequence[Extent]) -> Extent:
    """Of a list and what a lambda gives for an element."""
    return series(args[0].elements, args[1].size if len(args) > 1 else inf)


def _formatted(sign: str) -> Rule:
    def rule(args: Sequence[Extent]) -> Extent:
        written = args[0].constant if args else None
        # A width may be another argument: {:{}} and %*d.
        if written is None or re.search(r"\{[^}]*\{", written.replace("{{", "")) or "*" in written:
            return Extent(inf)
        widths = sum(int(number) for number in re.findall(r"\d+", written))
        longest = max((one.size for one in args[1:]), default=0) + 512  # a DOUBLE may have 310 digits
        return text(len(written.encode()) + widths + written.count(sign) * longest)

    return rule


def _dated(args: Sequence[Extent]) -> Extent:
    return text(32 * (_total(args) - NUMBER) if len(args) > 1 else NUMBER)


def _sum(args: Sequence[Extent]) -> Extent:
    if len(args) == 1:
        return replace(args[0], plain=False)
    return Extent(_sized(args), args[0].least + args[1].least, args[0].most + args[1].most)


def _difference(args: Sequence[Extent]) -> Extent:
    if len(args) == 1:
        return Extent(NUMBER, -args[0].most, -args[0].least)
    return Extent(_sized(args), args[0].least - args[1].most, args[0].most - args[1].least)


def _sized(args: Sequence[Extent]) -> float:
    """The bytes of arithmetic: those of a number, and of what is longer as much as it has (lists, for one)."""
    return _total(args) if any(one.size > NUMBER for one in args) else NUMBER


def _product(args: Sequence[Extent]) -> Extent:
    corners = [times(a, b) for a in (args[0].least, args[0].most) for b in (args[-1].least, args[-1].most)]
    return Extent(NUMBER, min(corners), max(corners))


def _quotient(args: Sequence[Extent]) -> Extent:
    most = max(abs(args[0].least), abs(args[0].most))
    return Extent(NUMBER, -most, most) if args[-1].least >= 1 or args[-1].most <= -1 else Extent()


def _remainder(args: Sequence[Extent]) -> Extent:
    most = max(abs(args[-1].least), abs(args[-1].most))
    return Extent(NUMBER, -most, most)


def _rounded(args: Sequence[Extent]) -> Extent:
    return whole(args[0]) if len(args) == 1 else Extent()


def whole(extent: Extent) -> Extent:
    """A number rounded to a whole one, in whatever way."""
    return Extent(
        NUMBER,
        math.floor(extent.least) if extent.least > -inf else -inf,
        math.ceil(extent.most) if extent.most < inf else inf,
    )


def _power(args: Sequence[Extent]) -> Extent:
    low, high, exponent = args[0].least, args[0].most, args[-1].most
    if low >= 1 and args[-1].least >= 0 and high < 1e6 and exponent <= 50:
        return Extent(NUMBER, 0, high**exponent)
    return Extent()


def _least(args: Sequence[Extent]) -> Extent:
    return replace(_one_of(args), most=min(one.most for one in args), least=min(one.least for one in args))


def _greatest(args: Sequence[Extent]) -> Extent:
    return replace(_one_of(args), least=max(one.least for one in args))


def _rules(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


SCALARS: Mapping[str, Rule] = {
    **_rules(_number, "/ ^ ** & | ~ xor >> << ! @ abs acos acosh asin asinh atan atan2 atanh cbrt cos cosh cot"),
    **_rules(_number, "degrees radians even exp fdiv fmod gamma lgamma factorial gcd lcm greatest_common_divisor"),
    **_rules(_number, "least_common_multiple isfinite isinf isnan ln log log10 log2 nextafter pi signbit sin sinh"),
    **_rules(_number, "sqrt tan tanh divide geomean geometric_mean bit_count ascii ord unicode"),
    **_rules(_number, "= <> != < <= > >= ~~ !~~ ~~* !~~* ~~~ like_escape not_like_escape ilike_escape"),
    **_rules(_number, "not_ilike_escape contains starts_with ends_with prefix suffix ^@ regexp_matches"),
    **_rules(_number, "regexp_full_match hash json_valid json_exists json_contains in_search_path"),
    **_rules(_number, "age century date_diff datediff date_sub datesub date_part datepart day dayofmonth dayofweek"),
    **_rules(_number, "dayofyear decade epoch epoch_ms epoch_ns epoch_us era hour isodow isoyear julian last_day"),
    **_rules(_number, "date_trunc datetrunc date_add time_bucket make_date make_time make_timestamp make_timestamptz"),
    **_rules(_number, "make_timestamp_ms make_timestamp_ns microsecond millennium millisecond minute month quarter"),
    **_rules(_number, "second timezone timezone_hour timezone_minute week weekday weekofyear year yearweek"),
    **_rules(_number, "days_in_month strptime try_strptime to_timestamp nanosecond dayname monthname"),
    **_rules(_number, "to_centuries to_decades to_hours to_microseconds to_millennia to_milliseconds to_minutes"),
    **_rules(_number, "to_seconds now today current_date get_current_time get_current_timestamp"),
    **_rules(_number, "transaction_timestamp current_localtime current_localtimestamp ago md5 sha1 sha256 uuid"),
    **_rules(_number, "gen_random_uuid uuidv4 uuidv7 random typeof pg_typeof format_bytes formatreadablesize"),
    **_rules(_number, "formatreadabledecimalsize list_contains list_has list_has_all list_has_any array_contains"),
    **_rules(_number, "array_has array_has_all array_has_any list_sum list_avg list_count list_bool_and list_bool_or"),
    **_rules(_number, "list_median list_product list_stddev_pop list_stddev_samp list_var_pop list_var_samp"),
    **_rules(_number, "md5_number json_type json_array_length && @> <@ IS_DISTINCT_FROM levenshtein editdist3"),
    **_rules(_number, "damerau_levenshtein jaro_similarity jaro_winkler_similarity jaccard hamming mismatches error"),
    **_rules(_number, "version grouping grouping_id alias"),
    **_rules(_first, "to_days to_weeks to_months to_quarters to_years"),
    **_rules(_within(-1, 1), "sign"),
    **_rules(_length, "length len strlen char_length character_length length_grapheme octet_length bit_length instr"),
    **_rules(_length, "strpos position list_position list_indexof array_position array_indexof array_length"),
    **_rules(_length, "cardinality list_unique array_unique"),
    **_rules(_sum, "+ add"),
    **_rules(_difference, "- subtract"),
    **_rules(_product, "* multiply"),
    **_rules(_quotient, "//"),
    **_rules(_remainder, "% mod"),
    **_rules(_power, "pow power"),
    **_rules(_rounded, "floor ceil ceiling round trunc round_even roundbankers"),
    **_rules(_least, "least"),
    **_rules(_greatest, "greatest"),
    **_rules(_one_of, "if ifnull nullif coalesce switch"),
    **_rules(_first, "left right left_grapheme right_grapheme substr substring substring_grapheme trim ltrim rtrim"),
    **_rules(_first, "list_slice array_slice list_sort list_reverse_sort list_distinct list_reverse list_where"),
    **_rules(_first, "array_sort array_reverse_sort array_distinct array_reverse array_where array_pop_back"),
    **_rules(_first, "array_pop_front list_filter array_filter filter list_select array_select list_intersect"),
    **_rules(_first, "array_intersect regexp_extract split_part constant_or_null strip_accents reverse"),
    **_rules(_first, "map_keys map_values list_grade_up array_grade_up json_extract_string"),
    **_rules(_first, "json_extract_path_text json_value ->> url_decode"),
    **_rules(_first, "parse_filename parse_dirname parse_dirpath"),
    **_rules(_first, "list_min list_max list_first list_last list_any_value list_mode"),
    **_rules(_list_aggregate, "list_aggr list_aggregate array_aggr array_aggregate aggregate"),
    **_rules(_first, "map_extract_value map_extract element_at"),
    **_rules(_element, "list_extract list_element array_extract unnest"),
    **_rules(_first, "struct_extract struct_extract_at map_contains"),
    **_rules(_flat, "flatten map_entries json_keys"),
    **_rules(_grown(1), "concat || list_concat list_cat array_concat array_cat list_append list_prepend"),
    **_rules(_grown(1), "array_append array_prepend array_push_back array_push_front overlay"),
    **_rules(_separated, "concat_ws"),
    **_rules(_listed_out, "array_to_string list_string_agg"),
    **_rules(_grown(3), "upper lower ucase lcase hex to_hex to_base64 base64"),
    **_rules(_grown(3), "json_extract json_extract_path -> url_encode regexp_escape nfc_normalize json_merge_patch"),
    **_rules(
        _grown(4), "translate encode decode from_base64 from_hex unhex from_binary unbin"
    ),  # bytes as text take four letters each
    **_rules(_grown(8), "to_json json json_object json_array json_quote row_to_json array_to_json bin to_binary"),
    **_rules(
        _pack, "list_value list_pack array_value struct_pack row map map_from_entries struct_insert struct_update"
    ),
    **_rules(_zipped, "list_zip array_zip"),
    **_rules(_repeat, "repeat"),
    **_rules(_pad, "lpad rpad to_base"),
    **_rules(_bar, "bar"),
    **_rules(_replaced, "replace"),
    **_rules(_regexp_replaced, "regexp_replace"),
    **_rules(_split, "string_split str_split split string_to_array string_split_regex str_split_regex"),
    **_rules(_split, "regexp_split_to_array regexp_extract_all regexp_split_to_table"),
    **_rules(_range(0), "range"),
    **_rules(_range(1), "generate_series"),
    **_rules(_resized, "list_resize array_resize"),
    **_rules(_mapped, "list_transform array_transform list_apply array_apply apply"),
    **_rules(_formatted("{"), "format"),
    **_rules(_formatted("%"), "printf"),
    **_rules(_dated, "strftime"),
    **_rules(lambda args: text(4), "chr"),
    **_rules(lambda args: text(TEXT), "current_database current_schema current_catalog"),
    **_rules(lambda args: series(ELEMENTS, NUMBER), "current_schemas"),
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

STEPS: Mapping[str, Callable[[Sequence[Extent]], float]] = {
    **dict.fromkeys(("levenshtein", "editdist3", "jaro_similarity", "jaro_winkler_similarity", "translate"), _both),
    "damerau_levenshtein": lambda args: 8 * _both(args),
    **dict.fromkeys(("regexp_matches", "regexp_full_match", "regexp_extract", "regexp_replace"), _searched),
    **dict.fromkeys(("regexp_extract_all", "regexp_split_to_array", "string_split_regex"), _searched),
    "str_split_regex": _searched,
    "regexp_split_to_table": _searched,
    **dict.fromkeys(("~~", "!~~", "~~*", "!~~*", "~~~", "like_escape", "not_like_escape"), _liked),
    **dict.fromkeys(("ilike_escape", "not_ilike_escape"), _liked),
    **dict.fromkeys(("list_has_all", "list_has_any", "list_intersect", "array_intersect", "&&", "@>", "<@"), _both),
    **dict.fromkeys(("array_has_all", "array_has_any"), _both),
    **dict.fromkeys(("list_sort", "list_reverse_sort", "array_sort", "array_reverse_sort", "list_distinct",
                     "array_distinct", "list_unique", "array_unique", "list_grade_up", "array_grade_up"),
                    lambda args: 20 * args[0].size),
    **dict.fromkeys(("list_aggr", "list_aggregate", "array_aggr", "array_aggregate", "aggregate", "list_median",
                     "list_mode"), lambda args: 20 * args[0].size),
}  # fmt: skip
"""Steps of a call beyond the bytes that it gives, where these grow faster than its arguments."""

LAMBDAS = _words("list_transform array_transform list_apply array_apply apply list_filter array_filter filter")
"""Functions whose second argument is a lambda, of an element and its place."""

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
GATHERING = _words("string_agg group_concat listagg list array_agg json_group_array json_group_object histogram")
"""Aggregates whose result has every row that goes in."""
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
) | {"timestamp with time zone", "time with time zone", "struct", "enum"}
"""Types that a cast may name."""
WORDS = _words("varchar char bpchar text string json blob bytea binary varbinary name enum")
"""Those of them whose values are texts."""
