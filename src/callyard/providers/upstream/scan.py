"""The scan of definitions for text that deceives people or gives orders to a model.

A rule reads one text at a time and changes nothing. A finding may be harmless; the severity says how rarely it is.
In the 4,151 tool definitions of three labelled sets for search, none of the rules finds anything.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, cast
from unicodedata import normalize

import msgspec

from callyard.providers.upstream.pins import Definition, PinnedKind

__all__ = ["ALL_RULES", "Finding", "Rule", "Severity", "Text", "scan", "visible"]

Severity = Literal["high", "medium", "low"]
_SCANNED_CHARACTERS: Final = 100_000
_MANY_ZERO_WIDTH: Final = 8
_EMPTY_LINES: Final = 20
_EXCERPT: Final = 80
_AROUND: Final = 40

# the flags of Scotland and others are spelt so
_FLAG: Final = "\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f"
_ZERO: Final = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
)
_TURNING: Final = "\u202a-\u202e\u2066-\u2069"
_SELECTOR: Final = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_TAGS: Final = re.compile(f"{_FLAG}|([\U000e0000-\U000e007f]+)")  # flags match without the group
_SELECTORS: Final = re.compile(f"[{_SELECTOR}]{{2,}}")  # one alone chooses how a character looks
# Without those that join letters of other scripts, or the parts of an emoji.
_ZERO_WIDTH: Final = re.compile(
    f"[{_ZERO}](?<![^\x00-\x7f][\u200c\u200d](?=[^\x00-\x7f]))(?<![\u0590-\u08ff][\u200e\u200f])"
)
_BIDI: Final = re.compile(f"[{_TURNING}]")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_INVISIBLE: Final = re.compile(
    rf"[{_ZERO}{_TURNING}{_SELECTOR}\U000e0000-\U000e007f\u2028\u2029\ufff9-\ufffb\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_LOOKALIKES: Final = str.maketrans(  # Cyrillic, Greek and Armenian letters, small and capital
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u04bb\u0501\u051b\u051d"
    "\u0410\u0412\u0415\u0405\u0406\u0408\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425"
    "\u03bf\u03b1\u03b9\u03bd\u03c5\u03c1"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u0585\u057d\u0578\u0570",
    "aeopcyxijshdqwABESIJKMHOPCTXoaivupABEZHIKMNOPTYXounh",
)
_LOOKALIKE: Final = re.compile(f"[{''.join(map(chr, _LOOKALIKES))}]")
_LATIN: Final = re.compile("[A-Za-z]")
_WORD: Final = re.compile(r"[^\W_]+")
_BLANK: Final = r"[ \t\u00a0\u2000-\u200a\u3000]"
_PUSH: Final = re.compile(rf"(?<!{_BLANK}){_BLANK}{{100,}}+(?=\S)")
_BETWEEN_LINES: Final = re.compile(r"[^\S\n]+")
_SENTENCE: Final = re.compile(r"[^.!?]{1,400}")
_ORDER: Final = re.compile(
    r"\b(?:when|whenever|before|after|instead of|always|never|must|do not|don't|first|any time|every time)\b"
)
_TOOL_NAME: Final = re.compile(
    r"(?<![a-z0-9])[a-z0-9]++(?:[_-][a-z0-9]++)+"
)  # begins at a word and never goes back, so that it is linear

_KEY_FILES: Final = (
    ".ssh,id_rsa,id_ed25519,id_ecdsa,.aws/credentials,/etc/passwd,/etc/shadow,.netrc,.npmrc,.pypirc,.git-credentials,"
    ".kube/config,.docker/config.json,.gnupg,mcp.json,claude_desktop_config.json,.claude.json,.bash_history,"
    ".zsh_history,wallet.dat,login.keychain"
)
_SYNONYMS: Final = {
    "give": "read open cat load fetch copy include attach send pass upload provide extract append put paste "
    "forward share print dump collect retrieve get",
    "call": "call use run invoke execute calling using running invoking executing",
    "ignore": "ignore disregard forget override bypass discard overrule",
    "former": "previous prior earlier above preceding former existing original system safety developer",
    "orders": "instruction prompt rule guideline direction directive guardrail command order constraint "
    "instructions prompts rules guidelines directions directives guardrails commands orders constraints",
    "tell": "tell telling inform informing notify notifying alert alerting warn warning",
    "hidden": "important critical urgent hidden secret",
    "notice": "note instruction message prompt directive override notice",
    "content": "content contents conversation history message messages credential credentials secret secrets "
    "token tokens key keys password passwords file files it them everything result results response responses copy",
    "occasion": "request requests message messages conversation conversations response responses question "
    "questions turn turns prompt prompts answer answers action actions",
    "all": "every each any all",
    "secrets": "credentials passwords secrets",
}
_PARTS: Final = {
    **{name: f"(?:{'|'.join(words.split())})" for name, words in _SYNONYMS.items()},
    "gap": r"(?:[^.!?]|\.(?! )){0,60}?",
    "not": r"(?:do not|don't|never|must not|should not|shouldn't|without)(?: ever)?",
    "user": r"(?:(?:the|a|your|any) )?(?:users?|humans?|person|people|anyone|anybody|operator)\b",
    "which": r"(?:(?:all|any|the|your|of|every|these|those|its|and|full|entire|complete|whole|exact|contents?|user's) )"
    r"{0,5}",
    "history": r"(?:system prompt|(?:conversation|chat|message) (?:history|context)|(?:previous|all) (?:user "
    r")?messages)",
    "address": r"(?:https?://|[\w.+-]{1,64}@[\w-]{1,64}\.\w)",
    "keyfile": rf"(?:{'|'.join(map(re.escape, _KEY_FILES.split(',')))})(?![\w-]|/?\S{{0,40}}\.pub\b)",
}
_PART: Final = re.compile(r"@([a-z]+)")
_PHRASES: Final[Sequence[tuple[str, Severity, str, str, *tuple[str, ...]]]] = (
    (
        "overrides-instructions",
        "high",
        "It tells the model to ignore or forget its instructions, rules or context.",
        "ignore,disregard,forget,override,bypass,discard,overrule,instructions",
        r"\b@ignore @which@former (?:(?:and |or )?@former )?@orders\b",
        (
            r"\b(?:ignore|disregard|forget) (?:all|everything|anything) (?:that )?(?:you (?:were|have been) told "
            r")?(?:above|before)\b"
        ),
        r"\bnew (?:system )?instructions (?:for|to) (?:the )?(?:ai|assistant|model|llm|agent)\b",
    ),
    (
        "poses-as-system",
        "high",
        (
            "Marks that set apart messages of the system or of an authority, which a definition has no business to "
            "contain."
        ),
        "<,[,system",
        r"<(important|system|system[-_ ]?@notice|instructions?|secret|hidden|admin|override)>.{0,5000}?</",
        r"<\|(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id)\|>|\[/?inst\]|<</?sys>>",
        r"\b@hidden system @notice",
    ),
    (
        "hides-from-user",
        "high",
        "It tells the model to do something without telling the user.",
        "user,human,person,people,anyone,anybody,operator,mention,secretly,covertly,surreptitiously",
        r"\b@not @tell @user",
        r"\b@not mention(?:ing)? (?:this|that you|it|the fact|any of this|anything)(?: [^.!?]{0,30})? to @user",
        r"\b@not mention(?:ing)? that you\b",
        r"\b@not let @user (?:know|see|notice|find out)\b",
        r"\bkeep (?:this|it|that) (?:a )?(?:secret|hidden|private|confidential) from @user",
        r"\b(?:secretly|covertly|surreptitiously) (?:\w{1,20} )?@give\b",
    ),
    (
        "keeps-from-user",
        "medium",
        "It tells the model not to show or explain something to the user.",
        "reveal,disclose,explain,admit,acknowledge,report,mention,silently",
        r"\b@not (?:reveal|disclose|explain|admit|acknowledge|report|mention)\b[^.!?]{0,60}\bto @user",
        r"\bsilently (?:send|read|copy|include|forward|upload|execute|call)\b",
    ),
    (
        "reads-keys",
        "high",
        "It tells the model to read or hand over a file that holds keys, passwords or the configuration of agents.",
        _KEY_FILES,
        r"\b@give\b@gap@keyfile",
        r"\bcontents? of (?:the file )?\S{0,60}@keyfile",
        r"@keyfile@gap(?:\b(?:and|then)|[;:,]) @give\b",
    ),
    (
        "reads-secrets",
        "medium",
        (
            "It tells the model to hand over secrets: '.env' files, the environment, credentials, its prompt or the "
            "conversation."
        ),
        ".env,environment variable,api key,access token,credentials,passwords,secrets,history,context,prompt,messages",
        r"\b@give @which(?:file )?['\"`]?(?:\S{0,40}/)?\.env\b",
        r"\b(?!get )@give (?:(?:all|your|the user's|every|the entire|the full) )+(?:environment variables?|@secrets)\b",
        (
            r"\b@give @which@history\b@gap\b(?:in|as|into|to|with) (?:(?:the|this|every) )?\S{1,40} "
            r"?(?:parameter|argument|field|call)\b"
        ),
    ),
    (
        "sends-away",
        "medium",
        "It tells the model to send what it knows to an address, or names one by its number alone.",
        "://,@",
        (
            r"\b(?:send|post|upload|forward|transmit|exfiltrate|submit|leak|bcc|cc)\b@gap\b@content @gap\b(?:to|at) "
            r"@address"
        ),
        r"\b(?:always|also|must) (?:bcc|cc|forward|copy|send)\b@gap@address",
        (
            r"\bhttps?://(?!127\.|10\.|192\.168\.|169\.254\.|0\.|172\.(?:1[6-9]|2\d|3[01])\.|1\.2\.3\.4)"
            r"\d{1,3}(?:\.\d{1,3}){3}\b"
        ),
    ),
    (
        "comes-first",
        "medium",
        "It tells the model to call this tool before or instead of all others, or on every occasion.",
        "always,must,first,other tool,other function",
        r"\b(?:before|prior to|instead of) @call @all(?: of the)? other (?:tool|function)s?\b",
        (
            r"\b(?:always|must)\b[^.!?]{0,20}\b@call (?:this|it)(?: tool)? (?:first|before @all(?: other)? "
            r"(?:tools?|@occasion))\b"
        ),
        (
            r"\b(?:for|on|at|before|after|with) @all (?:single )?(?:user )?@occasion,? (?:(?:you must|always|first) "
            r")+@call (?:this|it)\b"
        ),
    ),
)
"""Rules about phrases: id, severity, meaning, words of which one must occur, and patterns of the normalized text."""


class Text(NamedTuple):
    """One text of a definition."""

    written: str
    normalized: str
    """The text as a model reads it; empty for a name."""
    is_name: bool
    other_tools: frozenset[str]


class Rule(msgspec.Struct, frozen=True):
    """One thing to look for."""

    id: str
    severity: Severity
    meaning: str
    find: Callable[[Text], str | None]


def visible(text: str) -> str:
    """Return a text as one line, with invisible characters escaped."""
    return _INVISIBLE.sub(lambda match: ascii(match[0])[1:-1], text).replace("\n", "\\n")


def _normalized(text: str) -> str:
    """Return a text as a model reads it: in lower case, with single spaces, and without disguise."""
    if not text.isascii():
        text = normalize("NFKC", _INVISIBLE.sub("", text)).translate(_LOOKALIKES).replace("\u2019", "'")
    return " ".join(text.lower().split())


def _excerpt(text: str, match: re.Match[str] | None) -> str | None:
    if match is None:
        return None
    room = max(_AROUND, _EXCERPT - (match.end() - match.start())) // 2
    piece = text[max(0, match.start() - room) : match.end() + room]
    return " ".join(piece.split())[: 2 * _EXCERPT]


def _pattern(pattern: re.Pattern[str]) -> Callable[[Text], str | None]:
    return lambda text: _excerpt(text.written, pattern.search(text.written))


def _phrases(needs: str, patterns: Iterable[str]) -> Callable[[Text], str | None]:
    """Search the normalized text, but only if it has one of the needed words, which are much faster to find."""
    pattern = re.compile("|".join(f"(?:{_PART.sub(lambda match: _PARTS[match[1]], each)})" for each in patterns))
    words = needs.split(",")

    def find(text: Text) -> str | None:
        for word in words:
            if word in text.normalized:
                return _excerpt(text.normalized, pattern.search(text.normalized))
        return None

    return find


def _find_tags(text: Text) -> str | None:
    return next((match[1] for match in _TAGS.finditer(text.written) if match[1]), None)


def _find_hidden(text: Text) -> str | None:
    matches = list(islice(_ZERO_WIDTH.finditer(text.written), _MANY_ZERO_WIDTH))
    return _excerpt(text.written, matches[0] if len(matches) == _MANY_ZERO_WIDTH else _SELECTORS.search(text.written))


def _find_lookalike(text: Text) -> str | None:
    """Return the part of a name that mixes Latin letters with lookalikes."""
    if not text.is_name or not _LOOKALIKE.search(text.written):
        return None
    return next((word for word in _WORD.findall(text.written) if _LOOKALIKE.search(word) and _LATIN.search(word)), None)


def _find_pushed(text: Text) -> str | None:
    pushed = _excerpt(text.written, _PUSH.search(text.written))
    if pushed is None and "\n" * _EMPTY_LINES in _BETWEEN_LINES.sub("", text.written).strip():
        return f"{_EMPTY_LINES} empty lines"
    return pushed


def _find_orders(text: Text) -> str | None:
    """Return a sentence that gives an order about a tool of another upstream."""
    if not text.other_tools or text.other_tools.isdisjoint(_TOOL_NAME.findall(text.normalized)):
        return None
    sentences = (match[0].strip() for match in _SENTENCE.finditer(text.normalized))
    named = (sentence for sentence in sentences if not text.other_tools.isdisjoint(_TOOL_NAME.findall(sentence)))
    return next((sentence for sentence in named if _ORDER.search(sentence)), None)


ALL_RULES: Final[Sequence[Rule]] = (
    Rule(
        "tag-characters",
        "high",
        "Text is written in characters of the Unicode block 'Tags', which models read and nobody sees.",
        _find_tags,
    ),
    Rule(
        "hidden-text",
        "high",
        "Many characters without width, or variation selectors in a row, which can carry a text that nobody sees.",
        _find_hidden,
    ),
    Rule(
        "zero-width", "medium", "A character without width, which can split or disguise a word.", _pattern(_ZERO_WIDTH)
    ),
    Rule(
        "turned-text",
        "high",
        "Characters turn the direction of writing, so that a person reads something else than a model.",
        _pattern(_BIDI),
    ),
    Rule(
        "control-characters",
        "high",
        "Control characters, which can hide or overwrite text on a terminal.",
        _pattern(_CONTROL),
    ),
    Rule(
        "lookalike-name",
        "high",
        "A name mixes Latin letters with letters that only look like them, to pass for another name.",
        _find_lookalike,
    ),
    Rule(
        "pushed-away",
        "medium",
        "A long run of spaces or empty lines pushes the text after it out of sight.",
        _find_pushed,
    ),
    *(
        Rule(name, severity, meaning, _phrases(needs, patterns))
        for name, severity, meaning, needs, *patterns in _PHRASES
    ),
    Rule(
        "endless-text",
        "high",
        f"A text of more than {_SCANNED_CHARACTERS:,} characters; the rest of it was not looked at.",
        lambda text: (
            f"more than {_SCANNED_CHARACTERS:,} characters" if len(text.written) > _SCANNED_CHARACTERS else None
        ),
    ),
    Rule(
        "orders-other-tools",
        "high",
        "It gives orders about a tool of another upstream, which is none of its business.",
        _find_orders,
    ),
)


class Finding(msgspec.Struct, frozen=True):
    """Something suspicious in a definition; the excerpt has its invisible characters escaped."""

    upstream: str
    kind: PinnedKind
    name: str
    field: str
    rule: str
    severity: Severity
    excerpt: str


def scan(upstream: str, definitions: Iterable[Definition], *, others: Iterable[str] = ()) -> list[Finding]:
    """Return the findings in an upstream's definitions; `others` are the names of the tools of all other upstreams."""
    listed = list(definitions)
    own = {definition.name.lower() for definition in listed}
    other_tools = frozenset(name.lower() for name in others if _TOOL_NAME.fullmatch(name.lower())) - own
    # a cache, because many arguments have the same description
    results: dict[tuple[str, bool], list[tuple[Rule, str]]] = {}
    found: list[Finding] = []
    for definition in listed:
        for field, written, is_name in _texts(definition):
            if (written, is_name) not in results:
                results[written, is_name] = _apply_rules(written, other_tools, is_name=is_name)
            item = (upstream, definition.kind, definition.name, field)
            found += [Finding(*item, rule.id, rule.severity, visible(part)) for rule, part in results[written, is_name]]
    return found


def _apply_rules(written: str, other_tools: frozenset[str], *, is_name: bool) -> list[tuple[Rule, str]]:
    cut = written[: _SCANNED_CHARACTERS + 1]
    text = Text(cut, "" if is_name else _normalized(cut), is_name, other_tools)
    return [(rule, piece) for rule in ALL_RULES if (piece := rule.find(text)) is not None]


def _texts(definition: Definition) -> Iterator[tuple[str, str, bool]]:
    """Return every text of a definition: its place, the text, and whether it is a name."""
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
