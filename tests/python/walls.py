#!/usr/bin/env python3
"""Runs a command within the walls of a systemd unit, where there is no systemd to make them.

    walls.py UNIT UID [--writable FOLDER]... [--sets FILE] -- COMMAND...

Made as systemd makes them: user, capabilities, NoNewPrivileges, MemoryDenyWriteExecute, the filter
of system calls with RestrictAddressFamilies, RestrictNamespaces and RestrictRealtime, Nice, UMask,
Environment, and a file system of which nothing but /dev, /proc, /tmp and the folders that are given
can be written to; limits and OOMScoreAdjust where whoever runs this may. Not made: what takes
control groups (DeviceAllow, weights, TasksMax), a /tmp of its own, homes that are hidden.

What system calls a set has, systemd-analyze says; without it, --sets names a file with what
`systemd-analyze syscall-filter` prints. Other architectures than x86-64 are refused.
"""

import argparse
import ctypes
import os
import platform
import re
import resource
import struct
import subprocess
import sys

# linux/prctl.h
PR_CAPBSET_DROP, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 24, 22, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
SECCOMP_MODE_FILTER = 2
CAPABILITIES = 41
# linux/seccomp.h, linux/filter.h; loads are of struct seccomp_data: nr, arch, ip, args[6].
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, EQUAL, AND, RETURN = 0x20, 0x15, 0x54, 0x06
NR, ARCH, ARGUMENT_0, ARGUMENT_1 = 0, 4, 16, 24
AUDIT_ARCH_X86_64, X32 = 0xC000003E, 0x40000000
EPERM, ENOSYS = 1, 38
CLONE_NEW = 0x7E020000 | 0x80  # every namespace
CLONE_NEWNS, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 0x20000, -100, 0x8000, 1
MS_REC, MS_PRIVATE, MS_BIND = 16384, 1 << 18, 4096
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
LIMITS = {"LimitNOFILE": resource.RLIMIT_NOFILE, "LimitMEMLOCK": resource.RLIMIT_MEMLOCK,
          "LimitCORE": resource.RLIMIT_CORE}

libc = ctypes.CDLL(None, use_errno=True)


def check(result, what):
    if result != 0:
        error = ctypes.get_errno()
        sys.exit(f"walls: {what}: {os.strerror(error)}")


def service_of(path):
    """{name: [values]} of its section Service."""
    settings, section = {}, ""
    with open(path) as f:
        for line in f:
            line = line.strip()
            if line.startswith("["):
                section = line
            elif section == "[Service]" and "=" in line and not line.startswith("#"):
                name, value = line.split("=", 1)
                settings.setdefault(name, []).append(value)
    return settings


def numbers():
    """{name: number} of system calls."""
    text = subprocess.run(["gcc", "-E", "-dM", "-include", "asm/unistd.h", "-x", "c", "/dev/null"],
                          capture_output=True, text=True, check=True).stdout
    return {n: int(v) for n, v in re.findall(r"#define __NR_(\w+) (\d+)", text)}


def sets_of(path):
    """{"@set": names, other sets among them}."""
    if path:
        with open(path) as f:
            text = f.read()
    else:
        text = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager"],
                              capture_output=True, text=True, check=True).stdout
    sets, name = {}, None
    for line in text.splitlines():
        word = line.strip()
        if re.match(r"@\S+$", line):
            name = line
            sets[name] = []
        elif line and not line[0].isspace():
            name = None
        elif name and word and not word.startswith("#"):
            sets[name].append(word)
    return sets


def expand(word, sets):
    if not word.startswith("@"):
        return {word}
    return set().union(*(expand(w, sets) for w in sets[word]))


def allowed(service, sets):
    names = expand("@default", sets)
    for line in service["SystemCallFilter"]:
        some = set().union(*(expand(w, sets) for w in line.lstrip("~").split()))
        names = names - some if line.startswith("~") else names | some
    return names


