"""The user's SQL: conditions, computed items, and queries over files.

Each output row must be a function of one input row; otherwise one user could affect the rows of another. DuckDB's
parser reads the SQL, and anything not known to use a single row is refused. Expressions are bound to column names
and types before any row is read, and evaluated inside TRY: where one fails on a row (a text that is not a number)
it is NULL, because an error would reveal that row. They see no value longer than `LONGEST_VALUE`, and make no much
longer texts, so that no row takes much memory or time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dphist.aliases import JsonObject
from dphist.certificate.request import Column
from dphist.counting.sql import NESTED, Opened, Source, limit_length, name, require_columns, text_column
from dphist.counting.task import LONGEST_VALUE, Events
from dphist.counting.workspace import about_sql, column_list, name_list
from dphist.errors import InputError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# TRY does not catch every error, so one row could fail a release. These functions, types and syntax nodes raise
# only errors that it catches (`tests/counting/test_expression_functions.py` tries them all). None takes long or
# makes a text or a list much longer than its arguments, so one row cannot exhaust memory either.
_FORMS: Final = frozenset({
    "BETWEEN", "CASE", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION",
    "LAMBDA", "OPERATOR", "TYPE",
})  # fmt: skip
_FUNCTION_NAMES: Final = """
    + - * / // % ** ^ & | << >> ~ @ || ~~ !~~ ~~* !~~* ~~~ ^@
    ascii base64 bin bit_length char_length character_length chr concat concat_ws contains
    decode encode ends_with format_bytes from_base64 from_hex hamming hash hex instr jaccard jaro_similarity
    jaro_winkler_similarity lcase left left_grapheme len length length_grapheme lower ltrim md5
    nfc_normalize octet_length ord parse_dirname parse_dirpath parse_filename parse_path position prefix
    regexp_escape regexp_extract regexp_extract_all regexp_full_match regexp_matches regexp_split_to_array reverse
    right right_grapheme rtrim sha1 sha256 split split_part starts_with str_split str_split_regex string_split
    string_split_regex string_to_array strip_accents strlen strpos substr substring substring_grapheme suffix
    to_base64 to_binary to_hex translate trim ucase unhex unicode upper url_decode url_encode
    greatest if least nullif typeof
    abs acos acosh add asin asinh atan atan2 atanh bit_count cbrt ceil ceiling cos cosh cot degrees divide even exp
    factorial fdiv floor fmod gamma gcd greatest_common_divisor isfinite isinf isnan lcm least_common_multiple
    lgamma ln log log10 log2 mod multiply nextafter pi pow power radians round round_even sign signbit sin sinh
    sqrt subtract tan tanh trunc xor
    century day dayname dayofmonth days_in_month decade epoch epoch_ms epoch_ns epoch_us hour julian last_day
    make_date make_time microsecond millennium millisecond minute month monthname quarter second strftime strptime
    to_centuries to_days to_decades to_hours to_microseconds to_millennia to_milliseconds to_minutes to_months
    to_quarters to_seconds to_timestamp to_weeks to_years try_strptime year
    array_concat array_contains array_extract array_has array_has_all array_has_any array_slice
    cardinality element_at flatten list_avg list_cat list_concat list_contains list_count list_element
    list_extract list_first list_has list_has_all list_has_any list_indexof list_last list_max list_min
    list_pack list_position list_reverse_sort list_slice list_sort list_sum list_unique list_value map_contains
    map_extract map_extract_value map_keys map_values row struct_extract struct_pack
    json_array json_contains json_object json_structure json_valid to_json
