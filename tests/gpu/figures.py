"""What rounds of a benchmark come to: medians and what they are in 95 % of resamplings."""

import json
import random

import kit

RESAMPLINGS = 300
MANY = 2000  # values, of which a third of the resamplings is enough


def _resample(chosen, rounds, picked):
    return [v for i in picked for v in chosen.choices(rounds[i], k=len(rounds[i]))]


def _times(rounds):
    return RESAMPLINGS if sum(map(len, rounds)) < MANY else RESAMPLINGS // 3


def interval(rounds, q=0.5):
    """Of the quantile: rounds are resampled, and in each what it measured. rounds: lists."""
    chosen, found = random.Random(1), []
    for _ in range(_times(rounds)):
        picked = chosen.choices(range(len(rounds)), k=len(rounds))
        found.append(kit.quantile(_resample(chosen, rounds, picked), q))
    return _middle(found)


def over(rounds, base, q=0.5):
    """The quantile's ratio to that of other rounds, made in turns with these, and its interval. Of
    rounds that have no other it knows nothing."""
    chosen, found = random.Random(1), []
    n = min(len(rounds), len(base))
    rounds, base = rounds[:n], base[:n]
    for _ in range(_times(rounds)):
        picked = chosen.choices(range(len(rounds)), k=len(rounds))
        above, below = (kit.quantile(_resample(chosen, r, picked), q) for r in (rounds, base))
        found.append(above / below)
    whole = [kit.quantile([v for r in some for v in r], q) for some in (rounds, base)]
    return whole[0] / whole[1], *_middle(found)


def _middle(found):
    found.sort()
    return found[int(0.025 * len(found))], found[int(0.975 * len(found))]


def ms(rounds, q=0.5):
    """ "41.7 (40.9 to 42.3)" of seconds."""
    values = [v for r in rounds for v in r]
    return "{:.2f} ({:.2f} to {:.2f})".format(
        *(v * 1e3 for v in (kit.quantile(values, q), *interval(rounds, q))))


def change(rounds, base, q=0.5):
    """ "-1.0 % (-2.1 to 0.3)" """
    return "{:+.1f} % ({:+.1f} to {:+.1f})".format(
        *((v - 1) * 100 for v in over(rounds, base, q)))


def line(**figures):
    """One measured run, at once: a time limit takes no more than what has not been run."""
    print(json.dumps({k: float(f"{v:.6g}") if isinstance(v, float) else v
                      for k, v in figures.items()}), flush=True)
