#!/usr/bin/env python3
"""An engine whose workers are on several hosts goes without the cache, which is one host's."""

import os
import socket
from unittest import mock

import support
from stand_in import TOKENS
from vllm_case import Case

from kvcache_client.vllm import hosts
from kvcache_client.vllm.messages import RankInfo
from kvcache_client.vllm.options import options_of
from kvcache_client.vllm.scheduler import SchedulerSide


class Hosts(Case):
    def test_workers_on_several_hosts_are_refused(self):
        side = SchedulerSide(options_of({}), TOKENS)
        with self.assertLogs("kvcache_client.vllm", "ERROR") as said:
            self.assertFalse(side.set_ranks([RankInfo((), "a"), RankInfo((), "b")]))
            self.assertFalse(side.set_ranks([RankInfo((), "a"), None]))
        self.assertIn("several hosts", said.output[0])
        side.close()

    def host(self, boot):
        """Of another kernel that was started, of the same name."""
        path = os.path.join(self.folder, "boot_id")
        with open(path, "w") as file:
            file.write(boot + "\n")
        return mock.patch.object(hosts, "BOOT_ID", path)

    def test_hosts_of_one_name_are_several(self):
        with self.host("one"):
            one = self.engine(self.daemon())
        with self.host("another"):
            another = self.engine(self.daemon())
        said = {(0, r): engine.workers[0].get_handshake_metadata()
                for r, engine in enumerate((one, another))}
        one.config.parallel_config.world_size = 2
        with self.assertLogs("kvcache_client.vllm", "ERROR") as log:
            one.scheduler.set_xfer_handshake_metadata_pp_aware(said)
        self.assertIn("several hosts", log.output[0])

    def test_containers_of_other_names_are_on_one(self):
        here = hosts.here()
        with mock.patch.object(socket, "gethostname", return_value="a container"):
            self.assertEqual(hosts.here(), here)
            with mock.patch.object(hosts, "BOOT_ID", os.path.join(self.folder, "none")):
                self.assertEqual(hosts.here(), "a container")

    def test_workers_that_say_nothing_are_missed(self):
        """Of an engine with more of them than have said something."""
        engine = self.engine(self.daemon())
        engine.config.parallel_config.world_size = 2
        with self.assertLogs("kvcache_client.vllm", "ERROR") as log:
            engine.scheduler.set_xfer_handshake_metadata(
                {0: engine.workers[0].get_handshake_metadata()})
        self.assertIn("some workers said nothing", log.output[0])


support.main(__name__)
