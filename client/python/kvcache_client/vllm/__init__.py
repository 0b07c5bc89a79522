"""A KV connector for vLLM:

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "KvcacheConnector",
        "kv_connector_module_path": "kvcache_client.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute"}'

connector.py is what vLLM calls. scheduler.py decides what is looked up, loaded and saved; worker.py
does it; link.py is the daemon that comes and goes; messages.py is what travels between the two;
requests.py names a request's blocks, chain.py where vLLM's own hashes are of no use to other engines;
layout.py reads vLLM's configuration, hosts.py says where it runs; breakeven.py knows which prefixes
are worth loading, from what passes.py measures; lately.py, which blocks need not be named again;
handed.py, which leases the workers were given, endings.py, which nobody needs; others.py, what other
connectors load. entries.py, layers.py and spill.py cut saves and loads into what the library takes;
streams.py says what they run beside; resets.py, what new weights end; repairs.py mends vLLM, multi.py
as much as is for other connectors; stats.py has figures as vLLM takes them. Of these the first and
the last four know vLLM.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    # The parts without vLLM can be imported, and tested, where it is not installed.
    if name == "KvcacheConnector":
        from .connector import KvcacheConnector

        return KvcacheConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
