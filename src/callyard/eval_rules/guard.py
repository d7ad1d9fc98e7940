"""The check of code before an eval tool runs it in this process or in the application that the tool drives.

The audit log and the answer get a hash of the code, never the code. Each language has its rules in a file of its own.
"""

import logging
import re
from hashlib import sha256
from typing import Final

from callyard.eval_rules.javascript import javascript_refusal
from callyard.eval_rules.python import python_refusal
from callyard.eval_rules.sql import sql_refusal
from callyard.model.errors import ToolError
from callyard.model.limits import Limits
from callyard.model.spec import EvalRule

__all__ = ["BLOCKED_WORDS", "guard"]

_audit = logging.getLogger("callyard.audit")

BLOCKED_WORDS: Final = ("rm -rf", "/etc/passwd", "/etc/shadow")
"""Texts that code of no language may contain, in any case and spacing."""
_MAX_TOKENS: Final = 20_000
"""Most words and marks of code that is checked: 0.2 seconds, during which no other call is answered."""


def guard(payload: object, rule: EvalRule, tool: str, limits: Limits) -> None:
    """Check the code and write a line to the audit log.

    Raises:
        ToolError: `too_large` or `eval_blocked`.
    """
    text = payload if isinstance(payload, str) else str(payload)
    if len(text) > limits.eval_characters:
        message = f"The code has {len(text)} characters; at most {limits.eval_characters} are taken."
        raise ToolError("too_large", message, characters=len(text), limit=limits.eval_characters)
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    facts = f"tool={tool} language={rule.language} characters={len(text)} hash={digest}"
    if rule.rules != "sandbox":
        count = len(re.findall(r"\w+|[^\w \t]", text)) if len(text) > _MAX_TOKENS else 0
        if count > _MAX_TOKENS:
            message = f"The code has {count} words and marks; at most {_MAX_TOKENS} are taken."
            raise ToolError("too_large", message, tokens=count, limit=_MAX_TOKENS)
        folded = re.sub(r"\s+", " ", text.lower())
        words = (("word", f"'{word}'") for word in BLOCKED_WORDS if word in folded)
        blocked = next(words, None) or _blocked_construct(text, rule)
        if blocked is not None:
            kind, what = blocked
            _audit.warning("eval_blocked %s %s=%r", facts, kind, what)
            message = f"The code uses {what}, which is blocked."
            raise ToolError("eval_blocked", message, code_hash=digest, kind=kind, blocked=what)
    _audit.warning("eval %s", facts)  # a warning, because code that runs must leave a line at the default level


def _blocked_construct(text: str, rule: EvalRule) -> tuple[str, str] | None:
    """Return the rule of the language that the code breaks, in fixed words, so that the code is never repeated."""
    match rule.language:
        case "python":
            what = python_refusal(text, rule.imports)
        case "javascript":
            what = javascript_refusal(text)
        case "sql":
            what = sql_refusal(text)
        case _:
            what = "a language without rules"
    return None if what is None else ("construct", what)
