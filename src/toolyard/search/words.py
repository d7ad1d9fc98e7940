"""Words: what a text or an identifier is made of, in small letters and without what says nothing."""

import re
import unicodedata
from typing import Final

from toolyard.search.tables import Table

__all__ = ["SHORT_FORMS", "STOP_WORDS", "plain", "read_words", "split_word"]

_WORD: Final = re.compile(r"[^\W_]+")
_SPACED: Final = "".join(letter if letter.isalnum() else " " for letter in map(chr, range(128)))
"""What stands for each ASCII character once everything that is no letter or digit has become a space."""
_PIECE: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SHAPE: Final = re.compile(r"(?:A-*+)+(?!a)|(?:A-*+)?(?:a-*+)+|0+|[x-]+")
"""The same for letters of all alphabets, each as its kind; those of alphabets without capitals are pieces of their own."""
_STRETCH: Final = re.compile(r"[\x00-\x7f]*[^\x00-\x7f]{0,64}")
"""What is made plain at once: marks on a letter are put in order in a time that grows with the square of their number."""
_LONGEST: Final = 40
_LONGEST_JOINED: Final = 24

_SILENT: Final = """
    a about again all also am an and any are aren as asap at be because been being between both but by can cannot could couldn d
    did didn do does doesn doing don down during each either else etc even every few for from further had hadn has hasn have
    haven having he hello her here hers hey hi him his how however i if in instead into is isn it its itself just let lets ll m
    may maybe me mine more most much must my myself neither no nor not now of off ok okay on once only onto or other ought our
    ours out over own per please quite rather re s same shall she should shouldn so some somehow something such t than thank
    thanks that the their theirs them then there these they this those through thus to too under until up upon us ve very via
    was wasn we well were weren what whatever when where whether which while who whom whose why will with within without won
    would wouldn yes yet you your yours yourself able assist assistance based better come considering currently e eg g get given
    gives giving go going got gonna help helped helpful helping helps interested kind know like looking lot make makes making
    many might need needed needing needs new particular possible provide provided provides providing really regarding say see
    seem specific specified specify sure take tell try trying use used useful uses using various want wanted wanting wants way
    ways wish wondering works
"""

STOP_WORDS: Final = frozenset(_SILENT.split())
"""Words that say nothing about which tool is meant."""

_PAIRS: Final = """
    admin administrator, app application, apps application, args argument, async asynchronous, attr attribute, auth authentication,
    auth authorization, avg average, bg background, calc calculate, cal calendar, cfg configuration, char character, cmd command,
    conf configuration, config configuration, conn connection, crypto cryptocurrency, ctx context, db database, def definition,
    del delete, dept department, desc description, dest destination, dev developer, diff difference, dir directory, dirs directory,
    dist distance, doc document, docs documentation, env environment, err error, exec execute, ext extension, fav favorite, fn function,
    freq frequency, func function, geo geographic, geo location, hist history, id identifier, img image, impl implementation,
    info information, init initialize, k8s kubernetes, kb knowledge, lang language, lat latitude, lib library, lon longitude, lng longitude,
    loc location, max maximum, mem memory, mgmt management, min minimum, msg message, msgs message, net network, num number, obj object,
    org organization, orgs organization, os operating, param parameter, params parameter, perm permission, pic picture, pkg package,
    pos position, pr pull, pref preference, prev previous, proc process, prod production, proj project, pwd password, qty quantity,
    rec record, ref reference, regex expression, repo repository, repos repository, req request, res response, rm remove, sched schedule,
    sec security, sep separator, spec specification, sql database, src source, stat statistic, stats statistic, std standard,
    str string, subj subject, svc service, sync synchronize, sys system, tel telephone, temp temperature, temp temporary, tmp temporary,
    ts timestamp, txn transaction, txt text, url link, usr user, util utility, val value, var variable, vid video, vm machine, vol volume
"""


def _both_ways() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for pair in _PAIRS.split(","):
        short, long = pair.split()
        for one, other in ((short, long), (long, short)):
            found[one] = (*found.get(one, ()), other)
    return found


SHORT_FORMS: Final = _both_ways()
"""Words that identifiers cut short, and the other way round."""


def plain(text: str) -> str:
    """Return a text with letters that only look different made the same."""
    return text if text.isascii() else "".join(unicodedata.normalize("NFKC", part) for part in _STRETCH.findall(text))


def read_words(text: str) -> list[str]:
    """Return the words of a text as they are written, identifiers unsplit but for what is no letter or digit."""
    return text.translate(_SPACED).split() if text.isascii() else _WORD.findall(text)


def split_word(written: str) -> list[str]:
    """Return the words that one written word holds: itself, or the pieces of an identifier and the whole."""
    if written.islower() and written.isalpha() and written.isascii():
        return [written[:_LONGEST]]
    pieces = [piece.lower() for piece in (_PIECE.findall(written) if written.isascii() else _pieces(written))]
    whole = written.lower()
    if len(pieces) <= 1:
        return [whole[:_LONGEST]]
    kept = [piece[:_LONGEST] for piece in pieces if len(piece) > 1]
    return [*kept, whole] if len(whole) <= _LONGEST_JOINED else kept


def _pieces(written: str) -> list[str]:
    """Return the pieces of a word that is not all ASCII."""
    return [written[slice(*piece.span())] for piece in _SHAPE.finditer(written.translate(_KINDS))]


def _kind(code: int) -> str:
    """Return what kind of letter this is; one that only changes the letter before it belongs to it."""
    letter = chr(code)
    if letter.islower():
        return "a"
    if letter.isupper() or letter.istitle():
        return "A"
    if letter.isdigit():
        return "0"
    return "-" if unicodedata.category(letter) == "Lm" else "x"


_KINDS: Final = Table[int, str](_kind)
