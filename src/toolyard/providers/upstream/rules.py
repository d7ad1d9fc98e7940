"""The rules of a scan: what in a definition is meant to deceive people or to give orders to a model.

A rule reads one text at a time and changes nothing. What it finds may be harmless; the severity says how seldom it is.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from toolyard.providers.upstream.characters import BIDI, CONTROL, SELECTORS, TAGS, ZERO_WIDTH, find_lookalike
from toolyard.providers.upstream.phrases import CATCHERS, KEYFILES, phrases

__all__ = ["CHARACTER_RULES", "LONGEST", "TEXT_RULES", "Rule", "Severity", "Text"]

Severity = Literal["high", "medium", "low"]

LONGEST: Final = 100_000
"""How many characters of one text are looked at."""

_MANY: Final = 8
_LONG: Final = 5000
_EMPTY_LINES: Final = 20
_RARE: Final = 16
_EXCERPT: Final = 80
_AROUND: Final = 40
_PUSH: Final = re.compile(r"[ \t\u00a0\u2000-\u200a\u3000]{100,400}(?=\S)")
_BETWEEN_LINES: Final = re.compile(r"[^\S\n]+")
_COMMENT: Final = re.compile(r"<!--.{0,2000}?-->", re.DOTALL)
_RUN: Final = re.compile(r"[A-Za-z0-9+/]{120,}")
_HEX: Final = re.compile(r"[0-9a-fA-F]{160,}")


class Text(NamedTuple):
    """One text of a definition: as it is written, as a model reads it, and whether it is a name."""

    written: str
    read: str
    is_name: bool


Find = Callable[[Text], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing to look for; it returns the piece of the text that it found."""

    id: str
    severity: Severity
    meaning: str
    find: Find


def _written(pattern: re.Pattern[str], *, least: int = 1) -> Find:
    """Look at the text as it is written."""

    def find(text: Text) -> str | None:
        found = [match for match, _ in zip(pattern.finditer(text.written), range(least), strict=False)]
        return _around(text.written, found[0]) if len(found) == least else None

    return find


def _read(*texts: str, needs: str) -> Find:
    """Look for phrases in the text as a model reads it, but only if one of the words they need is there, which is seen quickly."""
    pattern = phrases(*texts)
    words = tuple(needs.split(","))

    def find(text: Text) -> str | None:
        for word in words:
            if word in text.read:
                match = pattern.search(text.read)
                return None if match is None else _around(text.read, match)
        return None

    return find


def _around(text: str, match: re.Match[str]) -> str:
    """Return what matched with a little of what stands around it."""
    room = max(_AROUND, _EXCERPT - (match.end() - match.start())) // 2
    piece = text[max(0, match.start() - room) : match.end() + room]
    return " ".join(piece.split())[: 2 * _EXCERPT]


_find_many: Final = _written(ZERO_WIDTH, least=_MANY)
_find_selectors: Final = _written(SELECTORS)
_find_push: Final = _written(_PUSH)


def _find_tags(text: Text) -> str | None:
    return next((match[1] for match in TAGS.finditer(text.written) if match[1]), None)


def _find_empty_lines(text: Text) -> str | None:
    lines = _BETWEEN_LINES.sub("", text.written).strip()
    return f"{_EMPTY_LINES} empty lines" if "\n" * _EMPTY_LINES in lines else None


def _find_blob(text: Text) -> str | None:
    """Return a run of characters with so many digits and capitals that it is no path and no word."""
    for run in _RUN.findall(text.written):
        digits, capitals = sum(map(str.isdigit, run)), sum(map(str.isupper, run))
        if min(digits, capitals) > len(run) // _RARE or _HEX.fullmatch(run):
            return str(run)[:_EXCERPT]
    return None


def _find_long(text: Text) -> str | None:
    return f"{len(text.written):,} characters" if len(text.written) > _LONG else None


