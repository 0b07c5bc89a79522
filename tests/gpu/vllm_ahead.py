"""Asynchronous scheduling in vLLM's build for CPUs, which has it switched off: what its runner asks of
CUDA then is over at once."""

import contextlib


class Over:
    """An event, or a stream."""

    def __init__(self, *arguments, **how):
        pass

    def nothing(self, *arguments):
        pass

    record = synchronize = wait_stream = wait = nothing


def ahead():
    """In this process, before an engine is made."""
    import torch
    from vllm.platforms.cpu import CpuPlatform

    torch.cuda.Event = torch.cuda.Stream = torch.Event = Over
    torch.cuda.current_stream = lambda *_: Over()
    torch.cuda.stream = lambda *_: contextlib.nullcontext()
    check = CpuPlatform.check_and_update_config

    def checked(cls, config):
        asked = config.scheduler_config.async_scheduling
        check(config)
        config.scheduler_config.async_scheduling = asked

    CpuPlatform.check_and_update_config = classmethod(checked)
