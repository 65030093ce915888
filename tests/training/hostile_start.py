"""Trains on hosts on which something is missing or refused, one after the other, each in a forked child.

    python hostile_start.py FOLDER < cases.json

Each case names a kind and what it is about; the result is one line of JSON: how many steps were run, the warnings, the
exit code. The children train as a user's program does: they know nothing of the fault.
"""

import ctypes
import gc
import importlib
import json
import os
import resource
import struct
import sys
from pathlib import Path
from typing import Any

from logged import warnings_of

STEPS = 4
NUMBERS = {  # of system calls on x86-64
    "memfd_create": 319, "eventfd2": 290, "pidfd_open": 434, "pipe2": 293, "socketpair": 53, "socket": 41,
    "connect": 42, "bind": 49, "listen": 50, "accept4": 288, "getsockopt": 55, "setsockopt": 54, "sendto": 44,
    "recvfrom": 45, "ftruncate": 77, "fallocate": 285, "flock": 73, "setsid": 112, "vfork": 58, "setpriority": 141,
    "getpriority": 140, "epoll_create1": 291, "inotify_init1": 294, "fsync": 74, "linkat": 265, "mkdir": 83,
    "fadvise64": 221, "statfs": 137, "sched_getaffinity": 204, "poll": 7, "clone3": 435, "close_range": 436,
    "statx": 332,
}  # fmt: skip


def refuse_call(name: str, error: int) -> None:
    """Makes the kernel answer a system call with an error, as a container runtime does."""
    rules = [(0x20, 0, 0, 0), (0x15, 0, 1, NUMBERS[name]), (0x06, 0, 0, 0x00050000 | error), (0x06, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    program = Program(len(rules), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "this host allows no seccomp filter")


def leave_descriptors(free: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        for fd in held[len(held) - free :]:
            os.close(fd)


def apply(kind: str, what: Any) -> None:
    """Makes the host of this process a hostile one."""
    if kind == "name":
        os.environ["DELETED_NAME"] = what
        module, _, name = what.partition(".")
        delattr(importlib.import_module(module), name)
    elif kind == "call":
        refuse_call(*what)
    elif kind == "descriptors":
        leave_descriptors(what)
    elif kind == "closed":
        for fd in what:
            os.close(fd)
            setattr(sys, ("stdin", "stdout", "stderr")[fd], None)
    elif kind == "limit":
        resource.setrlimit(getattr(resource, what[0]), (what[1], resource.getrlimit(getattr(resource, what[0]))[1]))
    elif kind == "unset":
        os.environ.pop(what, None)


def train(arguments: dict[str, Any]) -> dict[str, Any]:
    told = warnings_of("")
    import pfo_fs

    opt = pfo_fs.PFOFileOptimizer(**{"pp_degree": 1, "coordination": "local", "wait_for_schedule_s": 0.0, **arguments})
    steps = 0
    with opt:
        for _ in range(STEPS):
            opt.on_step_begin()
            for name in ("forward", "backward"):
                opt.on_instruction_begin(name)
                opt.on_instruction_end(name)
            opt.on_step_end()
            opt.metrics()
            steps += 1
    return {"told": told, "steps": steps}


def as_given(values: dict[str, Any]) -> dict[str, Any]:
    """Returns texts with the bytes that a shell gives."""
    return {
        key: value.encode("latin-1").decode(errors="surrogateescape") if isinstance(value, str) else value
        for key, value in values.items()
    }


def main() -> int:
    folder, cases = Path(sys.argv[1]), json.load(sys.stdin)
    results = os.dup(sys.stdout.fileno())
    for name in ("pydantic", "msgspec", "subprocess", "socket", "fcntl", "tempfile"):
        importlib.import_module(name)
    gc.freeze()
    for number, case in enumerate(sorted(cases, key=lambda case: case["kind"] != "name")):
        if case["kind"] != "name":  # a program that has started
            importlib.import_module("pfo_fs.training.optimizer")
        pid = os.fork()
        if pid:
            case["exit"] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.write(results, json.dumps({"ended": case["name"], "exit": case["exit"]}).encode() + b"\n")
            continue
        os.environ.update(as_given(case.get("environment", {})))
        given = as_given(case.get("arguments", {}))
        shared: Any = folder / str(number)
        if case.get("bytes_path"):
            shared = os.fsencode(shared) + b"-\xff"
        apply(case["kind"], case.get("what"))
        done = train({"shared_dir": shared, **given})
        os.write(results, json.dumps({"case": case["name"], **done}).encode() + b"\n")
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
