"""What vLLM's calls of its connector take, step by step, on the host."""

import time

import kit

# Its calls in each process, the last one of a step last.
SIDES = {
    "scheduler": ("get_num_new_matched_tokens", "update_state_after_alloc",
                  "update_connector_output", "request_finished", "request_finished_all_groups",
                  "build_connector_meta"),
    "worker": ("bind_connector_metadata", "start_load_kv", "wait_for_save", "build_connector_worker_meta", "get_finished"),
}


class Clock:
    def __init__(self, side, connector):
        self.steps, self._step, self._inside = [], 0.0, False
        *some, last = SIDES[side]
        for name in (*some, last):
            call = getattr(connector, name, None)
            if call is not None:
                setattr(connector, name, self._timed(call, name == last))

    def _timed(self, call, last):
        def timed(*arguments, **keywords):
            if self._inside:  # one of them called another
                return call(*arguments, **keywords)
            self._inside, at = True, time.perf_counter()
            try:
                return call(*arguments, **keywords)
            finally:
                self._inside = False
                self._step += time.perf_counter() - at
                if last:
                    self.steps.append(self._step)
                    self._step = 0.0

        return timed

    def told(self):
        """Steps since the last time: how many, us of each (p50, p99, most), ms of all together."""
        steps, self.steps = self.steps, []
        if not steps:
            return None
        us = [round(kit.quantile(steps, q) * 1e6, 1) for q in (0.5, 0.99, 1.0)]
        return {"steps": len(steps), "us": us, "ms": round(sum(steps) * 1e3, 2)}
