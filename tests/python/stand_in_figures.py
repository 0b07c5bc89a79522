"""What the connector asks of vLLM for its figures."""

import dataclasses


@dataclasses.dataclass
class KVConnectorStats:
    data: dict = dataclasses.field(default_factory=dict)


class KVConnectorPromMetrics:
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        pass


class KVConnectorFactory:
    known = set()

    @classmethod
    def register_connector(cls, name, module_path, class_name):
        if name in cls.known:
            raise ValueError(f"{name} is there")
        cls.known.add(name)
