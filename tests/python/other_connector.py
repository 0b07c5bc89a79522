"""A connector that an engine has beside the one under test, for vLLM's MultiConnector: it has a
handshake of its own and takes nobody else's, as NixlConnector does, and loads what a test says."""

from vllm.distributed.kv_transfer.kv_connector.v1 import base


class Handshake(base.KVConnectorHandshakeMetadata):
    pass


class Orders(base.KVConnectorMetadata):
    def __init__(self, loads):
        self.loads = loads


class OtherConnector(base.KVConnectorBase_V1, base.SupportsHMA):
    """finds: of a request, how many tokens; beside: the steps, else in front of one; fill: loads,
    unless it is lost; sends: keeps the blocks of a request until a step later. ranks: what it was told
    of its workers."""

    def __init__(self, vllm_config, role, kv_cache_config=None):
        super().__init__(vllm_config, role, kv_cache_config)
        self.finds, self.beside, self.fill, self.lost, self.sends = {}, True, None, False, False
        self.ranks, self.given = None, []
        self._orders, self._errors = [], set()

    # The workers.

    def register_kv_caches(self, kv_caches):
        pass

    def get_handshake_metadata(self):
        return Handshake()

    def start_load_kv(self, forward_context, **kwargs):
        for name, first, end, ids in self._connector_metadata.loads:
            if self.lost:
                self._errors.update(b for group in ids for b in group)
            else:
                self.fill(name, first, end, ids)

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        pass

    def get_finished(self, finished_req_ids):
        done = {name for name, *_ in self._connector_metadata.loads} if self.beside else None
        return (finished_req_ids if self.sends else None) or None, done or None

    def get_block_ids_with_load_errors(self):
        errors, self._errors = self._errors, set()
        return errors

    # The scheduler.

    def set_xfer_handshake_metadata(self, metadata):
        if not all(isinstance(one, Handshake) for one in metadata.values()):
            raise ValueError("the handshake of another connector")
        self.ranks = metadata

    def set_xfer_handshake_metadata_pp_aware(self, metadata):
        self.set_xfer_handshake_metadata(metadata)

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        n = self.finds.get(request.request_id, 0) - num_computed_tokens
        self._computed = num_computed_tokens
        return (n, self.beside) if n > 0 else (0, False)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens:
            self.finds.pop(request.request_id)
            first, end = self._computed, self._computed + num_external_tokens
            self._orders.append((request.request_id, first, end, blocks.get_block_ids()))

    def build_connector_meta(self, scheduler_output):
        orders, self._orders = self._orders, []
        return Orders(orders)

    def request_finished(self, request, block_ids):
        return self.sends, {"other": 1} if self.sends else None

    def request_finished_all_groups(self, request, block_ids):
        return self.request_finished(request, block_ids)
