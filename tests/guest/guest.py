#!/usr/bin/env python3
"""Runs a command on real libibverbs, in a guest with soft-RoCE devices.

Without a command it builds the conformance tests of the verbs devices and runs those of the device
"ibverbs". The guest is a virtual machine (QEMU, emulated, so no hardware is needed) whose file system is
that of this host: what was built here runs there, and what it changes is forgotten. It has hosts with
several NICs each: h<host>n<nic> with the address 10.0.<nic>.<host + 1> and the RDMA device
rxe_h<host>n<nic>, all on one switch. The program "nic" in it injects faults, see docs/rdma.md.

The exit status is that of the command, 124 after the time limit, 125 if the guest died, and 77, with a
line that begins with "skip: ", where there can be no guest.
"""

import argparse
import ctypes
import json
import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from image import FOLDER, Entry, Image, Unavailable, archive, prepare

SKIPPED, TIMED_OUT, DIED = 77, 124, 125
#: A guest that dies before its second program runs, which emulation makes possible, is booted again.
BOOTS = 3
#: While the guest computes its clock counts instructions, two nanoseconds each. So it is not late for its own
#: timers when this host is busy, and a connection is not given up because of that.
CLOCK = "shift=1"
REPOSITORY = FOLDER.parent.parent


def arguments() -> argparse.Namespace:
    """What the user wants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2, help="simulated hosts (2)")
    parser.add_argument("--nics", type=int, default=2, help="NICs of each (2)")
    parser.add_argument("--cpus", type=int, default=1, help="processors of the guest (1)")
    parser.add_argument("--memory", type=int, default=1536, help="memory of the guest in MiB (1536)")
    parser.add_argument("--limit", type=float, default=1800, help="seconds until it is killed (1800)")
    parser.add_argument("--share", type=Path, action="append", default=[], help="a folder that the guest writes to")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the command")
    parser.add_argument("--console", action="store_true", help="show what the kernel of the guest says")
    parser.add_argument("command", nargs="*", help="the command; options of its own follow a --")
    return parser.parse_args()


def conformance() -> list[str]:
    """Builds the tests of the transport; returns the command that runs those over ibverbs."""
    # With the features that it has among all packages: whoever has run their tests has built it.
    build = ["cargo", "test", "--workspace", "--lib", "--no-run", "--message-format=json"]
    done = subprocess.run(build, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    built = [message for message in messages if message.get("executable")]
    program = next(message["executable"] for message in built if message["target"]["name"] == "ccl_transport")
    tests = ["verbs::conformance", "verbs::ibverbs", "--test-threads=1"]
    return ["env", "R2CCL_TEST_VARIANTS=ibverbs", program, *tests]


def settings(options: argparse.Namespace, command: list[str]) -> bytes:
    """What the second program of the guest reads."""

    def words(items: list[str]) -> str:
        return "(" + " ".join(map(shlex.quote, items)) + ")"

    exports = [f"export {shlex.quote(item)}" for item in options.env]
    lines = [
        f"hosts={options.hosts}", f"nics={options.nics}", f"PATH={shlex.quote(os.environ.get('PATH', ''))}",
        f"shared={words([str(path.resolve()) for path in options.share])}", f"command={words(command)}",
        f"folder_of_command={shlex.quote(os.getcwd())}", *exports,
    ]  # fmt: skip
    return "\n".join([*lines, ""]).encode()


class Files:
    """Files that no folder has: they end with the processes that have them open."""

    def __init__(self) -> None:
        self._open: list[int] = []

    def file(self, content: bytes = b"") -> int:
        """A file in memory."""
        descriptor = os.memfd_create("guest", 0)
        self._open.append(descriptor)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        return descriptor

    def pipe(self) -> tuple[int, int]:
        """A pipe: the end to read, and the end to write."""
        ends = os.pipe()
        self._open += ends
        return ends

    def close(self) -> None:
        """Closes all."""
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()


def path(descriptor: int) -> str:
    """What QEMU can open."""
    return f"/proc/self/fd/{descriptor}"


class Guest:
    """One boot of the guest."""

    def __init__(self, image: Image, options: argparse.Namespace, command: list[str]) -> None:
        self._files = Files()
        self._image, self._options = image, options
        job = [
            Entry("job", b"", 0o040755), Entry("job/bin", b"", 0o040755),
            Entry("job/bin/nic", (FOLDER / "nic").read_bytes()),
            Entry("job/second", (FOLDER / "second").read_bytes()),
            Entry("job/settings", settings(options, command)),
        ]  # fmt: skip
        self._initrd = self._files.file(image.initrd.read_bytes() + archive(job))
        self._ports = {name: self._files.pipe() for name in ("out", "err", "status", "console")}
        self.console = b""
        self._status = b""

    def _command(self) -> list[str]:
        def folder(name: str, source: str, mode: str) -> list[str]:
            share = f"local,id={name},path={source},security_model=none,multidevs=remap{mode}"
            return ["-fsdev", share, "-device", f"virtio-9p-pci,fsdev={name},mount_tag={name}"]

        def port(name: str) -> list[str]:
            target = f"file,id={name},path={path(self._ports[name][1])}"
            return ["-chardev", target, "-device", f"virtserialport,chardev={name},name={name}"]

        options, image = self._options, self._image
        kernel = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off random.trust_cpu=on"
        kernel += " tsc=reliable no_timer_check"
        command = [
            *image.qemu()[0], "-accel", "tcg,thread=single", "-icount", CLOCK, "-cpu", "max", "-machine", "q35",
            "-m", str(options.memory), "-smp", str(options.cpus), "-nodefaults", "-no-user-config",
            "-display", "none", "-no-reboot", "-kernel", str(image.kernel), "-initrd", path(self._initrd),
            "-append", kernel, "-serial", f"file:{path(self._ports['console'][1])}",
            *folder("host", "/", ",readonly=on"), *folder("extra", str(image.programs), ",readonly=on"),
            "-device", "virtio-serial-pci", *port("out"), *port("err"), *port("status"),
        ]  # fmt: skip
        for index, shared in enumerate(options.share):
            command += folder(f"shared{index}", str(shared.resolve()), "")
        return command

    def run(self, deadline: float) -> int | None:
        """Boots it and waits for its end; the exit status of the command, if there is one."""
        kept = [self._initrd, *(writer for _, writer in self._ports.values())]
        process = subprocess.Popen(
            self._command(), stdin=subprocess.DEVNULL, stdout=2, env=self._image.qemu()[1], pass_fds=kept,
            preexec_fn=end_with_parent,
        )  # fmt: skip
        try:
            self._relay(process, deadline)
        finally:
            process.kill()
            process.wait()
            self._drain()
            self._files.close()
        for line in self._status.decode(errors="replace").splitlines():
            if line.startswith("exit "):
                return int(line.split()[1])
        return TIMED_OUT if time.monotonic() >= deadline else None

    @property
    def has_booted(self) -> bool:
        """Whether its second program ran."""
        return self._status.startswith(b"up")

    def _sinks(self) -> dict[int, Callable[[bytes], None]]:
        def keep(name: str) -> Callable[[bytes], None]:
            return lambda data: setattr(self, name, getattr(self, name) + data)

        sinks = {"out": writer(1), "err": writer(2), "status": keep("_status"), "console": keep("console")}
        return {self._ports[name][0]: sink for name, sink in sinks.items()}

    def _relay(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        """Hands on what the guest says, until it has ended or the time is up."""
        with selectors.DefaultSelector() as selector:
            for descriptor, sink in self._sinks().items():
                selector.register(descriptor, selectors.EVENT_READ, sink)
            while process.poll() is None and time.monotonic() < deadline:
                for key, _ in selector.select(0.2):
                    key.data(os.read(key.fd, 1 << 16))

    def _drain(self) -> None:
        """Hands on what is left in the pipes."""
        for descriptor, sink in self._sinks().items():
            os.set_blocking(descriptor, False)
            try:
                while data := os.read(descriptor, 1 << 16):
                    sink(data)
            except BlockingIOError:
                continue


def writer(descriptor: int) -> Callable[[bytes], None]:
    """Writes all of what it is given."""

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(descriptor, data) :]

    return write


def end_with_parent() -> None:
    """Lets a child process end when its parent does, however that ends."""
    parent_death_signal = 1
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)


def run(options: argparse.Namespace) -> int:
    """Runs the command in a guest; its exit status."""
    try:
        image = prepare()
    except (Unavailable, OSError, subprocess.CalledProcessError) as reason:
        print(f"skip: no guest with soft-RoCE: {reason}")
        return SKIPPED
    command = options.command or conformance()
    deadline = time.monotonic() + options.limit
    for _ in range(BOOTS):
        guest = Guest(image, options, command)
        status = guest.run(deadline)
        if options.console or (status is None and not guest.has_booted):
            sys.stderr.write(guest.console.decode(errors="replace"))
        if status is not None or guest.has_booted:
            break
    if status == TIMED_OUT:
        print(f"guest: the time limit of {options.limit:g} s is over", file=sys.stderr)
    return DIED if status is None else status


def main() -> None:
    """The program."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)
    try:
        sys.exit(run(arguments()))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
