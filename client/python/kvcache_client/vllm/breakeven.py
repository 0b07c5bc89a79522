"""From how many tokens on loading a prefix is faster than computing it: what a load costs is
measured when the worker starts, what computing costs in its forward passes."""

from __future__ import annotations

import dataclasses
import logging
import statistics
from typing import Dict, List, Optional, Sequence, Tuple

log = logging.getLogger("kvcache_client.vllm")

STEP_TOKENS = 128  #: a forward pass of fewer says little about prefill
SAMPLES = 5  #: forward passes until a speed is believed
KEPT = 64
NEVER = 1 << 30


@dataclasses.dataclass(frozen=True)
class LoadCost:
    """Seconds: of a load however short, and of each token from a tier."""

    fixed: float = 0.0
    gpu: float = 0.0
    host: float = 0.0


def slowest(costs: Sequence[LoadCost]) -> Optional[LoadCost]:
    """Of ranks, which wait for each other."""
    if not costs:
        return None
    return LoadCost(*(max(getattr(c, f.name) for c in costs) for f in dataclasses.fields(LoadCost)))


class BreakEven:
    """override: this many tokens, whatever was measured. Until prefill has been measured every load
    pays. beside: loads from the GPU tier go on beside the steps as well."""

    def __init__(self, override: Optional[int] = None) -> None:
        self.override = override
        self.beside = False
        self.cost = LoadCost()
        self._samples: List[float] = []
        self._compute = 0.0  # seconds a token

    def ranks(self, costs: Sequence[LoadCost]) -> None:
        self.cost = slowest(costs) or self.cost

    def computed(self, samples: Sequence[Tuple[int, float]]) -> None:
        """Forward passes: their tokens and seconds."""
        for tokens, seconds in samples:
            if tokens >= STEP_TOKENS and seconds > 0:
                self._samples.append(seconds / tokens)
        del self._samples[:-KEPT]
        if samples and len(self._samples) >= SAMPLES:
            first, self._compute = not self._compute, statistics.median(self._samples)
            if first:
                log.info("kvcached: %s", self)

    def tokens(self, a_token: float, extra: float = 0.0) -> int:
        """The shortest gain that pays, when each token takes so long to load; NEVER."""
        if self.override is not None:
            return self.override
        if not self._compute:
            return 0
        if a_token >= self._compute:
            return NEVER
        return int((self.cost.fixed + extra) / (self._compute - a_token)) + 1

    def _round(self, beside: object) -> float:
        """What is loaded beside the steps waits for one more round of the scheduler."""
        return self.cost.fixed if beside or self.beside else 0.0

    def pays(self, gpu: int, host: int) -> bool:
        """A gain of so many tokens from each tier."""
        total = gpu + host
        if total <= 0:
            return False
        mixed = (gpu * self.cost.gpu + host * self.cost.host) / total
        return total >= self.tokens(mixed, self._round(host))

    def figures(self) -> Dict[str, int]:
        """Tokens from which loads pay (-1: never), and speeds in tokens a second; 0: not known."""
        limits = {
            "break_even_tokens_gpu": self.tokens(self.cost.gpu, self._round(False)),
            "break_even_tokens_host": self.tokens(self.cost.host, self._round(True)),
        }
        speeds = {
            "prefill_tokens_s": self._compute, "load_tokens_s_gpu": self.cost.gpu,
            "load_tokens_s_host": self.cost.host,
        }
        return {
            **{name: -1 if n >= NEVER else n for name, n in limits.items()},
            **{name: int(1 / s) if s else 0 for name, s in speeds.items()},
            "load_fixed_us": int(self.cost.fixed * 1e6),
        }

    def __str__(self) -> str:
        f = self.figures()

        def say(n: int) -> str:
            return "never" if n < 0 else f"from {n} tokens on"

        return (f"loading pays {say(f['break_even_tokens_gpu'])} (GPU tier), "
                f"{say(f['break_even_tokens_host'])} (host tier); prefill {f['prefill_tokens_s']} "
                f"tokens/s, loads {f['load_tokens_s_gpu']} and {f['load_tokens_s_host']}, and "
                f"{f['load_fixed_us']} us each")
