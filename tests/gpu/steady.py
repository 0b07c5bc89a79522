"""What bench_batch.py checks rather than measures: that nothing is lost or left behind."""

import time

import figures
import kit
import workloads
from server import held

PARTS = 4  # of the requests, between looks at what is held


def cancel(stream, ways, n):
    """Four streams abandoned in their middle, then n requests."""
    rows, sizes, server = [], stream.sizes, stream.server
    socket = stream.with_tier()
    for way in ways:
        why = stream.use(way, socket)
        if why:
            print(f"  {why}")
            continue

        def look():
            return server.call("held"), held(stream.daemon.process.pid)

        # What these have in common with the later ones is known; tables have their size.
        server.call("serve", stream.prompts(f"before {way}", 0, max(8, n // PARTS)), 16)
        looks = [look()]
        ran = server.call("serve", workloads.cancelled(
            4, sizes.prefix, 4 * sizes.output, f"cancelled {way}"), 16)
        cut = [len(s.tokens) for s in ran.requests]
        assert all(0 < t < 4 * sizes.output for t in cut), cut
        looks.append(look())
        good = 0
        for part in range(PARTS):
            ran = server.call("serve", stream.prompts(f"behind {way}", part, n // PARTS), 16)
            good += sum(len(s.tokens) == sizes.output for s in ran.requests)
            time.sleep(0.1)
            looks.append(look())
        figures.line(
            model=stream.name, workload="cancel", way=way, cancelled=len(cut), whole=good,
            asked=n // PARTS * PARTS, dropped=ran.figures["dropped"], held=looks)
        rows.append([
            stream.name, way, f"{len(cut)}, after {min(cut)} to {max(cut)} tokens",
            f"{good} of {n // PARTS * PARTS}", ran.figures["dropped"],
            *(" ".join(str(x[who][0]) for x in looks) for who in (0, 1)),
            *(" ".join(f"{x[who][1] / 1024:.1f}" for x in looks) for who in (0, 1)),
        ])
    kit.table(
        "streams cancelled, then the requests; held before, behind the streams, and as they go",
        ["model", "way", "cancelled", "whole", "saves given up", "descriptors, engine", "daemon",
         "MiB, engine", "daemon"], rows)


def verify(stream, ways):
    """Prompts one by one: the tokens behind an own hit, and those behind a load of as many blocks.
    Then all of them at once: every block's checksum is compared with what its saver said."""
    rows, sizes, server = [], stream.sizes, stream.server
    socket = stream.with_tier()
    n = 16 if stream.name != "tiny" else 4
    for way in ways:
        why = stream.use(way, socket, min_tokens=0, save_ms=kit.MS)
        if why:
            print(f"  {why}")
            continue
        # They fit into the pool, and not into the GPU tier.
        prompts = [workloads.Prompt([(f"verify {way} {i}", sizes.prefix + sizes.rest)], 1)
                   for i in range(n)]
        server.call("serve", prompts, 1)
        for p in prompts:
            server.call("waited", p.keys())
            p.output = sizes.output
        own = server.call("serve", prompts, 1).requests
        before = server.call("statistics")
        server.call("forget")
        loaded = server.call("serve", prompts, 1).requests
        server.call("forget")
        again = server.call("serve", prompts, 16).requests
        wrong = server.call("statistics")["checksum_failures"] - before["checksum_failures"]
        blocks = [sum(getattr(s, tier) for s in loaded + again) for tier in ("gpu", "host")]
        same = sum(a.own == b.gpu + b.host and a.tokens == b.tokens for a, b in zip(own, loaded))
        figures.line(model=stream.name, workload="verify", way=way, equal=same, prompts=n,
                     gpu=blocks[0], host=blocks[1], wrong=wrong)
        rows.append([stream.name, way, f"{same} of {n}", sizes.output,
                     f"{blocks[0]} / {blocks[1]}", wrong])
        assert wrong == 0 and same == n, rows[-1]
    kit.table(
        "loads beside own hits of as many blocks, and all at once; a wrong checksum ends the run",
        ["model", "way", "prompts with equal tokens", "tokens of each", "blocks, GPU / host tier",
         "wrong"], rows)
