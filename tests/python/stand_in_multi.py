"""vLLM's MultiConnector, as much of it as passes words between workers and schedulers: the first
connector's, to all."""

import sys

import stand_in

MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector"


class Said:
    """Of another connector's worker."""


class Other:
    """As NixlConnector: takes no other's word. ranks: what its workers have said."""

    ranks = None

    def get_handshake_metadata(self):
        return Said()

    def set_xfer_handshake_metadata_pp_aware(self, metadata):
        if not all(isinstance(said, Said) for said in metadata.values()):
            raise ValueError("the word of another connector")
        self.ranks = metadata


class Silent(Other):
    """Its workers say nothing."""

    def get_handshake_metadata(self):
        return None


class MultiConnector:
    def __init__(self, connectors, transfer):
        self._connectors, self._kv_transfer_config = connectors, transfer

    def get_handshake_metadata(self):
        for connector in self._connectors:
            said = connector.get_handshake_metadata()
            if said is not None:
                return said
        return None

    def set_xfer_handshake_metadata_pp_aware(self, metadata):
        for connector in self._connectors:
            connector.set_xfer_handshake_metadata_pp_aware(metadata)


def install(kind=MultiConnector):
    """A class of its own, which nobody has repaired."""
    made = type("MultiConnector", kind.__bases__, dict(vars(kind)))
    stand_in._module(MODULE, MultiConnector=made)
    return made


class Engine(stand_in.Engine):
    """order: of the connectors, None for the one under test."""

    order, kind, transfer = (Other, None), None, None

    def introduce(self):
        def several(one):
            beside = [one if kind is None else kind() for kind in self.order]
            return self.kind(beside, self.transfer or self.config.kv_transfer_config), beside

        multi, beside = several(self.scheduler)
        self.others = [c for c in beside if c is not self.scheduler]
        said = {(0, r): several(w)[0].get_handshake_metadata() for r, w in enumerate(self.workers)}
        multi.set_xfer_handshake_metadata_pp_aware(
            {rank: one for rank, one in said.items() if one is not None})
