"""Phrases: what orders to a model look like, written with sets of words that mean nearly the same.

In a phrase `@name` stands for one word of that set. Every repetition has a bound, because whoever writes the text may want it
to take long.
"""

import re
from typing import Final

__all__ = ["CATCHERS", "KEYFILES", "phrases"]

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

_WORDS: Final = {
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
    **{name: f"(?:{'|'.join(words.split())})" for name, words in _WORDS.items()},
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
