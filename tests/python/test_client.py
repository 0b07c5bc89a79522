#!/usr/bin/env python3
"""kvcache_client against a real daemon, with host memory: every byte and every kind of call."""

import array
import os
import subprocess
import sys
import threading
import time

import support
from support import MS, Cache, some_keys

import kvcache_client as kvc
from kvcache_client import KeyState, Namespace, Rule

SPACE = Namespace(model="m", dtype="bfloat16", block_tokens=16)

# Saves blocks of prompt 5 and leaves: what another process does.
OTHER = """
import support
from support import Cache, MS, some_keys
from kvcache_client import Client, Namespace
cache = Cache(sizes={sizes})
with Client({socket!r}, connect_ms=MS, save_ms=MS) as client:
    part = client.register(Namespace(model="m", dtype="bfloat16", block_tokens=16), cache.slices,
                           blocks=cache.blocks, block_tokens=16)
    for i in range({n}):
        cache.fill(i, 500 + i)
    outcome = client.save(part, some_keys(5, {n}), range({n})).wait(MS)
    assert (outcome.status, outcome.published) == (0, {n}), outcome
"""


class Client(support.Case):
    def worker(self, daemon, cache=None, space=SPACE, role="worker", **how):
        client = self.client(daemon, role=role)
        cache = cache or Cache()
        how.setdefault("block_tokens", 16)
        part = client.register(space, cache.slices, blocks=cache.blocks, **how)
        return client, part, cache

    def put(self, client, part, cache, keys, first=0):
        n = len(keys) // 16
        for i in range(n):
            cache.fill(first + i, 100 + i)
        save = client.save(part, keys, range(first, first + n))
        self.assertEqual(save.count(KeyState.SAVED), n)
        self.assertEqual(save.wait(MS), kvc.Outcome(0, n, 0))

    def round_trip(self, cache, n):
        client, part, cache = self.worker(self.daemon(), cache)
        keys = some_keys(1, n)
        self.put(client, part, cache, keys)
        again = client.save(part, keys, range(n))
        self.assertEqual((again.id, again.states), (0, [[KeyState.HIT] * n]))
        self.assertEqual(again.wait(0), kvc.Outcome(0, 0, 0))
        cache.clear()
        with client.lookup(part, keys) as lease:
            self.assertEqual((lease.blocks, lease.gpu + lease.host), (n, n))
            load = client.load(lease, part, range(n, 2 * n))
            self.assertEqual(load.wait(MS), [])
            self.assertEqual(load.valid, b"\1" * n)
        for i in range(n):
            self.assertTrue(cache.holds(n + i, 100 + i))
            self.assertTrue(cache.untouched(i))

    def S4_layouts_come_back_bit_for_bit(self):
        self.round_trip(Cache(), 24)

    def S4_odd_sizes_come_back_bit_for_bit(self):
        self.round_trip(Cache(sizes=(16, 15, 17, 1, 4096, 3), blocks=160), 70)

    def test_saved_by_one_process_loaded_by_another(self):
        daemon = self.daemon()
        client, part, cache = self.worker(daemon)
        code = OTHER.format(socket=daemon.socket, n=20, sizes=cache.sizes)
        env = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.abspath(__file__)))
        subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=MS / 100)
        lease = client.lookup(part, some_keys(5, 21))
        self.assertEqual(lease.blocks, 20)
        self.assertEqual(client.load(lease, part, range(20)).wait(MS), [])
        self.assertTrue(all(cache.holds(i, 500 + i) for i in range(20)))
        self.assertTrue(cache.untouched(20))

    def S5_empty_lists_are_no_error(self):
        client, part, _ = self.worker(self.daemon())
        self.assertEqual(client.save(part, b"", []).wait(0), kvc.Outcome(0, 0, 0))
        self.assertEqual(client.save_entries([]).states, [])
        self.assertFalse(client.lookup(part, []))
        self.assertEqual(client.probe(part, ()), 0)
        self.assertEqual(client.pin(part, b""), 0)
        self.assertEqual(client.flush_keys(part, b""), 0)

    def S5_bad_arguments_name_their_field(self):
        client, part, _ = self.worker(self.daemon())
        keys = some_keys(1, 2)
        with self.assertRaises(ValueError):
            client.save(part, keys, [1])
        with self.assertRaisesRegex(kvc.InvalidError, "block"):
            client.save(part, keys, [1, 64])
        with self.assertRaisesRegex(kvc.DuplicateError, "keys"):
            client.save(part, keys[:16] * 2, [1, 2])
        with self.assertRaises(kvc.LimitError):
            client.save(part, some_keys(1, 1025), [0] * 1025)
        with self.assertRaises(kvc.ExpiredError):
            client.load(12345, part, [1, 2])
        self.assertEqual(client.statistics()["blocks"], 0)

    def test_some_of_several_entries(self):
        client, part, cache = self.worker(self.daemon())
        other = client.register(
            Namespace(model="other"), cache.slices, blocks=cache.blocks, block_tokens=16
        )
        keys = some_keys(1, 3)
        for i in range(6):
            cache.fill(i, i)
        entries = [kvc.SaveEntry(part, keys, [0, None, 2]), kvc.SaveEntry(other, keys, (3, 4, 5))]
        save = client.save_entries(entries)
        S, K = KeyState.SAVED, KeyState.SKIPPED
        self.assertEqual(save.states, [[S, K, S], [S, S, S]])
        self.assertEqual(save.wait(MS).published, 5)
        self.assertEqual((client.probe(part, keys), client.probe(other, keys)), (1, 3))
        lease = client.lookup(other, keys)
        cache.clear()
        load = client.load(lease, other, array.array("I", [kvc.NO_BLOCK, 8]), first=1)
        self.assertEqual(load.wait(MS), [])
        self.assertTrue(cache.holds(8, 5) and cache.untouched(7))

    def S10_what_is_asked_for_the_host_goes_there(self):
        client, part, cache = self.worker(self.daemon())
        keys = some_keys(1, 4)
        for i in range(4):
            cache.fill(i, i)
        save = client.save(part, keys, range(4), to_host=True)
        self.assertEqual(save.count(KeyState.SAVED), 4)
        self.assertEqual(save.wait(MS).published, 4)
        lease = client.lookup(part, keys)
        self.assertEqual((lease.blocks, lease.host), (4, 4))

    def S27_asking_again_extends_the_same_lease(self):
        client, part, cache = self.worker(self.daemon())
        keys = some_keys(1, 8)
        self.put(client, part, cache, keys[: 4 * 16])
        lease = client.lookup(part, keys, request=7)
        self.put(client, part, cache, keys[4 * 16 :], first=10)
        again = client.lookup(part, keys, request=7)
        self.assertEqual((lease.blocks, again.blocks, again.id), (4, 8, lease.id))
        self.assertGreaterEqual(again.extend(60000), 60000)
        again.release()
        again.release()
        with self.assertRaises(kvc.KvcacheError):
            again.extend()
        miss = client.lookup(part, some_keys(2, 3))
        self.assertEqual((bool(miss), miss.blocks), (False, 0))
        miss.release()

    def test_without_peers_nobody_is_asked(self):
        daemon = self.daemon()
        client = self.client(daemon, remote_ms=1000)
        cache = Cache()
        part = client.register(SPACE, cache.slices, blocks=64, block_tokens=16)
        lease = client.lookup(part, some_keys(1, 4))
        self.assertEqual((lease.blocks, lease.remote, lease.fetch), (0, 0, 0))
        self.assertEqual(client.remote(0), 0)
        with self.assertRaises(kvc.UnknownError):
            client.remote(12345)

    def S35_a_scheduler_hands_over_to_a_worker(self):
        daemon = self.daemon()
        client, part, cache = self.worker(daemon)
        keys = some_keys(1, 8)
        self.put(client, part, cache, keys)
        with self.client(daemon, role="scheduler") as scheduler:
            seen = scheduler.register(SPACE, cache.slices, blocks=cache.blocks, block_tokens=16)
            token = scheduler.lookup(seen, keys, request=3).token
            with self.assertRaises(kvc.DeniedError):
                scheduler.save(seen, keys, range(8))
            mine = client.adopt(token, part)
        self.assertEqual(mine.blocks, 8)
        self.assertEqual(client.load(mine, part, range(20, 28)).wait(MS), [])
        self.assertTrue(cache.holds(27, 107))
        with self.assertRaises(kvc.KvcacheError):
            client.adopt(bytes(16), part)
        with self.assertRaises(ValueError):
            client.adopt(b"short", part)

    def test_readers_load_and_do_not_save(self):
        daemon = self.daemon()
        client, part, cache = self.worker(daemon)
        self.put(client, part, cache, some_keys(1, 4))
        reader, seen, mine = self.worker(daemon, role=kvc.Role.READER)
        lease = reader.lookup(seen, some_keys(1, 4))
        self.assertEqual(reader.load(lease, seen, range(4)).wait(MS), [])
        self.assertTrue(mine.holds(3, 103))
        with self.assertRaises(kvc.DeniedError):
            reader.save(seen, some_keys(2, 1), [0])

    def S36_window_and_state_parts(self):
        client, full, cache = self.worker(self.daemon())
        window = client.register(
            Namespace(model="w"), cache.slices, blocks=64, block_tokens=16, rule=Rule.WINDOW,
            window=33,
        )
        state = client.register(
            Namespace(model="s"), cache.slices, blocks=64, block_tokens=16, rule=Rule.STATE
        )
        keys = some_keys(1, 6)
        entries = [
            kvc.SaveEntry(full, keys, range(6)),
            kvc.SaveEntry(window, keys, [None, None, None, 3, 4, 5]),
            kvc.SaveEntry(state, keys, [None] * 5 + [5]),
        ]
        client.save_entries(entries).wait(MS)
        self.assertEqual(client.lookup([full, window], keys[:-16]).blocks, 5)
        self.assertEqual(client.lookup([full, window, state], keys).blocks, 6)
        self.assertEqual(client.lookup([full, state], keys[:-16]).blocks, 0)

    def S9_saved_slice_by_slice(self):
        client, part, cache = self.worker(self.daemon())
        keys = some_keys(1, 4)
        for i in range(4):
            cache.fill(i, 100 + i)
        save = client.save(part, keys, range(4), slices=(0, 1))
        self.assertNotEqual(save.id, 0)
        save.more(1)
        self.assertEqual(client.probe(part, keys), 0)
        save.more(2)
        self.assertEqual(save.wait(MS).published, 4)
        self.assertEqual(client.probe(part, keys), 4)
        hits = client.save(part, keys, range(4), slices=(0, 1))
        hits.more(1)
        self.assertEqual(hits.wait(0).status, 0)

    def S38_loaded_slice_by_slice(self):
        client, part, cache = self.worker(self.daemon(), Cache(sizes=(64,) * 90))
        keys = some_keys(1, 4)
        self.put(client, part, cache, keys)
        cache.clear()
        load = client.load_slices(client.lookup(part, keys), part, [10, 11, None, 13])
        for layer in range(90):
            load.load(layer)
        self.assertEqual(load.wait(MS), [])
        self.assertTrue(all(cache.holds(b, 90 + b) for b in (10, 11, 13)))

    def S39_blocks_that_are_not_valid_are_named(self):
        client, part, cache = self.worker(self.daemon())
        keys = some_keys(1, 4)
        self.put(client, part, cache, keys)
        load = client.load_slices(client.lookup(part, keys), part, [10, 11, 12, 13])
        load.load(0, 2)
        load._sums[1] ^= 1
        load.load(2)
        self.assertEqual(load.wait(MS), [11])
        self.assertEqual(load.valid, b"\1\0\1\1")
        # It was a miss from then on.
        self.assertEqual(client.probe(part, keys), 1)

    def S42_a_flush_makes_all_before_it_a_miss(self):
        daemon = self.daemon()
        client, part, cache = self.worker(daemon)
        other, seen, _ = self.worker(daemon)
        keys = some_keys(1, 4)
        self.put(client, part, cache, keys)
        self.assertEqual(client.flush_keys(part, keys[48:]), 1)
        self.assertEqual(client.flush(part), 3)
        with self.assertRaises(kvc.StaleError):
            other.lookup(seen, keys)
        handle = seen.handle
        seen.renew()
        self.assertEqual((seen.handle, other.probe(seen, keys)), (handle, 0))
        self.put(client, part, cache, keys)
        self.assertEqual(other.probe(seen, keys), 4)

    def test_pinned_and_unpinned(self):
        client, part, cache = self.worker(self.daemon())
        self.put(client, part, cache, some_keys(1, 4))
        self.assertEqual(client.pin(part, some_keys(1, 6), seconds=60), 4)
        self.assertEqual(client.statistics()["pinned_blocks"], 4)
        self.assertEqual(client.unpin(part, some_keys(1, 6)), 4)
        self.assertEqual(client.statistics()["pinned_blocks"], 0)

    def S16_a_save_is_cancelled_once(self):
        client, part, cache = self.worker(self.daemon())
        save = client.save(part, some_keys(1, 4), range(4), slices=(0, 1))
        outcome = save.cancel(MS)
        self.assertEqual((outcome.published, outcome.dropped), (0, 4))
        self.assertNotEqual(outcome.status, 0)
        with self.assertRaises(kvc.UnknownError):
            save.cancel(MS)
        self.assertEqual(client.probe(part, some_keys(1, 4)), 0)

    def S40_a_scheduler_sees_statistics(self):
        daemon = self.daemon()
        client, part, cache = self.worker(daemon)
        self.put(client, part, cache, some_keys(1, 4))
        figures = self.client(daemon, role="scheduler").statistics()
        self.assertEqual((figures["blocks"], figures["saves"], figures["sessions"]), (4, 1, 2))
        self.assertEqual(figures["tiers.gpu.bytes"], 16 << 20)

    def test_sessions_and_their_ends(self):
        daemon = self.daemon()
        client, part, _ = self.worker(daemon)
        client.ping()
        client.dispatch()
        client.drain()
        client.suspend(part, MS)
        client.resume(part)
        self.assertEqual(client.device, "host")
        self.assertGreater(client.fileno(), 2)
        self.assertGreater(client.session, 0)
        part.unregister()
        with self.assertRaises(kvc.UnknownError):
            client.probe(part, some_keys(1, 1))
        client.close()
        client.close()
        self.assertEqual(client.fileno(), -1)
        with self.assertRaises(kvc.DisconnectedError):
            client.ping()

    def test_parts_keep_their_memory_until_they_end(self):
        client, part, cache = self.worker(self.daemon())
        buffers = cache.buffers
        del cache
        with self.assertRaises(BufferError):
            buffers[0].clear()
        part.unregister()
        del part
        buffers[0].clear()

    def test_nobody_is_there(self):
        begin = time.monotonic()
        with self.assertRaises(kvc.DisconnectedError) as caught:
            kvc.Client(os.path.join(self.folder, "nobody"), connect_ms=200)
        self.assertIsInstance(caught.exception, ConnectionError)
        self.assertLess(time.monotonic() - begin, 2 * support.MULTIPLIER)

    def test_a_daemon_that_comes_back(self):
        daemon = self.daemon()
        client, part, cache = self.worker(daemon)
        self.put(client, part, cache, some_keys(1, 4))
        epoch = client.boot_epoch
        daemon.kill()
        with self.assertRaises(kvc.SessionError):
            client.lookup(part, some_keys(1, 4))
        with self.assertRaises(kvc.SessionError):
            client.save(part, some_keys(2, 4), range(4))
        daemon.start()
        client.reconnect()
        self.assertNotEqual(client.boot_epoch, epoch)
        self.assertEqual(client.probe(part, some_keys(1, 4)), 0)
        self.put(client, part, cache, some_keys(1, 4))
        self.assertEqual(client.probe(part, some_keys(1, 4)), 4)

    def test_a_forked_child_may_only_close(self):
        client, part, cache = self.worker(self.daemon())
        self.put(client, part, cache, some_keys(1, 4))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                client.lookup(part, some_keys(1, 4))
            except kvc.ForkedError:
                client.close()
                code = 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        self.assertEqual(client.lookup(part, some_keys(1, 4)).blocks, 4)

    def test_threads_take_turns(self):
        client, part, cache = self.worker(self.daemon(), Cache(blocks=80))
        failed = []

        def play(number):
            try:
                keys = some_keys(10 + number, 10)
                for _ in range(20):
                    client.save(part, keys, range(number * 10, number * 10 + 10)).wait(MS)
                    with client.lookup(part, keys) as lease:
                        blocks = range(40 + number * 10, 50 + number * 10)
                        failed.extend(client.load(lease, part, blocks).wait(MS))
                    client.flush_keys(part, keys)
            except Exception as error:
                failed.append(error)

        for i in range(40):
            cache.fill(i, i)
        threads = [threading.Thread(target=play, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])
        self.assertTrue(all(cache.holds(40 + i, i) for i in range(40)))

    def test_no_descriptors_and_no_memory_stay_behind(self):
        daemon = self.daemon()
        cache = Cache()

        def once():
            with kvc.Client(daemon.socket, connect_ms=MS, save_ms=MS) as client:
                part = client.register(SPACE, cache.slices, blocks=64, block_tokens=16)
                client.save(part, some_keys(1, 4), range(4)).wait(MS)
            return len(os.listdir("/proc/self/fd"))

        before = once()
        for _ in range(10):
            self.assertEqual(once(), before)


support.main(__name__)