def filter_of(service, sets):
    known = numbers()
    code = []

    def emit(operation, value, yes=0, no=0):
        code.append(struct.pack("HBBI", operation, yes, no, value))

    def refuse_unless(name, argument, values, mask=None):
        """Of this system call: the argument, masked, must be one of the values."""
        emit(LOAD, NR)
        emit(EQUAL, known[name], 0, 2 + (mask is not None) + len(values))
        emit(LOAD, argument)
        if mask is not None:
            emit(AND, mask)
        for i, value in enumerate(values):
            emit(EQUAL, value, len(values) - i, 0)
        emit(RETURN, ERRNO | EPERM)

    emit(LOAD, ARCH)
    emit(EQUAL, AUDIT_ARCH_X86_64, 1, 0)
    emit(RETURN, KILL)
    if "RestrictAddressFamilies" in service:
        families = [FAMILIES[f] for f in service["RestrictAddressFamilies"][0].split()]
        refuse_unless("socket", ARGUMENT_0, families)
    if service.get("RestrictRealtime") == ["yes"]:
        refuse_unless("sched_setscheduler", ARGUMENT_1, [0, 3, 5])
    emit(LOAD, NR)
    if service.get("RestrictNamespaces") == ["yes"]:
        for name, error in (("clone3", ENOSYS), ("unshare", EPERM), ("setns", EPERM)):
            emit(EQUAL, known[name], 0, 1)
            emit(RETURN, ERRNO | error)
        refuse_unless("clone", ARGUMENT_0, [0], CLONE_NEW)
        emit(LOAD, NR)
    for name in sorted(allowed(service, sets) & set(known)):
        emit(EQUAL, known[name], 0, 1)
        emit(RETURN, ALLOW)
    emit(RETURN, ERRNO | EPERM)
    return b"".join(code)


def close_file_system(writable):
    check(libc.unshare(CLONE_NEWNS), "a mount namespace")
    check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
    writable = ["/dev", "/proc", "/tmp", *writable]
    for folder in writable:
        check(libc.mount(folder.encode(), folder.encode(), None, MS_BIND | MS_REC, None), folder)
    mount_setattr("/", MOUNT_ATTR_RDONLY, 0)
    for folder in writable:
        mount_setattr(folder, 0, MOUNT_ATTR_RDONLY)


def mount_setattr(path, set_, clear):
    attributes = struct.pack("QQQQ", set_, clear, 0, 0)
    check(libc.syscall(442, AT_FDCWD, path.encode(), AT_RECURSIVE, attributes, len(attributes)),
          f"mount_setattr {path}")


def set_limits(service):
    for name, which in LIMITS.items():
        if name in service:
            value = service[name][0]
            wanted = resource.RLIM_INFINITY if value == "infinity" else int(value)
            try:
                resource.setrlimit(which, (wanted, wanted))
            except (ValueError, PermissionError):
                pass
    os.nice(int(service["Nice"][0]))
    score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    try:
        os.write(score, service["OOMScoreAdjust"][0].encode())
    except PermissionError:
        pass
    os.close(score)
    os.umask(int(service["UMask"][0], 8))


def become(uid):
    check(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "ambient capabilities")
    for capability in range(CAPABILITIES):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("unit")
    parser.add_argument("uid", type=int)
    parser.add_argument("--writable", action="append", default=[])
    parser.add_argument("--sets")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    if platform.machine() != "x86_64":
        sys.exit("walls: only on x86-64")
    service = service_of(arguments.unit)
    code = filter_of(service, sets_of(arguments.sets))
    close_file_system([os.path.realpath(w) for w in arguments.writable])
    set_limits(service)
    become(arguments.uid)
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    if service.get("MemoryDenyWriteExecute") == ["yes"]:
        check(libc.prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0), "MemoryDenyWriteExecute")
    environment = dict(os.environ)
    for line in service.get("Environment", []):
        environment.update([line.split("=", 1)])
    program = Program(len(code) // 8, code)
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program)), "the filter")
    os.execve(arguments.command[0], arguments.command, environment)


if __name__ == "__main__":
    main()
