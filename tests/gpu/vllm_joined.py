"""Requests that join others in a vLLM engine, step by step: what a failed load does to all of them."""

import collections

TOLD = 5  # of the likeliest tokens, their log probabilities
BEGUN = 3  # tokens of those that decode, then others come


def joined(engine, decoding, groups, made, fails):
    """Prompts: some that decode, and groups of others that come together, each one step behind the
    last. fails: there is no daemon when they are loaded. [(tokens, log probabilities)], in order."""
    engine.reset()
    became, logs, ended = collections.defaultdict(list), collections.defaultdict(list), set()

    def add(name, tokens):
        engine._add(name, tokens, made, TOLD)

    def step():
        for o in engine.engine.step():
            new = o.outputs[0]
            became[o.request_id] += new.token_ids
            logs[o.request_id] += [
                {t: e.logprob for t, e in p.items()} for p in new.logprobs or []]
            if o.finished:
                ended.add(o.request_id)

    some, names = engine.random.random(), []
    for i, tokens in enumerate(decoding):
        names.append(f"{some} decoding {i}")
        add(names[-1], tokens)
    while any(len(became[name]) < BEGUN for name in names):
        step()
    if fails:
        engine.away(0)
    for i, group in enumerate(groups):
        for j, tokens in enumerate(group):
            names.append(f"{some} {i} {j}")
            add(names[-1], tokens)
        step()
    while len(ended) < len(names):
        step()
    if fails:
        engine.away(-1)
    return [(became[name], logs[name]) for name in names]
