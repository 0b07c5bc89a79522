#!/usr/bin/env python3
"""Workers in containers of a real runtime, as systemd/README.md has them: podman's, where it is
installed. Their root file system has the tool, what it needs and a trace; what they are given is
the folder of a socket. Storage of podman is the test's own, and goes with it.
"""

import json
import os
import re
import shutil
import subprocess

import support

# Hybrid cgroups crun takes only without the unified ones.
PODMAN = ("mountpoint -q /sys/fs/cgroup/unified && umount /sys/fs/cgroup/unified; "
          'exec podman "$@"')
# Root in there is this uid outside, in a namespace of users.
OUTSIDE = 100000
TOOL = "/usr/bin/kvcachectl"
INSIDE = "/run/kvcached"


def libraries(program):
    """What the loader of this system would load for it, and the loader."""
    shown = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return re.findall(r"(/\S+) \(0x", shown)


class Podman(support.Case):
    runs = False  # known after the first

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("needs root")
        if not shutil.which("podman"):
            self.skipTest("podman is not installed")
        os.chmod(self.folder, 0o755)  # for root of a user namespace
        self.make_root()
        self.addCleanup(self.podman, ["kill", "--all"], check=False)
        if not Podman.runs:
            first = self.podman(["run", *self.options(), *self.image(), TOOL, "version"],
                                check=False)
            if first.returncode != 0:
                self.skipTest("podman runs nothing here: " +
                              (first.stderr.strip() or "?").splitlines()[-1])
            Podman.runs = True

    def make_root(self):
        self.root = os.path.join(self.folder, "root")
        tool = os.path.join(support.BUILD, "kvcachectl")
        for path, where in [(tool, TOOL), *((p, p) for p in libraries(tool))]:
            os.makedirs(self.root + os.path.dirname(where), exist_ok=True)
            shutil.copy(path, self.root + where)
        for folder in (INSIDE, "/etc", "/proc", "/sys", "/dev"):  # the latter podman fills
            os.makedirs(self.root + folder)
        with open(self.root + "/trace", "w") as f:
            subprocess.run(["awk", "-f", "scripts/demo-trace"], stdout=f, cwd=support.ROOT,
                           check=True)

    def image(self):
        return ["--rootfs", self.root]

    def options(self, folder=None, name=None):
        """No network, no capability, and nothing of the host but what a page of a manual names."""
        mount = ["-v", f"{folder}:{INSIDE}:ro"] if folder else []
        return ["--rm", "--network", "none", "--cgroups", "disabled", "--read-only",
                "--cap-drop", "all", "--security-opt", "no-new-privileges",
                # Not more than where a test may be run without CAP_SYS_RESOURCE.
                "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
                # A sanitizer's look for leaks would need ptrace.
                "--env", "ASAN_OPTIONS=detect_leaks=0",
                *(["--name", name] if name else []), *mount]

    def command(self, arguments):
        own = [f"--{what}={self.folder}/podman/{what}" for what in ("root", "runroot", "tmpdir")]
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", PODMAN, "podman",
                *own, "--storage-driver", "vfs", "--log-level", "error", *arguments]

    def podman(self, arguments, check=True):
        done = subprocess.run(self.command(arguments), capture_output=True, text=True)
        if check:
            self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def run_in(self, folder, *arguments, options=(), check=True):
        return self.podman(["run", *self.options(folder), *options, *self.image(), TOOL,
                            *arguments], check=check)

    def tenants(self, *names, **settings):
        """A daemon with a socket of its own for each; their folders."""
        folders = [os.path.join(self.folder, name) for name in names]
        sockets = []
        for name, folder in zip(names, folders):
            os.mkdir(folder, 0o755)
            sockets += ["--socket", f"{folder}/kvcached.sock tenant={name} roles=worker mode=0666"]
        return self.daemon(*sockets, **settings), folders

    def ctl(self, daemon, *arguments):
        """An operator of the host."""
        return subprocess.run(
            [os.path.join(support.BUILD, "kvcachectl"), "--socket", daemon.socket, *arguments],
            capture_output=True, text=True, check=True).stdout

    def status(self, daemon):
        return json.loads(self.ctl(daemon, "status", "--json"))

    def test_a_tenant_s_workers_by_both_ways_to_copy(self):
        daemon, (a, b) = self.tenants("a", "b")
        for copy in ("worker", "daemon"):
            said = self.run_in(a, "replay", "/trace", "--limit", "300", "--verify", "--copy", copy)
            self.assertIn(" 0 mismatches", said.stdout)
            self.assertRegex(said.stdout, r"hits +[1-9]")
        names = json.loads(self.ctl(daemon, "namespaces", "--json"))
        self.assertEqual({n["tenant"] for n in names}, {"a"})
        self.assertEqual(self.run_in(b, "namespaces").stdout, "no namespaces\n")

    def test_root_in_there_is_no_operator(self):
        _, (a,) = self.tenants("a")
        refused = self.run_in(a, "flush", "--all", check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("not allowed", refused.stderr)

    def test_in_a_user_namespace_it_is_who_it_is_outside(self):
        for folder, _, files in os.walk(self.root):
            for path in [folder, *(os.path.join(folder, f) for f in files)]:
                os.chown(path, OUTSIDE, OUTSIDE)
        folder = os.path.join(self.folder, "open")
        os.mkdir(folder, 0o755)
        daemon = self.daemon("--socket", f"{folder}/kvcached.sock mode=0666")
        mapped = ["--uidmap", f"0:{OUTSIDE}:65536"]
        said = self.run_in(folder, "replay", "/trace", "--limit", "300", "--verify", options=mapped)
        self.assertIn(" 0 mismatches", said.stdout)
        names = json.loads(self.ctl(daemon, "namespaces", "--json"))
        self.assertEqual({n["tenant"] for n in names}, {f"uid:{OUTSIDE}"})
        self.assertEqual(self.run_in(folder, "flush", "--all", options=mapped,
                                     check=False).returncode, 1)

    def test_a_killed_container_leaves_nothing(self):
        daemon, (a,) = self.tenants("a")
        running = subprocess.Popen(
            self.command(["run", *self.options(a, name="victim"), *self.image(), TOOL, "replay",
                          "/trace", "--workers", "2", "--pace", "5"]),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        support.until(lambda: self.status(daemon)["published_blocks"] > 0, "nothing is saved", 25)
        self.podman(["kill", "--signal", "KILL", "victim"])
        self.assertNotEqual(running.wait(), 0)
        what = ("sessions", "filling_slots", "quarantined_slots", "open_loads", "leases")
        support.until(lambda: not any(self.status(daemon)[w] for w in what), "something is left")

    def test_a_daemon_that_starts_again_is_found(self):
        daemon, (a,) = self.tenants("a")
        follower = subprocess.Popen(
            self.command(["run", *self.options(a, name="follower"), *self.image(), TOOL, "events",
                          "--json"]), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(follower.stdout.close)

        def follows():
            clients = json.loads(self.ctl(daemon, "clients", "--json"))
            return any(c["tenant"] == "a" for c in clients)

        support.until(follows, "nobody follows", 25)
        daemon.stop()
        daemon.start()
        self.assertIn("DaemonRestarted", follower.stdout.readline())
        self.podman(["kill", "--signal", "KILL", "follower"])
        follower.wait()


support.main(__name__)