"""
FUNCTIONS: Final = frozenset(_FUNCTION_NAMES.split())
# Functions that can fail, exhaust memory or take long because of these arguments or the types of the others: the
# arguments must be constants, and the call is tried with sample values.
CONSTANT_ARGUMENTS: Final = {
    "date_part": (0,), "datepart": (0,), "date_trunc": (0,), "datetrunc": (0,), "date_diff": (0,),
    "datediff": (0,), "date_sub": (0,), "datesub": (0,), "dayofweek": (), "dayofyear": (), "isodow": (),
    "isoyear": (), "week": (), "weekday": (), "weekofyear": (), "yearweek": (),
    "timezone": (0,), "time_bucket": (0, 2, 3), "array_length": (1,), "array_to_string": (1,),
    "lpad": (1,), "rpad": (1,), "printf": (0,), "format": (0,), "replace": (2,), "regexp_replace": (2, 3),
    "levenshtein": (1,),
    "->>": (1,), "json_array_length": (1,), "json_exists": (1,), "json_extract": (1,), "json_extract_path": (1,),
    "json_extract_path_text": (1,), "json_extract_string": (1,), "json_keys": (1,), "json_type": (1,),
    "json_value": (1,),
}  # fmt: skip
_LONGEST_CONSTANT: Final = 1000
# A text may become this many times as long as the values of the columns that are used, because DuckDB computes two
# thousand at a time and its memory limit does not cover them.
_MOST_GROWTH: Final = 16
_TIMES: Final = {
    "base64": 2, "to_base64": 2, "bin": 8, "to_binary": 8, "hex": 2, "to_hex": 2, "regexp_escape": 2,
    "url_encode": 3, "to_json": 6, "json_array": 6, "json_object": 6,
}  # fmt: skip
_JOINED: Final = frozenset({
    "||", "concat", "concat_ws", "list_concat", "list_cat", "array_concat", "list_value", "list_pack", "row",
    "struct_pack", "json_array", "json_object",
})  # fmt: skip
# A width in a format string that is another argument, or has more than three digits.
_WIDE: Final = re.compile(r"\*|\{[^}]*\{|\d{4}")
# A JSON path through all levels, or a list of paths: it gives the same values several times. Two such steps in a
# path can take hours and gigabytes for one row.
_REPEATING_PATH: Final = re.compile(r"\.\.|\*\*|^\[")
# The time may differ between two passes over the events, so it can select rows but not be an item.
CLOCK: Final = frozenset({"now", "today", "current_date", "current_timestamp"})
_TYPE_NAMES: Final = """
    BIGINT BLOB BOOL BOOLEAN BYTEA CHAR DATE DATETIME DEC DECIMAL DOUBLE FLOAT FLOAT4 FLOAT8 HUGEINT INT INT1 INT2
    INT4 INT8 INTEGER INTERVAL JSON LIST LONG NUMERIC REAL SHORT SMALLINT STRING STRUCT TEXT TIME TIMESTAMP
    TIMESTAMPTZ TIMESTAMP_MS TIMESTAMP_NS TIMESTAMP_S TINYINT UBIGINT UHUGEINT UINTEGER USMALLINT UTINYINT UUID
    VARCHAR
