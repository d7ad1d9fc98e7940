"""The lexical strategy: ranks by words, their forms, their neighbours and where they stand."""

from collections.abc import Callable
from heapq import nlargest
from itertools import pairwise
from operator import mul
from itertools import repeat

from toolyard.search.postings import Entry, Postings
from toolyard.search.query import Asked, read_query
from toolyard.search.settings import SearchSettings
from toolyard.search.spelling import Spelling
from toolyard.search.thesaurus import load_thesaurus


class Ranker:
    def __init__(self, settings):
        self.settings = settings
        self.postings = Postings(settings)
        self.thesaurus = load_thesaurus()
        self.spelling = Spelling(self.postings, self.thesaurus)

    def rank(self, query, k=10):
        asked = read_query(query, postings=self.postings, settings=self.settings, thesaurus=self.thesaurus, spelling=self.spelling)
        first, rest = self.gather(asked)
        if not first: return []
        top = self.top(first, self.settings.candidates)
        scored = self.closely(asked, top)
        return scored[:k]

    def gather(self, asked):
        budget = self.settings.postings
        scores: dict[int, float] = {}
        tools, weights = self.postings.tools, self.postings.weights
        order = sorted((a for a in asked if a.variants), key=lambda a: -a.weight)
        for at, group in enumerate(order):
            cost = sum(len(tools[t]) for t in group.variants)
            if scores and cost > budget:
                continue
            budget -= cost
            ordered = sorted(group.variants.items(), key=lambda item: item[1])
            best: dict[int, float] = {}
            for term, factor in ordered:
                if not best:
                    best = dict(zip(tools[term], map(mul, weights[term], repeat(factor))))
                    continue
                get = best.get
                for tool, weight in zip(tools[term], weights[term]):
                    weight *= factor
                    if weight > get(tool, 0.0):
                        best[tool] = weight
            if not scores:
                scores = best
            else:
                get = scores.get
                for tool, weight in best.items():
                    scores[tool] = get(tool, 0.0) + weight
        return scores, None

    def top(self, scores, most):
        if len(scores) <= most:
            return list(scores)
        line = nlargest(most, scores.values())[-1]
        return [tool for tool, score in scores.items() if score >= line]

    def closely(self, asked, tools):
        settings = self.settings
        p = self.postings
        want: dict[int, list[tuple[int, float]]] = {}
        for i, a in enumerate(asked):
            for term, f in a.variants.items():
                want.setdefault(term, []).append((i, f))
        words = {a.word: i for i, a in enumerate(asked) if a.word >= 0}
        pairs = {(a.term, b.term): settings.pair_bonus * (a.weight + b.weight) for a, b in pairwise(asked) if a.term>=0 and b.term>=0}
        nclause = max(a.clause for a in asked) + 1
        rows = []
        for tool in tools:
            e = p.entries[tool]
            got = [0.0] * len(asked)
            for term, w in zip(e.terms, e.weights):
                if term in want:
                    for i, f in want[term]:
                        x = w * f
                        if x > got[i]: got[i] = x
            seq = e.sequence
            for w in words.keys() & set(seq):
                got[words[w]] *= 1 + settings.exact_bonus
            terms = [p.term_of[w] for w in seq]
            if pairs:
                extra = sum(pairs[x] for x in pairs.keys() & set(pairwise(terms)))
            else: extra = 0.0
            full = sum(got) + extra
            nt = set(terms[:e.name_words])
            mass = hit = 0.0
            for t in nt:
                r = p.rarity(t); mass += r
                if t in want: hit += r * min(1.0, max(f for _, f in want[t])/ (r or 1))
            if mass: full *= 1 + settings.name_bonus * hit / mass
            rows.append((full, got, e))
        if nclause > 1 and settings.clause_share:
            sums = []
            for _, got, _ in rows:
                c = [0.0] * nclause
                for a, g in zip(asked, got): c[a.clause] += g
                sums.append(c)
            top = max(r[0] for r in rows)
            scale = [top / m if (m := max(c[i] for c in sums)) > 0 else 0.0 for i in range(nclause)]
            share = settings.clause_share
            rows = [((1 - share) * full + share * max(map(mul, c, scale)), got, e) for (full, got, e), c in zip(rows, sums)]
        out = [(round(full, 5), e.spec.name, e) for full, got, e in rows]
        out.sort(key=lambda r: (-r[0], r[1]))
        return out
