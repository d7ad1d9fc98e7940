"""The rules for SQL code of an eval tool, checked in its tokens, for the usual dialects at once.

One statement of a listed kind, with listed functions. What two dialects read differently is refused.
"""

import re
from typing import Final, NamedTuple
from unicodedata import normalize

from callyard.model.names import words_in

__all__ = ["sql_refusal"]


class _RefusedError(Exception):
    """The code breaks a rule, which is the message."""


class _Token(NamedTuple):
    kind: str
    """`word`, `quoted` (a quoted identifier), `string`, `number`, `mark` or `end`."""
    text: str


_STATEMENTS: Final = words_in("select with values explain show describe desc insert update delete create pragma")
_CREATED: Final = words_in("table view index")
_BLOCKED: Final = words_in(
    "drop truncate alter attach detach grant revoke exec execute shutdown outfile dumpfile infile waitfor backup restore dbcc bulk "
    "reconfigure openrowset opendatasource openquery xp_cmdshell program deny impersonate declare kill merge deallocate vacuum "
    "reindex writetext updatetext language extension trigger procedure handler immediate while goto begin commit rollback savepoint "
    "checkpoint revert setuser go print listen notify fsdir zipfile readfile writefile load_extension pg_shadow pg_authid raiserror "
    "readtext tran transaction"
)
"""Words that may not be used unquoted."""
_CHANGES: Final = frozenset({"insert", "update", "delete"})
_CHANGE_CLAUSES: Final = {"update": frozenset({"do", "key", "for", "on"}), "delete": frozenset({"on"}), "insert": frozenset[str]()}
"""Words before which a change is a clause and no statement."""
_STORAGE: Final = words_in("connection directory location tablespace external server inherits")
"""Words that place a new table outside of the database."""
_ENGINES: Final = words_in("innodb myisam memory heap aria mergetree rocksdb")
_CLAUSES: Final = words_in("select from where group order having on limit values set using returning with union except intersect")
_FILE: Final = re.compile(r"\.(?:[ct]sv|json|jsonl|ndjson|parquet|txt|xlsx?|db|sqlite3?|duckdb|arrow|orc|avro|gz|zst|log|ya?ml)\b|[*?]")
_FILE_SCHEMAS: Final = words_in("csv json parquet text orc avro delta binaryfile libsvm image")
_PRAGMAS: Final = words_in("table_info table_xinfo table_list index_list index_info foreign_key_list database_list")
_BEFORE_COLUMNS: Final = words_in("into table exists with recursive as references view")
"""Words after which a name and a bracket are a table and its columns."""
_WORDS: Final = words_in(
    "in and or not exists any all some over using as on select from where join left right full inner outer cross natural union "
    "except intersect by having then else when case between like ilike similar is distinct values set filter group lateral unnest "
    "offset limit fetch key unique check primary foreign conflict partition rows range interval array row end order returning sets "
    "materialized default generated always identity references within ties only table with window for if index recursive return"
)
"""Keywords and types that a bracket may follow."""
_TYPES: Final = words_in(
    "int integer bigint smallint tinyint numeric decimal number float double real char varchar nchar nvarchar character varying "
    "text varchar2 nvarchar2 string date time timestamp timestamptz datetime datetime2 bit varbit binary varbinary boolean bool"
)
_FUNCTIONS: Final = words_in(
    "abs acos array_agg array_append array_cat array_length array_position array_remove array_to_string ascii asin atan atan2 avg "
    "bit_and bit_or bit_xor bit_length bool_and bool_or btrim cardinality cast cbrt ceil ceiling char char_length character_length "
    "charindex chr coalesce concat concat_ws convert corr cos cot count covar_pop covar_samp cume_dist curdate current_date "
    "current_time current_timestamp curtime date date_add date_diff date_format date_part date_sub date_trunc dateadd datediff "
    "datename datepart datetime datetimeoffset day dayname dayofmonth dayofweek dayofyear decode degrees dense_rank elt encode "
    "eomonth every exp extract field find_in_set first first_value floor format from_unixtime gen_random_uuid generate_series "
    "getdate getutcdate greatest group_concat grouping hex hour if iff ifnull iif initcap instr isnull isnumeric json json_agg "
    "json_array json_array_elements json_array_elements_text json_array_length json_arrayagg json_build_array json_build_object "
    "json_contains json_each json_each_text json_extract json_extract_path json_extract_path_text json_group_array "
    "json_group_object json_insert json_keys json_length json_object json_object_agg json_object_keys json_objectagg json_patch "
    "json_query json_quote json_remove json_replace json_set json_table json_tree json_type json_typeof json_unquote json_valid "
    "json_value jsonb_agg jsonb_array_elements jsonb_array_elements_text jsonb_array_length jsonb_build_array jsonb_build_object "
    "jsonb_each jsonb_each_text jsonb_extract_path jsonb_extract_path_text jsonb_object_agg jsonb_object_keys jsonb_set "
    "jsonb_typeof julianday lag last last_day last_insert_rowid last_value lcase lead least left len length ln localtime "
    "localtimestamp locate log log10 log2 lower lpad ltrim make_date make_interval make_timestamp max md5 median microsecond mid "
    "min minute mod mode month monthname newid now nth_value ntile nullif nvl nvl2 octet_length overlaps overlay parse_json "
    "patindex percent_rank percentile_cont percentile_disc pi position pow power quarter quote quotename radians rand random rank "
    "regexp_count regexp_instr regexp_like regexp_match regexp_matches regexp_replace regexp_split_to_array regexp_split_to_table "
    "regexp_substr regr_slope repeat replace replicate reverse right round row_number row_to_json rpad rtrim safe_cast "
    "scope_identity second sha1 sha2 sign sin soundex space split_part sqrt stddev stddev_pop stddev_samp str str_to_date strftime "
    "string_agg string_split string_to_array strpos stuff substr substring substring_index subtime sum sysdate tan time "
    "time_bucket timediff timestamp timestampadd timestampdiff to_char to_date to_json to_jsonb to_number to_timestamp total "
    "translate trim trunc truncate_date try_cast try_convert typeof ucase unhex unicode unix_timestamp unixepoch upper "
    "utc_timestamp uuid uuid_generate_v4 var_pop var_samp variance version week weekday width_bucket year yearweek pg_typeof "
    "pg_size_pretty pg_total_relation_size pg_relation_size pragma_table_info pragma_index_list pragma_foreign_key_list "
    "st_distance st_within st_contains st_x st_y st_makepoint"
)
"""Functions that code may call; others could read files, run programs, sleep or connect elsewhere."""
_NUMBER: Final = re.compile(r"0[xX][\da-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WORD: Final = re.compile(r"[^\W\d][\w$]*")
_MARKS: Final = frozenset("+-*/%<>=~!&|^?:;,.()[]{}@#$")
_MAX_NAME: Final = 300
_DOLLAR_QUOTE: Final = re.compile(r"\$\w*\$")
_QUOTES: Final = {"'": "string", '"': "quoted", "`": "quoted"}


def sql_refusal(text: str) -> str | None:
    """Return the rule that SQL code breaks, in words that never repeat the code; none if it keeps to all."""
    try:
        _check(_scan(text))
    except _RefusedError as error:
        return str(error)
    return None


def _scan(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    place = 0
    while (place := _skip_space(text, place)) < len(text):
        character = text[place]
        if character in _QUOTES:
            token, place = _quoted(text, place)
        elif (word := _WORD.match(text, place)) is not None:
            place = word.end()
            folded = normalize("NFKC", word[0]).lower()
            if not folded.replace("$", "_").isidentifier():
                raise _RefusedError("a character that is not allowed")
            token = _Token("word", folded)
            if text[place : place + 1] == "'" and folded in {"q", "nq"}:
                raise _RefusedError("a text in other quotes")
        elif (number := _NUMBER.match(text, place)) is not None:
            place, token = number.end(), _Token("number", number[0])
        elif character in _MARKS:
            _check_mark(text, place, tokens)
            place, token = place + 1, _Token("mark", character)
        else:
            raise _RefusedError("a character that is not allowed")
        tokens.append(token)
    return tokens


def _skip_space(text: str, place: int) -> int:
    """Return the place after white space and comments."""
    while place < len(text):
        if text[place] in " \t\n\r\f":
            place += 1
        elif text.startswith("--", place):
            if text[place + 2 : place + 3] not in {"", " ", "\t", "\n", "\r", "-"}:
                raise _RefusedError("a comment that not every dialect reads as one")
            ends = [end for mark in "\n\r" if (end := text.find(mark, place)) >= 0]
            if ends and text[min(ends)] == "\r" and text[min(ends) + 1 : min(ends) + 2] != "\n":
                raise _RefusedError("a comment that not every dialect reads as one")
            place = min(ends, default=len(text))
        elif text.startswith("/*", place):
            end = text.find("*/", place + 2)
            inside = text[place + 2 : end]
            if end < 0 or "/*" in inside or inside.startswith(("!", "M!", "m!")):
                raise _RefusedError("a comment that not every dialect reads as one")
            place = end + 2
        else:
            return place
    return place


def _quoted(text: str, place: int) -> tuple[_Token, int]:
    """Return a text or a quoted identifier, and the place after it."""
    quote, value, at = text[place], "", place + 1
    while at < len(text):
        end = text.find(quote, at)
        if end < 0:
            break
        value += text[at:end]
        if value.endswith("\\"):
            raise _RefusedError("a text that not every dialect ends at the same place")
        if text[end + 1 : end + 2] != quote:
            if quote != "'" and re.search(r"[/\\:;'\0]", value):
                raise _RefusedError("an identifier that is not allowed")
            return _Token(_QUOTES[quote], value if quote == "'" else normalize("NFKC", value).lower()), end + 1
        value, at = value + quote, end + 2
    raise _RefusedError("a text without end")


def _check_mark(text: str, place: int, tokens: list[_Token]) -> None:
    character = text[place]
    if character == "$" and _DOLLAR_QUOTE.match(text, place):
        raise _RefusedError("a text in other quotes")
    if character == "#" and text[place + 1 : place + 2] not in {">", "-"}:
        raise _RefusedError("a comment that not every dialect reads as one")
    if character == "&" and text[place + 1 : place + 2] in {"'", '"'} and tokens and tokens[-1].text == "u":
        raise _RefusedError("a text in other quotes")
    if character == "!" and text[place + 1 : place + 2] not in {"=", "~", "<", ">"}:
        raise _RefusedError("a command of a shell")
    if character == "[" and not (tokens and tokens[-1].text == "array"):
        end = text.find("]", place, place + _MAX_NAME)
        if end < 0 or re.search(r"['\"`;]|--|/\*", text[place:end]):
            raise _RefusedError("an identifier that is not allowed")


def _check(tokens: list[_Token]) -> None:
    while tokens and tokens[-1] == ("mark", ";"):
        tokens.pop()
    if _Token("mark", ";") in tokens:
        raise _RefusedError("more than one statement")
    words = [token.text if token.kind == "word" else "" for token in tokens]
    first = next((place for place, token in enumerate(tokens) if token != ("mark", "(")), len(tokens))
    if first == len(tokens):
        return
    if words[first] not in _STATEMENTS or (first and words[first] not in {"select", "with", "values"}):
        raise _RefusedError("a statement that is not allowed")
    _check_statement(words, tokens, first)
    _check_tables(tokens)
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else _Token("end", "")
        if token.kind == "word" and (before != ("mark", ".") or token.text in {"pg_shadow", "pg_authid", "user"}):
            _check_word(words, place, first)
        if token == ("mark", "("):
            _check_function(tokens, place, words[first])


def _check_tables(tokens: list[_Token]) -> None:
    """Check that no table is a file: a text, a name with the ending of one, or a stage."""
    clauses = [""]
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else _Token("end", "")
        is_table = clauses[-1] == "from" and (before.text in {"from", "join", ",", "(", "lateral", "only"} or before == ("mark", "."))
        if token == ("mark", "("):
            clauses.append("from" if is_table else "")
        elif token == ("mark", ")"):
            clauses = clauses[:-1] or [""]
        elif token == ("word", "from") and before == ("word", "distinct"):
            continue
        elif token.kind == "word" and token.text in _CLAUSES | {"join", "into", "update"} and before != ("mark", "."):
            clauses[-1] = "from" if token.text in {"join", "into", "update"} else token.text
        elif is_table and (token.kind == "string" or token == ("mark", "@") or _is_file(tokens, place)):
            raise _RefusedError("a file as a table")


def _is_file(tokens: list[_Token], place: int) -> bool:
    """Return whether the name of a table is that of a file, such as "a.csv", [a.csv] or csv.`a`."""
    token = tokens[place]
    if token == ("mark", "["):
        return any(mark == ("mark", ".") for mark in tokens[place + 1 : place + 4])
    if token.kind != "quoted":
        return False
    schema = tokens[place - 2] if place > 1 and tokens[place - 1] == ("mark", ".") else _Token("end", "")
    is_secret = token.text in _BLOCKED or (schema.text == "mysql" and token.text == "user")
    return is_secret or schema.text in _FILE_SCHEMAS or _FILE.search(token.text) is not None


def _check_statement(words: list[str], tokens: list[_Token], first: int) -> None:
    """Check the beginning of a statement."""
    verb, rest = words[first], words[first + 1 :]
    if verb in {"update", "delete"} and "where" not in rest:
        raise _RefusedError(f"'{verb}' without 'where'")
    if verb == "create":
        kinds = [word for word in rest[:3] if word not in {"temp", "temporary", "unique"}]
        if not kinds or kinds[0] not in _CREATED:
            raise _RefusedError("a statement that is not allowed")
    if verb == "create" and (_STORAGE & set(rest) or not _are_usual_engines(rest)):
        raise _RefusedError("a table outside of the database")
    if verb == "pragma" and (len(rest) < 1 or rest[0] not in _PRAGMAS or _Token("mark", "=") in tokens):
        raise _RefusedError("a statement that is not allowed")
    if verb == "explain" and not {"select", "with", "values"} & set(rest[:6]):
        raise _RefusedError("a statement that is not allowed")


def _are_usual_engines(words: list[str]) -> bool:
    return all(bool(_ENGINES & set(words[place + 1 : place + 3])) for place, word in enumerate(words) if word == "engine")


def _check_word(words: list[str], place: int, first: int) -> None:
    word, before = words[place], words[place - 1] if place else ""
    if word in _BLOCKED:
        raise _RefusedError(f"'{word}'")
    if place != first and word in _CHANGES and before not in _CHANGE_CLAUSES[word]:
        raise _RefusedError(f"'{word}' inside another statement")
    if word == "into" and not (words[first] == "insert" and place <= first + 3):
        raise _RefusedError("'into'")
    if word in {"copy", "load", "call", "lock", "use", "set"} and place == first:
        raise _RefusedError("a statement that is not allowed")
    after = words[place + 1] if place + 1 < len(words) else ""
    if place != first and ((word == "use" and after not in {"index", "key"}) or (word in {"save", "reset"} and after)):
        raise _RefusedError("more than one statement")
    if word == "user" and words[place - 2 : place - 1] == ["mysql"]:
        raise _RefusedError("a table of passwords")
    if word == "create" and place != first:
        raise _RefusedError("'create' inside another statement")


def _check_function(tokens: list[_Token], place: int, verb: str) -> None:
    """Check the name before a bracket."""
    name = tokens[place - 1] if place else _Token("end", "")
    if name.kind not in {"word", "quoted"} and name != ("mark", "]"):
        return
    start = place - 1
    while start > 1 and tokens[start - 1] == ("mark", "."):
        start -= 2
    before = tokens[start - 1].text if start > 0 and tokens[start - 1].kind == "word" else ""
    if before in _BEFORE_COLUMNS or (verb == "create" and before == "on"):
        return
    if name.kind == "word" and start == place - 1 and name.text in _WORDS | _TYPES:
        return
    if name.text in _FUNCTIONS or _is_cte(tokens, place) or (verb == "pragma" and name.text in _PRAGMAS):
        return
    raise _RefusedError("a function that is not allowed")


def _is_cte(tokens: list[_Token], place: int) -> bool:
    """Return whether a bracket holds the columns of a common table expression, 'name (a, b) as ('."""
    place += 1
    while place < len(tokens) and tokens[place] != ("mark", ")"):
        if tokens[place].kind == "mark" and tokens[place].text != ",":
            return False
        place += 1
    return [token.text for token in tokens[place + 1 : place + 3]] == ["as", "("]