"""
TYPES: Final = frozenset({*_TYPE_NAMES.split(), "TIMESTAMP WITH TIME ZONE"})
_NO_COLUMNS: Final = re.compile(r"\b(BIT|BIGNUM|GEOMETRY|UNION|VARIANT)\b")
_SAMPLES: Final = {
    r"DATE|TIMESTAMP.*": "'2020-01-31'", r"TIME.*": "'10:00'", r"INTERVAL": "'1 day'", r"VARCHAR": "'a'",
    r".*\[\]": "[]", r"JSON": "'{}'", r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DECIMAL.*|FLOAT|DOUBLE|BOOLEAN": "1",
}  # fmt: skip
# Any text may be a JSON key; only one with a call or a cast is an expression.
CALL_OR_CAST: Final = re.compile(r"\(|::")
_NUMBERS: Final = ("INTEGER", "DECIMAL", "FLOAT", "DOUBLE", "NUMERIC")
_ONE_ROW_ONLY: Final = (
    "over files it must be SELECT expressions FROM input WHERE condition, so that each row comes from one row of "
    "the input: no joins, subqueries, WITH, UNION, aggregates, GROUP BY, window functions, DISTINCT, ORDER BY, "
    "LIMIT or samples"
)


def title_of(kind: str, written: str) -> str:
    return f"the {kind} {written!r}"


def serialize(connection: DuckDBPyConnection, query: str) -> JsonObject:
    """The syntax tree of a query, without positions in the text."""
    rows = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    tree: JsonObject = json.loads(
        rows[0][0],
        object_hook=lambda node: {key: node[key] for key in node if not key.startswith("query_location")},
    )
    return tree


def parse(connection: DuckDBPyConnection, expression: str) -> tuple[JsonObject, list[JsonObject]]:
    """The syntax tree of a query with the expression in WHERE, and the expression, removed from the tree."""
    # On lines of its own, so that a trailing comment ends there.
    tree = serialize(connection, f"SELECT 1 FROM t WHERE TRY((\n{expression}\n))")
    try:
        return tree, tree["statements"][0]["node"]["where_clause"].pop("children")
    except (KeyError, IndexError, TypeError, AttributeError):
        return tree, []


def nodes_of(tree: object) -> Iterator[JsonObject]:
    if isinstance(tree, dict):
        yield tree
    for value in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from nodes_of(value)


def check(connection: DuckDBPyConnection, expression: str, kind: str) -> list[JsonObject]:
    """The syntax nodes of an expression; an error unless it is a single expression that uses one row."""
    bad = f"{title_of(kind, expression)} is not {'an' if kind == 'expression' else 'a'} {kind} in SQL"
    if not expression.strip():
        raise InputError(bad)
    query, parts = parse(connection, expression)
    if query.get("error"):
        raise InputError(f"{bad}: {about_sql(query.get('error_message', 'syntax error'))}")
    # The rest of the query must be unchanged.
    if len(parts) != 1 or query != parse(connection, "TRUE")[0]:
        raise InputError(bad)
    nodes = list(nodes_of(parts))
    if any("class" in node and node["class"] not in _FORMS for node in nodes):
        raise InputError(
            f"{title_of(kind, expression)} must use one row at a time: no subqueries, no * and no COLLATE"
        )
    return nodes


def columns_of(
    connection: DuckDBPyConnection, expression: str, names: Sequence[str] | None, kind: str
) -> list[str]:
    """The input columns that an expression names: exactly, or else ignoring case."""
    columns: dict[str, str] = {}
    for node in check(connection, expression, kind):
        if node.get("class") == "COLUMN_REF":
            word = str(node["column_names"][0])
            alike = [column for column in names or [word] if column.casefold() == word.casefold()]
            matches = [word] if word in alike else alike
            if len(matches) > 1 or (matches and columns.get(word.casefold(), matches[0]) != matches[0]):
                raise ambiguous_case(title_of(kind, expression), alike)
            if matches:
                columns[word.casefold()] = matches[0]
    return list(columns.values())


def ambiguous_case(title: str, columns: Sequence[str]) -> InputError:
    return InputError(f"{title} cannot tell apart the columns {name_list(columns)}")


def bind(
    connection: DuckDBPyConnection,
    expression: str,
    types: Mapping[str, str],
    names: Sequence[str] | None,
    kind: str,
) -> str:
    """The type of an expression, bound to columns without rows, so that errors contain names and types only."""
    title = title_of(kind, expression)
    typed = [f"CAST(NULL AS {own}) AS {name(column)}" for column, own in types.items()] or ["1"]
    rows = f"(SELECT {', '.join(typed)} LIMIT 0)"
    # Not a constant, so that nothing is left out because its result would be NULL.
    missing = [f"CAST(nullif(range::VARCHAR, '0') AS {own}) AS {name(column)}" for column, own in types.items()]
    row = f"(SELECT {', '.join(missing or ['1'])} FROM range(1))"
    tried = f"TRY((\n{expression}\n))"
    texts = [column for column, own in types.items() if own == "VARCHAR"]
    nodes = check(connection, expression, kind)
    _refuse_text_as_number(nodes, texts, title)
    # Before DuckDB binds it, and computes the parts that are constant.
    problem = _unsupported_call(connection, nodes, kind) or _too_long(nodes)
    if problem is not None:
        raise InputError(f"{title} cannot be used: {problem}")
    condition = tried if kind == "condition" else f"({tried}) IS NULL"
    try:
        connection.execute(f"EXPLAIN SELECT 1 FROM {rows} WHERE {condition}").fetchall()
        result = type_of(connection, tried, rows)
    except Exception as error:
        reason = about_sql(error)
    else:
        problem = _unsafe_part(connection, nodes, types, rows, kind)
        if problem is not None:
            raise InputError(f"{title} cannot be used: {problem}")
        try:
            # Some casts between types fail when a query begins, whatever its rows are.
            connection.execute(f"SELECT 1 FROM {row} WHERE {condition}").fetchall()
            connection.execute(f"SELECT CAST({tried} AS VARCHAR) FROM {row}").fetchall()
        except Exception as error:
            raise InputError(f"{title} cannot be used: {about_sql(error)}") from None
        return result
    hint = "" if names is None else f". The columns are {column_list(list(names or types))}"
    if "VARCHAR" in reason and texts:
        hint += (
            f". {texts[0]!r} is text, as all columns of CSV, JSON and frames are: write "
            f"{_cast(texts[0], 'DOUBLE')} or {_cast(texts[0], 'DATE')}, or pass types='fixed' for a frame"
        )
    raise InputError(f"{title} cannot be used: {reason}{hint}")


def type_of(connection: DuckDBPyConnection, expression: str, rows: str) -> str:
    return str(connection.execute(f"DESCRIBE SELECT {expression} AS x FROM {rows}").fetchall()[0][1])


def _unsupported_call(connection: DuckDBPyConnection, nodes: Sequence[JsonObject], kind: str) -> str | None:
    """Why a function cannot be used; None if all are supported, or do not exist, which DuckDB reports."""
    for node in nodes:
        if node.get("class") != "FUNCTION":
            continue
        function = str(node["function_name"]).lower()
        qualified = bool(node.get("schema") or node.get("catalog"))
        if function in CONSTANT_ARGUMENTS or (not qualified and function in FUNCTIONS):
            continue
        if not qualified and function in CLOCK and kind == "condition":
            continue
        forms = connection.execute(
            "SELECT DISTINCT function_type, coalesce(stability, '') FROM duckdb_functions() "
            "WHERE lower(function_name) = ? AND function_type NOT LIKE '%table%'",
            [function],
        ).fetchall()
        kinds = {form for form, _ in forms}
        if kinds & {"aggregate", "window"} and not kinds & {"scalar", "macro"}:
            return "it must use one row at a time: no aggregates and no window functions"
        if any(stability == "VOLATILE" for _, stability in forms):
            return "it must always give the same result for the same row"
        if forms or qualified:
            return f"{function} is not supported: it may depend on more than the row, or fail because of it"
    return None


def _too_long(nodes: Sequence[JsonObject]) -> str | None:
    """Which function could make a text much longer than the columns it is made of; None if there is none."""
    columns = {str(node["column_names"][0]).casefold() for node in nodes if node.get("class") == "COLUMN_REF"}
    most = _MOST_GROWTH * LONGEST_VALUE * max(1, len(columns))
    # The innermost first.
    for node in reversed(nodes):
        made_by = node.get("function_name") or (node.get("type") == "ARRAY_CONSTRUCTOR" and "array")
        if made_by and _longest(node) > most:
            return (
                f"{str(made_by).lower()} could make texts of more than {_MOST_GROWTH} times the "
                "length of their columns: use shorter constants or fewer calls within each other"
            )
    return None


def _longest(node: object) -> float:
    """At least the bytes of the longest value of this part, or of any that it is computed from."""
    if isinstance(node, list):
        return max(map(_longest, node), default=0)
    if not isinstance(node, dict):
        return 0
    if node.get("class") == "COLUMN_REF":
        return LONGEST_VALUE
    if node.get("class") == "CONSTANT":
        return len(_constant(node).encode())
    if node.get("type") == "ARRAY_CONSTRUCTOR":
        return sum(map(_longest, node["children"]))
    if node.get("class") != "FUNCTION":
        return max(map(_longest, node.values()), default=0)
    function = str(node["function_name"]).lower()
    parts = [argument["expression"] for argument in node["arguments"]]
    sizes = [_longest(part) for part in parts]
    size = sum(sizes) if function in _JOINED else max(sizes, default=0)
    if function == "concat_ws":
        size = sum(sizes) + sizes[0] * len(sizes)
    elif function == "replace" and len(sizes) == 3:
        # At least one byte of each place is replaced.
        replaced = len(_constant(parts[1]).encode()) if parts[1].get("class") == "CONSTANT" else 1
        size = sizes[0] * max(1.0, sizes[2] / max(1, replaced))
    elif function == "regexp_replace" and len(sizes) > 2:
        size = (sizes[0] + 1) * max(1.0, sizes[2])  # each match may be empty, or the text
    elif function == "array_to_string" and len(sizes) > 1:
        size = sizes[0] * (1 + sizes[1])
    elif function in ("printf", "format"):
        # An argument needs three characters, such as {0}; a width has three digits.
        size = max(sizes[1:], default=0) * max(1.0, sizes[0] / 3) + sizes[0] * _LONGEST_CONSTANT / 4
    elif function in ("lpad", "rpad"):
        size = max(size, 4 * _LONGEST_CONSTANT)
    return size * _TIMES.get(function, 1)


def _constant(node: JsonObject) -> str:
    literal = node.get("literal")
    return str(literal.get("text", "")) if isinstance(literal, dict) else str(node.get("value"))


def _unsafe_part(
    connection: DuckDBPyConnection, nodes: Sequence[JsonObject], types: Mapping[str, str], rows: str, kind: str
) -> str | None:
    """Why a bound expression could fail because of a single row, or change with time; None if it is safe."""
    columns = {column.casefold() for column in types}
    clock = CLOCK if kind == "condition" else frozenset()
    for column, own in types.items():
        if _NO_COLUMNS.search(own):
            return f"the column {column!r} has the type {own}, which {kind}s cannot use"
    for node in nodes:
        if node.get("class") == "COLUMN_REF":
            word = str(node["column_names"][0]).lower()
            if word.casefold() not in columns and word not in clock:
                return f"it must always give the same result for the same row, and {word} does not"
        if node.get("class") == "LAMBDA":  # `value -> path`, for no function here takes a lambda
            path = node["expr"]
            if path.get("class") != "CONSTANT" or _REPEATING_PATH.search(_constant(path)):
                return "the path after -> must be a constant without .. and **: another could take long"
        if node.get("class") == "TYPE" and str(node["type_name"]).upper() not in TYPES:
            return f"values cannot be cast to {node['type_name']}"
        function = str(node.get("function_name")).lower()
        if node.get("class") == "FUNCTION" and function in CONSTANT_ARGUMENTS:
            problem = _unsafe_call(connection, node, function, rows)
            if problem is not None:
                return problem
    return None


def _unsafe_call(connection: DuckDBPyConnection, node: JsonObject, function: str, rows: str) -> str | None:
    """Why a call of a function with constant arguments could fail because of a row; None if it could not."""
    arguments: list[str] = []
    is_json = function == "->>" or function.startswith("json_")
    try:
        for place, argument in enumerate(node["arguments"]):
            text = _text_of(connection, {**argument["expression"], "alias": ""}, f"the call of {function}")
            is_constant = all(part.get("class") != "COLUMN_REF" for part in nodes_of(argument))
            must_be_constant = place in CONSTANT_ARGUMENTS[function]
            if argument.get("name") or (must_be_constant and not is_constant):
                why = "take long" if is_json or function == "levenshtein" else "fail on a row"
                return f"argument {place + 1} of {function} must be a constant: another value could {why}"
            if must_be_constant:
                # As text: for some types Python needs another package.
                value = str(connection.execute(f"SELECT CAST(({text}) AS VARCHAR)").fetchall()[0][0])
                large = function in ("lpad", "rpad") and not float(value) <= _LONGEST_CONSTANT
                wide = function in ("printf", "format") and _WIDE.search(value) is not None
                repeating = is_json and _REPEATING_PATH.search(value) is not None
                if large or wide or repeating or len(value) > _LONGEST_CONSTANT:
                    return f"argument {place + 1} of {function} makes texts that are too long"
            if not is_constant:
                kind = type_of(connection, text, rows)
                sample = next((value for like, value in _SAMPLES.items() if re.fullmatch(like, kind)), "NULL")
                sample = _SAMPLES["JSON"] if is_json and kind == "VARCHAR" else sample
                text = f"CAST({sample} AS {kind})"
            arguments.append(text)
        connection.execute(f"SELECT CAST({name(function)}({', '.join(arguments)}) AS VARCHAR)").fetchall()
    except InputError:
        raise
    except Exception as error:
        return about_sql(error)
    return None


def _refuse_text_as_number(nodes: Sequence[JsonObject], texts: Sequence[str], title: str) -> None:
    """Raise `InputError` if text is compared with a number: as text, '10' is below '9' and differs from '10.0'."""
    columns = {column.casefold(): column for column in texts}
    for node in nodes:
        if node.get("class") not in ("COMPARISON", "BETWEEN") and node.get("type") != "COMPARE_IN":
            continue
        sides = [side for value in node.values() for side in (value if isinstance(value, list) else [value])]
        sides = [side for side in sides if isinstance(side, dict)]
        words = [str(side["column_names"][0]).casefold() for side in sides if side.get("class") == "COLUMN_REF"]
        column = next((columns[word] for word in words if word in columns), None)
        literals = [side.get("literal") or {} for side in sides if side.get("class") == "CONSTANT"]
        if column is not None and any(literal.get("kind") in _NUMBERS for literal in literals):
            raise InputError(
                f"{title} compares {column!r}, which is text, with a number: write {_cast(column, 'DOUBLE')} "
                "(of decimal commas CAST(replace(..., ',', '.') AS DOUBLE)), or put the number in quotes to "
                "compare texts"
            )


def _cast(column: str, kind: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_]\w*", column)
    return f"CAST({column if plain else name(column)} AS {kind})"


def _is_computed(connection: DuckDBPyConnection, source: Source, column: Column) -> bool:
    """Whether an item is an SQL expression; a column of that name takes precedence."""
    if column.name == column.source:
        if source.names is not None and column.source not in source.names and "(" in column.source:
            raise InputError(
                f"{source.what} has no column {column.source!r}; give an expression a name, as in "
                f'<--item> "NAME={column.source}"'
            )
        return False
    if source.names is None:
        return CALL_OR_CAST.search(column.source) is not None
    if column.source in source.names:
        return False
    query, parts = parse(connection, column.source)
    if query.get("error"):
        raise InputError(
            f"{source.what} has no column {column.source!r}, and it is not an SQL expression either: "
            f"{about_sql(query.get('error_message', 'syntax error'))}. The columns are "
            f"{column_list(source.names)}"
        )
    # A single name is a column, which does not exist.
    return [part.get("class") for part in parts] != ["COLUMN_REF"]


def with_expressions(connection: DuckDBPyConnection, source: Source, events: Events) -> Source:
    """The rows that satisfy the condition, with an additional column for each computed item, named by its text."""
    computed = {item.source: item.source for item in events.items if _is_computed(connection, source, item)}
    # In two steps: the condition and an item may name columns that differ in case only.
    for expressions, condition in (({}, events.where), (computed, None)):
        if expressions or condition is not None:
            names = None if source.names is None else [*source.names, *expressions]
            rows = computed_source(connection, source, expressions, condition, keep=True, as_text=events.as_text)
            source = replace(rows, names=names)
    return source


def computed_source(
    connection: DuckDBPyConnection,
    source: Source,
    expressions: Mapping[str, str],
    condition: str | None,
    *,
    keep: bool,
    as_text: bool = False,
) -> Source:
    """A source with columns computed by expressions, for the rows that satisfy a condition.

    `keep` keeps the columns of the source too. With `as_text` expressions see text columns.
    """
    names = source.names
    used = {column: columns_of(connection, text, names, "expression") for column, text in expressions.items()}
    needed = [] if condition is None else columns_of(connection, condition, names, "condition")

    def open_computed(wanted: list[str]) -> Opened:
        computed = [column for column in wanted if column in expressions]
        kept = [column for column in wanted if keep and column not in expressions]
        seen = list(dict.fromkeys([*needed, *(source for column in computed for source in used[column])]))
        for column in seen:
            alike = [other for other in seen if other.casefold() == column.casefold()]
            if len(alike) > 1:
                raise ambiguous_case(title_of("expression", expressions[computed[0]]), alike)
        if names is not None:
            require_columns(source.what, names, seen)
        opened = source.open(list(dict.fromkeys([*kept, *seen])))
        typed = {c: text_column(*opened.columns[c]) if as_text else opened.columns[c] for c in seen}
        types = {column: kind for column, (_, kind) in typed.items()}
        if condition is not None:
            bind(connection, condition, {c: types[c] for c in needed}, names, "condition")
        prefix = "dphist_"
        while any(column.casefold().startswith(prefix) for column in seen):
            prefix += "_"
        inner = [f"{opened.columns[column][0]} AS {prefix}{k}" for k, column in enumerate(kept)]
        inner += [f"{_limit(value, kind)} AS {name(column)}" for column, (value, kind) in typed.items()]
        outer = [f"{prefix}{k}" for k in range(len(kept))]
        columns = {column: (f"{prefix}{k}", opened.columns[column][1]) for k, column in enumerate(kept)}
        for k, column in enumerate(computed):
            text = expressions[column]
            kind = bind(connection, text, {c: types[c] for c in used[column]}, names, "expression")
            outer.append(f"TRY((\n{text}\n)) AS {prefix}x{k}")
            # NULL alone is text, like an empty column.
            columns[column] = f"{prefix}x{k}", "VARCHAR" if kind == '"NULL"' else kind
        where = "" if condition is None else f" WHERE TRY((\n{condition}\n))"
        # A constant needs no column, but a row for each row of the input.
        rows = f"SELECT {', '.join(inner) or '1'} FROM {opened.relation}"
        return replace(opened, relation=f"(SELECT {', '.join(outer)} FROM ({rows}){where})", columns=columns)

    return Source(source.what, list(expressions), open_computed)


def _limit(value: str, kind: str) -> str:
    """The value of a column, NULL if it is longer than a user or an item may be: a row must not take long."""
    if kind in ("VARCHAR", "JSON") or kind.startswith("ENUM"):
        return limit_length(value if kind == "VARCHAR" else f"CAST({value} AS VARCHAR)", value)
    if kind == "BLOB":
        return f"CASE WHEN octet_length({value}) <= {LONGEST_VALUE} THEN {value} END"
    if NESTED.search(kind):
        return limit_length(f"TRY(CAST(to_json({value}) AS VARCHAR))", value)
    return value


def query_source(connection: DuckDBPyConnection, source: Source, query: str, tables: Sequence[str]) -> Source:
    """The result of a query over a source, row by row. `tables` are the names of the source in FROM."""
    title = title_of("query", query)
    tree = serialize(connection, query)
    if tree.get("error"):
        reason = about_sql(tree.get("error_message", "syntax error"))
        raise InputError(
            f"{title} is not a SELECT" if "SELECT statements" in reason else f"{title} cannot be used: {reason}"
        )
    node = _plain_select(connection, tree, title)
    table = node["from_table"]
    if str(table["table_name"]).casefold() not in [table.casefold() for table in tables]:
        raise InputError(
            f"{title} reads {table['table_name']!r}: the input is called {tables[0]}, as in FROM {tables[0]}"
        )
    qualifiers = {str(table["table_name"]).casefold(), str(table["alias"]).casefold()} - {""}
    own = {column.casefold() for column in source.names or ()}
    for reference in nodes_of([node["select_list"], node["where_clause"]]):
        parts = reference.get("column_names") if reference.get("class") == "COLUMN_REF" else None
        if parts and len(parts) > 1 and parts[0].casefold() in qualifiers - own:
            reference["column_names"] = parts[1:]
    columns: list[tuple[str, str]] = []
    for item in node["select_list"]:
        if item.get("class") == "STAR":
            relation = str(item.get("relation_name") or "").casefold()
            if relation and relation not in qualifiers:
                raise InputError(f"{title} cannot be used: {item['relation_name']!r} is not a table of it")
            changed = {key for key, value in item.items() if value} - {"class", "type", "relation_name"}
            if changed or source.names is None:
                more = " with EXCLUDE or REPLACE" if changed else ""
                raise InputError(f"{title} cannot be used: write the columns instead of *{more}")
            columns += [(column, name(column)) for column in source.names]
            continue
        text = _text_of(connection, {**item, "alias": ""}, title)
        last = item["column_names"][-1] if item.get("class") == "COLUMN_REF" else text
        columns.append((item.get("alias") or last, text))
    names = [column for column, _ in columns]
    twice = next((column for column in names if names.count(column) > 1), None)
    if twice is not None:
        raise InputError(f"{title} returns two columns with the name {twice!r}: give one another name with AS")
    where = node["where_clause"]
    condition = None if where is None else _text_of(connection, where, title)
    return computed_source(connection, source, dict(columns), condition, keep=False)


def _plain_select(connection: DuckDBPyConnection, tree: JsonObject, title: str) -> JsonObject:
    """The node of a SELECT from one table; the rest of its tree must be that of `SELECT 1 FROM t`."""
    plainest = serialize(connection, "SELECT 1 FROM t")
    wanted, node = plainest["statements"][0]["node"], (tree["statements"] or [{}])[0].get("node", {})
    wanted |= {part: node.get(part) for part in ("select_list", "where_clause")}
    table = node.get("from_table") or {}
    wanted["from_table"] |= {part: table.get(part) for part in ("alias", "table_name", "qualified_name")}
    if tree != plainest:
        raise InputError(f"{title} cannot be used: {_ONE_ROW_ONLY}")
    return dict(node)


def _text_of(connection: DuckDBPyConnection, item: JsonObject, title: str) -> str:
    """The SQL of a syntax tree; an error unless DuckDB parses it to the same tree."""
    tree = serialize(connection, "SELECT 1")
    tree["statements"][0]["node"]["select_list"] = [item]
    rows = connection.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)]).fetchall()
    text = str(rows[0][0]).removeprefix("SELECT ")
    if serialize(connection, f"SELECT {text}") != tree:
        raise InputError(f"{title} cannot be used: it has an expression that DuckDB cannot write as text")
    return text