CHARACTER_RULES: Final[Sequence[Rule]] = (
    Rule(
        id="tag-characters",
        severity="high",
        meaning="Text is written in characters of the Unicode block 'Tags', which models read and nobody sees.",
        find=_find_tags,
    ),
    Rule(
        id="hidden-text",
        severity="high",
        meaning="Many characters without width, or variation selectors in a row, which can carry a text that nobody sees.",
        find=lambda text: _find_many(text) or _find_selectors(text),
    ),
    Rule(
        id="zero-width",
        severity="medium",
        meaning="A character without width, which can split or disguise a word.",
        find=_written(ZERO_WIDTH),
    ),
    Rule(
        id="turned-text",
        severity="high",
        meaning="Characters turn the direction of writing, so that a person reads something else than a model.",
        find=_written(BIDI),
    ),
    Rule(
        id="control-characters",
        severity="high",
        meaning="Control characters, which can hide or overwrite text on a terminal.",
        find=_written(CONTROL),
    ),
    Rule(
        id="lookalike-name",
        severity="high",
        meaning="A name mixes Latin letters with letters that only look like them, to pass for another name.",
        find=lambda text: find_lookalike(text.written) if text.is_name else None,
    ),
    Rule(
        id="lookalike-letters",
        severity="medium",
        meaning="A word mixes Latin letters with letters that only look like them, which keeps words from being found.",
        find=lambda text: None if text.is_name else find_lookalike(text.written),
    ),
)
"""The rules about single characters; in printable ASCII they find nothing."""

