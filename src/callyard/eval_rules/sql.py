"""The rules for SQL code of an eval tool: blocked words and constructs outside of its strings and comments.

They hold for the usual dialects at once, so a text that two dialects read differently is refused.
"""

import re
from typing import Final
from unicodedata import normalize

from callyard.model.names import words_in

__all__ = ["sql_refusal"]

_BLOCKED: Final = words_in(
    "drop truncate alter attach detach grant revoke exec execute shutdown outfile dumpfile infile waitfor backup tran "
    "restore dbcc bulk reconfigure openrowset opendatasource openquery xp_cmdshell program deny impersonate kill "
    "declare merge deallocate vacuum reindex writetext updatetext language extension trigger procedure handler while "
    "begin goto commit rollback savepoint checkpoint revert setuser go print listen notify raiserror readtext "
    "transaction immediate"
)
_TEXT: Final = re.compile(
    r"(?P<comment>--[^\n\r]*|/\*[\s\S]*?(?:\*/|\Z))|(?P<string>'(?:[^']|'')*')"
    r"|(?P<name>\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`|(?<!array)(?<!array )\[[^\]]{0,300}\])"
)
_UNCLEAR: Final = {
    "comment": re.compile(r"--[^\s-]|/\*m?!|/\*[\s\S]*/\*|/\*(?![\s\S]*\*/\Z)"),
    "string": re.compile(r"\\'"),
    "name": re.compile(r"[\\:;'\0]|--|.[\"`]."),
}
"""Texts that not every dialect reads in the same way."""
_FILE: Final = re.compile(r"[/*?]|\.(?:[ct]sv|json\w*|parquet|txt|xlsx?|db|sqlite3?|duckdb|arrow|orc|avro|gz|log)\b")
_FUNCTIONS: Final = (
    r"load_file|load_extension|readfile|writefile|sleep|benchmark|pg_(?:read_\w+|ls_\w+|stat_file"
    r"|sleep\w*)|lo_\w+|sp_\w+"
    r"|dblink\w*|\w+_to_xml\w*|read_(?:csv|json|ndjson|parquet|text|blob)\w*|(?:utl|dbms)_\w+|xp_\w+|sys_(?:eval|exec)"
)
_CONSTRUCTS: Final = {
    r"[\0\\'\"`]|/\*|!(?![=~<>])|#(?![>-])|\$\w*\$|\bu&«|\bn?q«": "a text that dialects read differently",
    r";\s*[^\s;]": "more than one statement",
    r"\buse (?!index|key|from)\w|\breset all\b": "more than one statement",
    r"^\W*(?:copy|load|call|lock|use|set|prepare|do|reset|import|install|unload)\b": "a statement that is blocked",
    r"\bcreate (?!(?:(?:temp|temporary|unique) )?(?:table|view|index)\b)|\S create\b": "a statement that is blocked",
    r"^pragma [^«]*=": "a statement that is blocked",
    r"^create\b.*\b(?:connection|directory|location|tablespace|external|server|inherits)\b": "a table elsewhere",
    r"\bengine ?= ?(?:federated\w*|csv|connect|spider|s3|url|file)\b": "a table elsewhere",
    r"^\W*(?:update|delete)\b(?!.*\bwhere\b)": "a change without 'where'",
    r"(?<!^)(?<![.\w«])(?<!\bon )(?<!\bdo )(?<!\bkey )(?<!\bfor )(?:insert|update|delete)\b": "a change within another",
    r"^(?!insert\b).*\binto\b": "'into'",
    rf"\b(?:{_FUNCTIONS})»?\s*\(|\b(?:utl|dbms)_\w+\s*\.|\b(?:fsdir|zipfile)\b": "a function that is blocked",
    r"\b(?:pg_shadow|pg_authid)\b|\bmysql»?\.«?user\b": "a table of passwords",
    r"\b(?:csv|json|parquet|text|orc|avro|delta|binaryfile)\s*\.\s*«": "a file as a table",
}
"""Constructs by their pattern. White space is one space there, a string is '«»', and a quoted name is '«name»'."""
_PATTERNS: Final = [(re.compile(pattern), what) for pattern, what in _CONSTRUCTS.items()]
_QUOTED: Final = re.compile("«[^«»]*»")
_WORD: Final = re.compile(r"(?<![\w.@:$])[^\W\d]\w*")
_CALL: Final = re.compile(r"\b(?!from\b|join\b)\w+ ?\([^()]*\)")
_TABLE_OF_TEXT: Final = re.compile(r"(?<!distinct )\b(?:from|join) ?\(? ?(?:«»|@)|\bfrom \w+ ?, ?(?:«»|@)")


def sql_refusal(text: str) -> str | None:
    """Return the rule that SQL code breaks, in words that never repeat the code; none if it keeps to all."""
    refused: list[str] = []
    code = _TEXT.sub(lambda found: _without_text(found, refused), text.lower())
    code = re.sub(r"\s+", " ", normalize("NFKC", code)).strip()
    if refused:
        return refused[0]
    words = set(_WORD.findall(_QUOTED.sub(" ", code)))
    for word in sorted(words & _BLOCKED):
        return f"'{word}'"
    return next((what for pattern, what in _PATTERNS if pattern.search(code)), None) or _file_as_table(code)


def _without_text(found: re.Match[str], refused: list[str]) -> str:
    """Return the code in place of a comment, a string or a quoted name, and add the rule that it breaks."""
    kind, written = str(found.lastgroup), found[0]
    inside = written[1:-1]
    if _UNCLEAR[kind].search(inside if kind == "name" else written):
        refused.append(f"a {kind} that dialects read differently")
    if kind == "name" and _FILE.search(inside):
        refused.append("a file as a table")
    return {"comment": " ", "string": "«»", "name": f"«{inside}»"}[kind]


def _file_as_table(code: str) -> str | None:
    """Find a string where a table is expected; 'from' inside of a function, as in 'extract', means something else."""
    for _ in range(10):  # each takes out the innermost calls
        code = _CALL.sub("f", code)
    return "a file as a table" if _TABLE_OF_TEXT.search(code) else None
