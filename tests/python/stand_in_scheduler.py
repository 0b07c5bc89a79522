"""What the connector asks of vLLM's scheduler; the stand-in engine has one of its own."""

import enum


class RequestStatus(enum.Enum):
    RUNNING = 0
    PREEMPTED = 1
    WAITING_FOR_REMOTE_KVS = 2


class Scheduler:
    """As in vLLM 0.28."""

    def _handle_invalid_blocks(self, invalid, scheduled):
        raise NotImplementedError

    def _preempt_request(self, request, timestamp, drop_stale_output=False):
        self._free_request_blocks(request)
        self.waiting.prepend_request(request)
        self.reset_preempted_req_ids.add(request.request_id)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = request.num_output_placeholders = 0
        request.spec_token_ids = []
        request.drop_stale_output = drop_stale_output
        request.num_stale_output_tokens = request.num_in_flight_tokens