TEXT_RULES: Final[Sequence[Rule]] = (
    Rule(
        id="pushed-away",
        severity="medium",
        meaning="A long run of spaces or empty lines pushes the text after it out of sight.",
        find=lambda text: _find_push(text) or _find_empty_lines(text),
    ),
    Rule(
        id="hidden-comment",
        severity="medium",
        meaning="A comment of HTML, which models read and rendered pages do not show.",
        find=_written(_COMMENT),
    ),
    Rule(
        id="overrides-instructions",
        severity="high",
        meaning="It tells the model to ignore or forget its instructions, rules or context.",
        find=_read(
            r"\b@ignore @which@former (?:(?:and |or )?@former )?@orders\b",
            r"\b(?:ignore|disregard|forget) (?:all|everything|anything) (?:that )?(?:you (?:were|have been) told )?(?:above|before)\b",
            r"\bnew (?:system )?instructions (?:for|to) (?:the )?(?:ai|assistant|model|llm|agent)\b",
            needs="ignore,disregard,forget,override,bypass,discard,overrule,instructions",
        ),
    ),
    Rule(
        id="poses-as-system",
        severity="high",
        meaning="Marks that set apart messages of the system or of an authority, which a definition has no business to contain.",
        find=_read(
            r"<(important|system|system[-_ ]?@notice|instructions?|secret|hidden|admin|override)>.{0,5000}?</",
            r"<\|(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id)\|>|\[/?inst\]|<</?sys>>",
            r"\b@hidden system @notice",
            needs="<,[,system",
        ),
    ),
    Rule(
        id="hides-from-user",
        severity="high",
        meaning="It tells the model to do something without telling the user.",
        find=_read(
            r"\b@not @tell @user",
            r"\b@not mention(?:ing)? (?:this|that you|it|the fact|any of this|anything)(?: [^.!?]{0,30})? to @user",
            r"\b@not mention(?:ing)? that you\b",
            r"\b@not let @user (?:know|see|notice|find out)\b",
            r"\bkeep (?:this|it|that) (?:a )?(?:secret|hidden|private|confidential) from @user",
            r"\b(?:secretly|covertly|surreptitiously) (?:\w{1,20} )?@give\b",
            needs="user,human,person,people,anyone,anybody,operator,mention,secretly,covertly,surreptitiously",
        ),
    ),
    Rule(
        id="keeps-from-user",
        severity="medium",
        meaning="It tells the model not to show or explain something to the user.",
        find=_read(
            r"\b@not (?:reveal|disclose|explain|admit|acknowledge|report|mention)\b[^.!?]{0,60}\bto @user",
            r"\bsilently (?:send|read|copy|include|forward|upload|execute|call)\b",
            needs="reveal,disclose,explain,admit,acknowledge,report,mention,silently",
        ),
    ),
    Rule(
        id="reads-keys",
        severity="high",
        meaning="It tells the model to read or hand over a file that holds keys, passwords or the configuration of agents.",
        find=_read(
            r"\b@give\b@gap@keyfile",
            r"\bcontents? of (?:the file )?\S{0,60}@keyfile",
            r"@keyfile@gap(?:\b(?:and|then)|[;:,]) @give\b",
            needs=KEYFILES,
        ),
    ),
    Rule(
        id="reads-secrets",
        severity="medium",
        meaning="It tells the model to hand over secrets: '.env' files, the environment, credentials, its prompt or the conversation.",
        find=_read(
            r"\b@give @which(?:file )?['\"`]?(?:\S{0,40}/)?\.env\b",
            r"\b(?!get )@give (?:(?:all|your|the user's|every|the entire|the full) )+(?:environment variables?|@secrets)\b",
            r"\b@give @which@history\b@gap\b(?:in|as|into|to|with) (?:(?:the|this|every) )?\S{1,40} ?(?:parameter|argument|field|call)\b",
            needs=".env,environment variable,api key,access token,credentials,passwords,secrets,history,context,prompt,messages",
        ),
    ),
    Rule(
        id="catches-requests",
        severity="high",
        meaning="The address of a service that catches whatever is sent to it, as those use who steal data.",
        find=_read(r"(?:://|\.|\b)@catcher\b", needs=CATCHERS),
    ),
    Rule(
        id="sends-away",
        severity="medium",
        meaning="It tells the model to send what it knows to an address, or names one by its number alone.",
        find=_read(
            r"\b(?:send|post|upload|forward|transmit|exfiltrate|submit|leak|bcc|cc)\b@gap\b@known @gap\b(?:to|at) @address",
            r"\b(?:always|also|must) (?:bcc|cc|forward|copy|send)\b@gap@address",
            r"\bhttps?://(?!127\.|10\.|192\.168\.|169\.254\.|0\.|172\.(?:1[6-9]|2\d|3[01])\.|1\.2\.3\.4)\d{1,3}(?:\.\d{1,3}){3}\b",
            needs="://,@",
        ),
    ),
    Rule(
        id="pipes-to-shell",
        severity="high",
        meaning="A command that downloads something and runs it at once.",
        find=_read(
            r"\b(?:curl|wget)\b[^|]{0,200}\| ?(?:sudo )?(?:ba|z|da)?sh\b",
            r"\b(?:iex|invoke-expression)\b.{0,40}\b(?:iwr|downloadstring|invoke-webrequest)\b",
            needs="curl,wget,iex,invoke-expression",
        ),
    ),
    Rule(
        id="comes-first",
        severity="medium",
        meaning="It tells the model to call this tool before or instead of all others, or on every occasion.",
        find=_read(
            r"\b(?:before|prior to|instead of) @call @all(?: of the)? other (?:tool|function)s?\b",
            r"\b(?:always|must)\b[^.!?]{0,20}\b@call (?:this|it)(?: tool)? (?:first|before @all(?: other)? (?:tools?|@occasion))\b",
            r"\b(?:for|on|at|before|after|with) @all (?:single )?(?:user )?@occasion,? (?:(?:you must|always|first) )+@call (?:this|it)\b",
            needs="always,must,first,other tool,other function",
        ),
    ),
    Rule(
        id="blob",
        severity="medium",
        meaning="A long run of encoded characters, which people cannot read and models can.",
        find=_find_blob,
    ),
    Rule(
        id="long-text",
        severity="low",
        meaning=f"A text of more than {_LONG:,} characters, which hardly anybody reads to its end.",
        find=_find_long,
    ),
    Rule(
        id="endless-text",
        severity="high",
        meaning=f"A text of more than {LONGEST:,} characters; the rest of it was not looked at.",
        find=lambda text: f"more than {LONGEST:,} characters" if len(text.written) > LONGEST else None,
    ),
)
"""The rules about what a text says and how it is laid out."""
