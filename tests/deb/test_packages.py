#!/usr/bin/env python3
"""The Debian packages, as `make deb` leaves them in build/deb: lintian, and their life on a system
of their own, which is this one under an overlay that is thrown away, also booted by systemd.

Installing takes root and mounts; where there are none, tests skip with the reason.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import support

FOLDER = os.path.join(support.ROOT, "build", "deb")
NAMES = ("kvcached", "libkvcache0", "libkvcache-dev")

# Runs $2 in a root of its own under $1: nothing that it writes outlives it. What it starts ends
# with it, by the PID namespace.
OWN_ROOT = """
set -e
mount -t tmpfs none "$1" || exit 99
mkdir "$1/up" "$1/work" "$1/system"
mount -t overlay -o lowerdir=/,upperdir="$1/up",workdir="$1/work" none "$1/system" || exit 99
mount -t tmpfs none "$1/system/run" || exit 99
mount -t tmpfs none "$1/system/tmp" || exit 99
mount -t proc proc "$1/system/proc" || exit 99
mount --rbind /dev "$1/system/dev" || exit 99
mkdir "$1/system/tmp/deb"
cp build/deb/*.deb "$1/system/tmp/deb"
awk -f scripts/demo-trace >"$1/system/tmp/trace.jsonl"
chroot "$1/system" env -i HOME=/root LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin \\
    DEBIAN_FRONTEND=noninteractive bash -euc "$2"
"""

INSTALL = """
cd /tmp/deb
dpkg -i kvcached_*.deb libkvcache0_*.deb libkvcache-dev_*.deb >/tmp/dpkg.log 2>&1 || {
    cat /tmp/dpkg.log; exit 1; }
"""

START = """
# As the unit does, with tiers that fit everywhere.
command=$(sed -n 's/^ExecStart=//p' /lib/systemd/system/kvcached.service)
start() {
    setpriv --reuid kvcache --regid kvcache --clear-groups env KVCACHED_GPU_BYTES=16M \\
        KVCACHED_HOST_BYTES=64M KVCACHED_METRICS=off KVCACHED_DEVICE=host \\
        $command >/tmp/kvcached.log 2>&1 &
    daemon=$!
    for i in $(seq 200); do kvcachectl ping >/dev/null 2>&1 && return; sleep 0.05; done
    cat /tmp/kvcached.log; exit 1
}
"""


# Boots $1/system, with networks of its own, to run $2 there by a service, whose output stays in
# $1/system/var/said; nothing else is started.
BOOT = """
set -e
mount -t tmpfs none "$1" || exit 99
mkdir "$1/up" "$1/work" "$1/system"
mount -t overlay -o lowerdir=/,upperdir="$1/up",workdir="$1/work" none "$1/system" || exit 99
system=$1/system
mkdir "$system/var/deb" "$system/etc/systemd/system/kvcached.service.d"
cp build/deb/*.deb "$system/var/deb"
rm -f "$system/usr/sbin/policy-rc.d" # where nothing may be started by packages
printf '%s\n' "$2" >"$system/var/script"
cat >"$system/etc/systemd/system/under-test.service" <<'END'
[Unit]
Requires=basic.target
After=basic.target
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
Environment=DEBIAN_FRONTEND=noninteractive
ExecStart=/bin/bash -c 'exec /bin/bash -eu /var/script >/var/said 2>&1'
END
cat >"$system/etc/systemd/system/kvcached.service.d/small.conf" <<'END'
[Service]
Environment=KVCACHED_GPU_BYTES=16M KVCACHED_HOST_BYTES=64M KVCACHED_DEVICE=host KVCACHED_METRICS=off
END
timeout 150 systemd-nspawn --quiet --register=no --keep-unit --private-network \
    --machine="kvcached-$$" -D "$system" --boot systemd.unit=under-test.service </dev/null \
    >"$system/var/boot" 2>&1 || true
[ -e "$system/var/said" ] || { tail -n 3 "$system/var/boot"; exit 99; }
cat "$system/var/said"
"""


def packages():
    return [p for n in NAMES for p in glob.glob(os.path.join(FOLDER, n + "_*.deb"))]


class Packages(support.Case):
    def in_own_root(self, script):
        if os.geteuid() != 0:
            self.skipTest("needs root")
        mounted = os.path.join(self.folder, "own")
        os.mkdir(mounted)
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child",
             "bash", "-c", OWN_ROOT, "own-root", mounted, INSTALL + START + textwrap.dedent(script)],
            cwd=support.ROOT, capture_output=True, text=True,
        )
        if done.returncode == 99 or done.stderr.startswith("unshare:"):
            self.skipTest("no mounts here: " + (done.stderr.strip() or "?").splitlines()[0])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_there_are_three(self):
        self.assertEqual(len(packages()), 3, os.listdir(FOLDER))

    def test_lintian_finds_no_error(self):
        if not shutil.which("lintian"):
            self.skipTest("lintian is not installed")
        with tempfile.TemporaryDirectory() as folder:  # it leaves its indexes behind
            done = subprocess.run(
                ["lintian", "--fail-on", "error,warning", "--allow-root", "--tag-display-limit",
                 "0", *glob.glob(os.path.join(FOLDER, "*.changes"))],
                capture_output=True, text=True, env=dict(os.environ, TMPDIR=folder),
            )
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_one_small_binary_and_no_more_than_named_libraries(self):
        shown = subprocess.run(
            ["dpkg-deb", "-f", os.path.join(FOLDER, [
                p for p in packages() if os.path.basename(p).startswith("kvcached_")][0]),
             "Depends"], capture_output=True, text=True, check=True).stdout
        names = {re.split(r"[ (|]", d.strip())[0] for d in shown.split(",")}
        self.assertLessEqual(names, {
            "adduser", "init-system-helpers", "libc6", "libhiredis0.14", "libinih1", "libjansson4",
            "libmicrohttpd12", "libnettle8", "libprotobuf-c1", "libuv1", "libxxhash0", "systemd",
        })

    def test_installed_run_and_removed(self):
        said = self.in_own_root("""
            echo "user $(getent passwd kvcache | cut -d: -f1,6,7)"
            echo "run $(stat -c '%U:%G %a' /run/kvcached)"
            start
            echo "daemon $(stat -c %U /proc/$daemon)"
            echo "socket $(stat -c '%U:%G %a' /run/kvcached/kvcached.sock)"
            kvcachectl replay /tmp/trace.jsonl --verify | grep -o '[0-9]* mismatches'
            kill $daemon; wait $daemon && echo ended
            for page in 1/kvcachectl.1 3/libkvcache.3 5/kvcached.conf.5 8/kvcached.8; do
                [ -e /usr/share/man/man$page.gz ] || echo "no page $page"
            done
            dpkg -r kvcached libkvcache-dev libkvcache0 >/dev/null 2>&1
            ls /usr/bin/kvcached /usr/bin/kvcachectl /usr/include/kvcache.h 2>/dev/null || true
            ls /usr/lib/*/libkvcache* /lib/systemd/system/kvcached* 2>/dev/null || true
            ls /etc/kvcached/kvcached.conf
            dpkg -P kvcached libkvcache-dev libkvcache0 >/dev/null 2>&1
            ls -d /etc/kvcached /run/kvcached 2>/dev/null || true
            getent passwd kvcache >/dev/null && echo "the user stays"
        """)
        self.assertEqual(said.splitlines(), [
            "user kvcache:/:/usr/sbin/nologin",
            "run kvcache:kvcache 755",
            "daemon kvcache",
            "socket kvcache:kvcache 660",
            "0 mismatches",
            "ended",
            "/etc/kvcached/kvcached.conf",
            "the user stays",
        ])

    def test_under_a_real_systemd(self):
        if os.geteuid() != 0:
            self.skipTest("needs root")
        if not shutil.which("systemd-nspawn"):
            self.skipTest("systemd-nspawn is not installed")
        booted = os.path.join(self.folder, "booted")
        os.mkdir(booted)
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "bash", "-c", BOOT, "boot", booted,
             textwrap.dedent("""
                systemd-run --wait --quiet -p User=nobody -p ProtectSystem=strict -p PrivateTmp=yes \\
                    -p DevicePolicy=closed -p SystemCallFilter=@system-service /bin/true || {
                    echo "it starts no unit with walls"; exit 0; }
                cd /var/deb
                units() { systemctl is-active kvcached.socket kvcached.service | tr '\\n' ' '; }
                pid() { systemctl show -p MainPID --value kvcached; }
                ping() { kvcachectl ping >/dev/null && echo answers; }
                until_not() { for i in $(seq 400); do [ "$(pid)" != "$1" ] && [ "$(pid)" != 0 ] &&
                    [ "$(systemctl is-active kvcached)" = active ] && return; sleep 0.05; done
                    systemctl status kvcached; exit 1; }
                dpkg -i kvcached_*.deb libkvcache0_*.deb >/dev/null 2>&1
                echo "installed: $(units)$(ping)"
                first=$(pid)
                dpkg -i kvcached_*.deb >/dev/null 2>&1
                [ "$(pid)" != "$first" ] && echo "upgraded: $(units)$(ping)"
                first=$(pid)
                echo 'lease-time = 77s' >>/etc/kvcached/kvcached.conf
                systemctl reload kvcached
                echo "reloaded: $(kvcachectl config | grep -c '^lease-time .*77')"
                echo 'nonsense = 1' >>/etc/kvcached/kvcached.conf
                systemctl reload kvcached 2>/dev/null || echo "refused: $(ping)"
                sed -i '$d' /etc/kvcached/kvcached.conf
                [ "$(pid)" = "$first" ] && echo "the same daemon"
                systemctl stop kvcached.service 2>/dev/null
                echo "stopped: $(units)$(ping)"
                first=$(pid)
                systemctl kill --kill-who=main -s KILL kvcached.service
                until_not "$first"
                echo "killed: $(units)$(ping)"
                mkdir -p /etc/systemd/system/kvcached.service.d
                printf '[Service]\\nWatchdogSec=1\\n' >/etc/systemd/system/kvcached.service.d/w.conf
                systemctl daemon-reload
                systemctl restart kvcached.service
                first=$(pid)
                systemctl kill --kill-who=main -s STOP kvcached.service
                until_not "$first"
                echo "stuck: $(units)$(ping)"
                first=$(pid)
                systemctl restart kvcached.socket
                until_not "$first"
                echo "restarted: $(units)$(ping)"
                dpkg -r kvcached >/dev/null 2>&1
                echo "removed: $(units)$(ls /run/kvcached)"
             """)],
            cwd=support.ROOT, capture_output=True, text=True,
        )
        if done.returncode == 99 or done.stderr.startswith("unshare:"):
            self.skipTest("no systemd to be had: " + (done.stdout + done.stderr).strip())
        if done.stdout.endswith("it starts no unit with walls\n"):
            self.skipTest("a systemd of its own: " + done.stdout.strip())
        self.assertEqual(done.stdout.splitlines(), [
            "installed: active active answers",
            "upgraded: active active answers",
            "reloaded: 1",
            "refused: answers",
            "the same daemon",
            "stopped: active inactive answers",
            "killed: active active answers",
            "stuck: active active answers",
            "restarted: active active answers",
            "removed: inactive inactive ",
        ], done.stdout + done.stderr)

    def test_what_the_operator_changed_outlives_an_upgrade(self):
        said = self.in_own_root("""
            echo 'lease-time = 77s' >>/etc/kvcached/kvcached.conf
            dpkg -i kvcached_*.deb >/dev/null 2>&1
            start
            kvcachectl config | grep -c '^lease-time .*77'
            kill $daemon; wait $daemon
        """)
        self.assertEqual(said.strip(), "1")

    def test_a_worker_is_built_with_the_development_package(self):
        said = self.in_own_root("""
            cat >/tmp/w.c <<'END'
            #include <kvcache.h>
            #include <stdio.h>
            int main(void)
            {
                kvc_client *client = NULL;
                kvc_options options = {.socket = "/nowhere", .connect_ms = 100};
                puts(kvc_text(kvc_connect(&options, &client)));
                return 0;
            }
            END
            gcc -Wall -Werror -o /tmp/shared /tmp/w.c $(pkg-config --cflags --libs libkvcache)
            gcc -Wall -Werror -o /tmp/static /tmp/w.c $(pkg-config --cflags libkvcache) \\
                -Wl,-Bstatic -lkvcache -Wl,-Bdynamic -lprotobuf-c -lxxhash -lpthread -ldl
            readelf -d /tmp/shared | grep -o 'libkvcache.so.0'
            readelf -d /tmp/static | grep -c 'libkvcache.so.0' || true
            /tmp/shared
            /tmp/static
        """)
        lines = said.splitlines()
        self.assertEqual(lines[:2], ["libkvcache.so.0", "0"])
        self.assertEqual(lines[2], lines[3])


support.main(__name__)
