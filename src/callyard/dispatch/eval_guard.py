"""The check of code before an eval tool runs it in this process or in the application that the tool drives.

It is a filter, not a sandbox: it stops accidents and the usual attacks. The audit log gets a hash of the code, never the code.
The rules of each language are in a file of their own.
"""

import logging
import re
from hashlib import sha256
from typing import Final

from callyard.model.errors import ToolError
from callyard.model.limits import Limits
from callyard.model.spec import EvalRule

__all__ = ["BLOCKED_WORDS", "guard"]

_audit = logging.getLogger("callyard.audit")

BLOCKED_WORDS: Final = ("rm -rf", "/etc/passwd", "/etc/shadow")
"""Texts that code of no language may contain, in any case and spacing."""
_MAX_TOKENS: Final = 20_000
"""Most words and marks of code that is checked: 0.2 seconds, during which no other call is answered."""
_WORD_OR_MARK: Final = r"\w+|[^\w \t]"


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
    if rule.rules != "sandbox":
        _check_tokens(text)
        blocked = _blocked_word(text) or _blocked_construct(text, rule)
        if blocked is not None:
            kind, what = blocked
            _audit.warning(
                "eval_blocked tool=%s language=%s characters=%d hash=%s %s=%r", tool, rule.language, len(text), digest, kind, what
            )
            raise ToolError("eval_blocked", f"The code uses {what}, which is blocked.", code_hash=digest, kind=kind, blocked=what)
    # a warning, because code that runs must leave a line at the default level
    _audit.warning("eval tool=%s language=%s characters=%d hash=%s", tool, rule.language, len(text), digest)


def _check_tokens(text: str) -> None:
    count = len(re.findall(_WORD_OR_MARK, text)) if len(text) > _MAX_TOKENS else 0
    if count > _MAX_TOKENS:
        message = f"The code has {count} words and marks; at most {_MAX_TOKENS} are taken."
        raise ToolError("too_large", message, tokens=count, limit=_MAX_TOKENS)


def _blocked_word(text: str) -> tuple[str, str] | None:
    folded = re.sub(r"\s+", " ", text.lower())
    return next((("word", f"'{word}'") for word in BLOCKED_WORDS if word in folded), None)


def _blocked_construct(text: str, rule: EvalRule) -> tuple[str, str] | None:
    """Return the rule of the language that the code breaks, in fixed words, so that the code is never repeated."""
    # loaded with the first code of a language: most yards run none, and the rules take a tenth of the start
    if rule.language == "python":
        from callyard.dispatch.eval_python import python_refusal  # noqa: PLC0415 - see above

        what = python_refusal(text, rule.imports)
    elif rule.language == "javascript":
        from callyard.dispatch.eval_javascript import javascript_refusal  # noqa: PLC0415 - see above

        what = javascript_refusal(text)
    elif rule.language == "sql":
        from callyard.dispatch.eval_sql import sql_refusal  # noqa: PLC0415 - see above

        what = sql_refusal(text)
    else:
        what = "a language without rules"
    return None if what is None else ("construct", what)
