"""The rules of a scan: what in a definition is meant to deceive people or to give orders to a model.

A rule reads one text at a time and changes nothing. What it finds may be harmless; the severity says how seldom it is.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast
from unicodedata import normalize

import msgspec

from toolyard.providers.upstream.pins import Definition, PinnedKind

__all__ = [
    "ALL_RULES",
    "BIDI",
    "CATCHERS",
    "CHARACTER_RULES",
    "CONTROL",
    "KEYFILES",
    "LONGEST",
    "SELECTORS",
    "TAGS",
    "TEXT_RULES",
    "ZERO_WIDTH",
    "Finding",
    "Rule",
    "Severity",
    "Text",
    "find_lookalike",
    "phrases",
    "plain",
    "scan",
    "visible",
]


_FLAG: Final = "\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f"  # the flags of Scotland and others are spelt so
_ZERO: Final = "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
_BIDI: Final = "\u202a-\u202e\u2066-\u2069"
_SELECTOR: Final = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_CYRILLIC: Final = (0x430, 0x435, 0x43E, 0x440, 0x441, 0x443, 0x445, 0x456, 0x458, 0x455, 0x4BB, 0x501, 0x51B, 0x51D)
_CYRILLIC_CAPITALS: Final = (0x410, 0x412, 0x415, 0x405, 0x406, 0x408, 0x41A, 0x41C, 0x41D, 0x41E, 0x420, 0x421, 0x422, 0x425)
_GREEK: Final = (0x3BF, 0x3B1, 0x3B9, 0x3BD, 0x3C5, 0x3C1)
_GREEK_CAPITALS: Final = (0x391, 0x392, 0x395, 0x396, 0x397, 0x399, 0x39A, 0x39C, 0x39D, 0x39F, 0x3A1, 0x3A4, 0x3A5, 0x3A7)
_ARMENIAN: Final = (0x585, 0x57D, 0x578, 0x570)
_LOOKALIKES: Final = {
    **dict(zip(_CYRILLIC, "aeopcyxijshdqw", strict=True)),
    **dict(zip(_CYRILLIC_CAPITALS, "ABESIJKMHOPCTX", strict=True)),
    **dict(zip(_GREEK, "oaivup", strict=True)),
    **dict(zip(_GREEK_CAPITALS, "ABEZHIKMNOPTYX", strict=True)),
    **dict(zip(_ARMENIAN, "ounh", strict=True)),
}
_LIKE: Final = re.compile(f"[{''.join(map(chr, _LOOKALIKES))}]")
_LATIN: Final = re.compile("[A-Za-z]")
_WORDS: Final = re.compile(r"[^\W_]+")
TAGS: Final = re.compile(f"{_FLAG}|([\U000e0000-\U000e007f]+)")
"""Letters of the tags block, which no screen shows; flags match without the group."""
BIDI: Final = re.compile(f"[{_BIDI}]")
"""Characters that turn the direction of writing."""
SELECTORS: Final = re.compile(f"[{_SELECTOR}]{{2,}}")
"""Variation selectors that follow each other; one alone chooses how a character looks."""
ZERO_WIDTH: Final = re.compile(f"[{_ZERO}](?<![^\x00-\x7f][\u200c\u200d](?=[^\x00-\x7f]))(?<![\u0590-\u08ff][\u200e\u200f])")
"""Characters without width, but for those that join letters of other scripts or the parts of a picture."""
CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters that belong in no text."""
_UNSEEN: Final = re.compile(rf"[{_ZERO}{_BIDI}{_SELECTOR}\U000e0000-\U000e007f\u2028\u2029\ufff9-\ufffb\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Return a text as one line, with what nobody would see written out."""
    return _UNSEEN.sub(lambda match: ascii(match[0])[1:-1], text).replace("\n", "\\n")


def plain(text: str) -> str:
    """Return a text as a model reads it: lower case, one space between words, without disguise."""
    if not text.isascii():
        text = normalize("NFKC", _UNSEEN.sub("", text)).translate(_LOOKALIKES).replace("\u2019", "'")
    return " ".join(text.lower().split())


def find_lookalike(text: str) -> str | None:
    """Return a word of Latin letters in which some only look like Latin ones, if there is any."""
    if text.isascii() or not _LIKE.search(text):
        return None
    return next((word for word in _WORDS.findall(text) if _LIKE.search(word) and _LATIN.search(word)), None)


KEYFILES: Final = (
    ".ssh,id_rsa,id_ed25519,id_ecdsa,.aws/credentials,/etc/passwd,/etc/shadow,.netrc,.npmrc,.pypirc,.git-credentials,.kube/config,"
    ".docker/config.json,.gnupg,mcp.json,claude_desktop_config.json,.claude.json,.bash_history,.zsh_history,wallet.dat,login.keychain"
)
"""Files that hold keys, passwords or the configuration of agents."""
CATCHERS: Final = (
    "webhook.site,requestbin.com,requestbin.net,requestcatcher.com,pipedream.net,beeceptor.com,hookbin.com,burpcollaborator.net,oastify.com,"
    "oast.fun,oast.live,oast.me,oast.online,oast.pro,oast.site,interact.sh,interactsh.com,dnslog.cn,ngrok.io,ngrok.app,ngrok.dev,"
    "ngrok-free.app,ngrok-free.dev,trycloudflare.com"
)
"""Hosts under whose names anybody can catch requests."""
_SYNONYMS: Final = {
    "give": "read open cat load fetch copy include attach send pass upload provide extract append put paste forward share print dump "
    "collect retrieve get",
    "call": "call use run invoke execute calling using running invoking executing",
    "ignore": "ignore disregard forget override bypass discard overrule",
    "former": "previous prior earlier above preceding former existing original system safety developer",
    "orders": "instruction prompt rule guideline direction directive guardrail command order constraint instructions prompts rules "
    "guidelines directions directives guardrails commands orders constraints",
    "tell": "tell telling inform informing notify notifying alert alerting warn warning",
    "hidden": "important critical urgent hidden secret",
    "notice": "note instruction message prompt directive override notice",
    "known": "content contents conversation history message messages credential credentials secret secrets token tokens key keys password "
    "passwords file files it them everything result results response responses copy",
    "occasion": "request requests message messages conversation conversations response responses question questions turn turns prompt "
    "prompts answer answers action actions",
    "all": "every each any all",
    "secrets": "credentials passwords secrets",
}
_PARTS: Final = {
    **{name: f"(?:{'|'.join(words.split())})" for name, words in _SYNONYMS.items()},
    "gap": r"(?:[^.!?]|\.(?! )){0,60}?",
    "not": r"(?:do not|don't|never|must not|should not|shouldn't|without)(?: ever)?",
    "user": r"(?:(?:the|a|your|any) )?(?:users?|humans?|person|people|anyone|anybody|operator)\b",
    "which": r"(?:(?:all|any|the|your|of|every|these|those|its|and|full|entire|complete|whole|exact|content|contents|user's) ){0,5}",
    "history": r"(?:system prompt|(?:conversation|chat|message) (?:history|context)|(?:previous|all) (?:user )?messages)",
    "address": r"(?:https?://|[\w.+-]{1,64}@[\w-]{1,64}\.\w)",
    "keyfile": rf"(?:{'|'.join(map(re.escape, KEYFILES.split(',')))})(?![\w-]|/?\S{{0,40}}\.pub\b)",
    "catcher": rf"(?:{'|'.join(map(re.escape, CATCHERS.split(',')))})",
}
_PART: Final = re.compile(r"@([a-z]+)")


def phrases(*texts: str) -> re.Pattern[str]:
    """Return what finds any of these phrases in a plain text."""
    return re.compile("|".join(f"(?:{_PART.sub(lambda match: _PARTS[match[1]], text)})" for text in texts))


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

_SHADOWING: Final = Rule(
    id="orders-other-tools",
    severity="high",
    meaning="It gives orders about a tool of another upstream, which is none of its business.",
    find=lambda _: None,
)
_SHORT_TEXT: Final = 12
_LONG_NAME: Final = 100
_SENTENCE: Final = re.compile(r"[^.!?]{1,400}")
_ORDER: Final = re.compile(r"\b(?:when|whenever|before|after|instead of|always|never|must|do not|don't|first|any time|every time)\b")
_NAME: Final = re.compile(r"[a-z0-9]+(?:[_-][a-z0-9]+)+")
ALL_RULES: Final = (*CHARACTER_RULES, *TEXT_RULES, _SHADOWING)
"""Every rule there is."""


class Finding(msgspec.Struct, frozen=True):
    """Something suspicious in a definition: which rule found it, where, and the piece of text, with nothing hidden in it."""

    upstream: str
    kind: PinnedKind
    name: str
    field: str
    rule: str
    severity: Severity
    excerpt: str


def scan(upstream: str, definitions: Iterable[Definition], *, others: Iterable[str] = ()) -> list[Finding]:
    """Return what is suspicious in the definitions of an upstream; `others` are the names of the tools of all the others."""
    listed = list(definitions)
    own = {one.name.lower() for one in listed}
    foreign = frozenset(name.lower() for name in others if _NAME.fullmatch(name.lower())) - own
    known: dict[tuple[str, bool], list[tuple[Rule, str]]] = {}  # many arguments are described alike
    findings: list[Finding] = []
    for one in listed:
        for field, written, is_name in _texts(one):
            if (written, is_name) not in known:
                known[written, is_name] = _looked_at(written, foreign, is_name=is_name)
            findings += [_finding(upstream, one, field, rule, found) for rule, found in known[written, is_name]]
    return findings


def _looked_at(written: str, foreign: frozenset[str], *, is_name: bool) -> list[tuple[Rule, str]]:
    """Return what the rules find in one text."""
    odd = not (written.isascii() and written.replace("\n", "").isprintable())
    if len(written) < (_LONG_NAME if is_name else _SHORT_TEXT) and not odd:
        return []
    cut = written[: LONGEST + 1]
    text = Text(cut, "" if is_name else plain(cut), is_name)
    found = [(rule, rule.find(text)) for rule in (ALL_RULES if odd else TEXT_RULES)]
    found += [(_SHADOWING, _find_orders(text, foreign))] if foreign else []
    return [(rule, piece) for rule, piece in found if piece is not None]


def _finding(upstream: str, definition: Definition, field: str, rule: Rule, found: str) -> Finding:
    return Finding(upstream, definition.kind, definition.name, field, rule.id, rule.severity, visible(found))


def _find_orders(text: Text, foreign: frozenset[str]) -> str | None:
    """Return the sentence that orders something about a tool that is not this upstream's."""
    if text.is_name or foreign.isdisjoint(_NAME.findall(text.read)):
        return None
    sentences = (match[0].strip() for match in _SENTENCE.finditer(text.read))
    return next((one for one in sentences if _ORDER.search(one) and not foreign.isdisjoint(_NAME.findall(one))), None)


def _texts(definition: Definition) -> Iterator[tuple[str, str, bool]]:
    """Return where every text of a definition stands, the text, and whether it is a name."""
    if definition.name:
        yield "name", definition.name, definition.kind in {"tool", "prompt"}
    for field, value in definition.fields.items():
        yield from _walk(value, field)


def _walk(value: Any, place: str) -> Iterator[tuple[str, str, bool]]:
    if isinstance(value, str):
        yield place, value, False
    elif isinstance(value, Mapping):
        for key, inner in cast("Mapping[str, Any]", value).items():
            yield f"{place}.{visible(key)}", key, True
            yield from _walk(inner, f"{place}.{visible(key)}")
    elif isinstance(value, list):
        for number, inner in enumerate(cast("list[Any]", value)):
            yield from _walk(inner, f"{place}[{number}]")
