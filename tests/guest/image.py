"""What a guest boots: a kernel with soft-RoCE, an initial file system, and programs the host lacks.

Everything comes from the Debian archive that the host's own apt uses, is checked by apt, and lies in one
folder, the cache. Nothing is installed on the host and nothing needs root.
"""

import fcntl
import lzma
import os
import re
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
#: Grows when an image of an older script cannot be used any more.
VERSION = 1
#: The suite whose kernel is used where that of the release itself is too old: in that of Debian 12 a queue
#: pair whose NIC goes down may never complete anything.
KERNEL_SUITE = {"bookworm": "bookworm-backports"}
#: What runs the guest, and what runs in it besides the programs of the host.
PACKAGES = ["busybox-static", "ibverbs-providers", "ibverbs-utils", "iproute2", "libibverbs1", "perftest"]
QEMU = "qemu-system-x86_64"
#: Modules that are loaded, with everything they depend on; a kernel may have some of them built in.
MODULES = [
    "virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "crc32_generic", "crc32c_generic", "rdma_rxe",
    "rdma_ucm", "veth", "bridge", "sch_netem", "sch_tbf",
]  # fmt: skip


class Unavailable(Exception):
    """This machine cannot have a guest, for the reason in the text."""


@dataclass(frozen=True)
class Image:
    """A finished image."""

    folder: Path

    @property
    def kernel(self) -> Path:
        """The kernel, uncompressed if that was possible."""
        return self.folder / "kernel"

    @property
    def initrd(self) -> Path:
        """The initial file system."""
        return self.folder / "initrd"

    @property
    def programs(self) -> Path:
        """Programs and libraries that the host lacks, laid out as on a host."""
        return self.folder / "root"

    def qemu(self) -> tuple[list[str], dict[str, str]]:
        """The command that starts QEMU, and its environment."""
        own = self.programs / "usr/bin" / QEMU
        if not own.exists():
            return [QEMU], dict(os.environ)
        share = self.programs / "usr/share"
        libraries = [str(path) for path in sorted((self.programs / "usr/lib").glob("*-linux-gnu"))]
        command = [str(own)]
        for firmware in ("qemu", "seabios"):
            command += ["-L", str(share / firmware)]
        return command, {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}


def cache() -> Path:
    """Where images are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("R2CCL_GUEST_CACHE") or Path(base) / "r2ccl-guest")


def prepare() -> Image:
    """The image of this host, which is made if there is none yet.

    Raises:
        Unavailable: something that is needed is not there.
    """
    for program in ("apt-get", "apt-cache", "dpkg-deb"):
        if shutil.which(program) is None:
            raise Unavailable(f"there is no {program}")
    if os.uname().machine != "x86_64":
        raise Unavailable(f"there is no guest for {os.uname().machine}")
    folder = cache() / f"image-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    image = Image(folder)
    # The lock ends with the process, however that ends.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            _make(image)
            (folder / "ready").touch()
    return image


def _make(image: Image) -> None:
    work = image.folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(image.programs, ignore_errors=True)
    work.mkdir()
    apt = _Apt(work / "apt")
    _unpack(apt.packages([] if shutil.which(QEMU) else ["qemu-system-x86", "seabios"]), image.programs)
    kernel = work / "kernel"
    _unpack(apt.kernel(), kernel)
    release = next(path for path in kernel.glob("usr/lib/modules/*") if (path / "kernel").is_dir())
    image.kernel.write_bytes(_uncompressed(_kernel(kernel, release)))
    busybox = image.programs / "usr/bin/busybox"
    image.initrd.write_bytes(_initial(busybox if busybox.exists() else Path("/bin/busybox"), release))
    shutil.rmtree(work)


class _Apt:
    """apt with a state of its own, and the sources of the host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "lists/partial").mkdir(parents=True)
        (folder / "archives/partial").mkdir(parents=True)
        (folder / "status").touch()
        release = dict(re.findall(r'^(\w+)="?([^"\n]*)', Path("/etc/os-release").read_text(), re.MULTILINE))
        if release.get("ID") != "debian":
            raise Unavailable("the host is not Debian")
        self._suite = release.get("VERSION_CODENAME", "")
        self._kernel_suite = KERNEL_SUITE.get(self._suite, self._suite)
        self._sources()
        self._run("apt-get", "update")

    def _sources(self) -> None:
        listing = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"]
        targets = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\n")
        archives = [line.split(" ", 1)[1] for line in targets if line.startswith(f"{self._suite} ")]
        if not archives:
            raise Unavailable(f"apt knows no archive of {self._suite}")
        key = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
        suites = dict.fromkeys([self._suite, self._kernel_suite])
        lines = [f"deb {key} {archives[0]} {suite} main\n" for suite in suites]
        (self._folder / "sources.list").write_text("".join(lines))

    def _run(self, program: str, *arguments: str) -> str:
        settings = {
            "Dir::Etc::SourceList": self._folder / "sources.list", "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": self._folder / "lists", "Dir::Cache": self._folder,
            "Dir::Cache::Archives": self._folder / "archives", "Dir::State::status": self._folder / "status",
            "Debug::NoLocking": "1",
            "APT::Sandbox::User": "root", "APT::Get::List-Cleanup": "0", "Acquire::Languages": "none",
        }  # fmt: skip
        command = [program, "-qq", *(f"-o{name}={value}" for name, value in settings.items()), *arguments]
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=self._folder / "archives", check=False
        )
        if done.returncode != 0:
            raise Unavailable(f"{program} {arguments[0]}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def packages(self, extra: list[str]) -> list[Path]:
        """Files of the packages that the host lacks, and of what they depend on."""
        # As for an empty machine: what is installed here may be from elsewhere, and in conflict with them.
        simulate = ["--simulate", "--no-install-recommends", "install"]
        plan = self._run("apt-get", *simulate, *PACKAGES, *extra)
        wanted = re.findall(r"^Inst (\S+)", plan, re.MULTILINE)
        listing = ["dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package}\n"]
        status = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
        installed = re.findall(r"^installed (\S+)", status, re.MULTILINE)
        return self._download([name for name in wanted if name not in installed])

    def _download(self, names: list[str]) -> list[Path]:
        before = set(self._files())
        if names:
            self._run("apt-get", "download", *names)
        return [path for path in self._files() if path not in before]

    def kernel(self) -> list[Path]:
        """Files of the kernel: since Linux 6.19 in several packages."""
        newer = f"-oAPT::Default-Release={self._kernel_suite}"
        depends = self._run("apt-cache", newer, "depends", "linux-image-amd64")
        found = re.search(r"Depends: (linux-image-\S+)", depends)
        if found is None:
            raise Unavailable("linux-image-amd64 names no kernel")
        name = found.group(1)
        files = self._download([name])
        for part in ("base", "binary", "modules"):
            try:
                files += self._download([name.replace("image", part)])
            except Unavailable:
                continue
        return files

    def _files(self) -> list[Path]:
        return sorted((self._folder / "archives").glob("*.deb"))


def _unpack(packages: list[Path], target: Path) -> None:
    target.mkdir(exist_ok=True)
    for package in packages:
        subprocess.run(["dpkg-deb", "-x", package, target], check=True)
    # On the host these are links into usr, and folders must not take their place.
    for name in ("bin", "sbin", "lib", "lib64"):
        if (target / name).is_dir():
            shutil.copytree(target / name, target / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(target / name)


def _kernel(folder: Path, release: Path) -> bytes:
    for path in (folder / f"boot/vmlinuz-{release.name}", release / "vmlinuz"):
        if path.exists():
            return path.read_bytes()
    raise Unavailable(f"the package of Linux {release.name} has no kernel")


def _uncompressed(kernel: bytes) -> bytes:
    """The kernel itself, out of the program that unpacks it: slow work for a machine that is emulated."""
    unpackers = (
        (b"\xfd7zXZ\0", lambda packed: lzma.LZMADecompressor().decompress(packed)),
        (b"\x1f\x8b\x08", lambda packed: zlib.decompressobj(31).decompress(packed)),
        (b"\x28\xb5\x2f\xfd", _unzstd),
    )
    for magic, unpack in unpackers:
        for start in (found.start() for found in re.finditer(re.escape(magic), kernel)):
            try:
                plain = unpack(kernel[start:])
            except (lzma.LZMAError, zlib.error):
                continue
            if plain.startswith(b"\x7fELF"):
                return plain
    return kernel


def _unzstd(packed: bytes) -> bytes:
    done = subprocess.run(["zstd", "-dcq"], input=packed, capture_output=True, check=False)
    return done.stdout


def _initial(busybox: Path, release: Path) -> bytes:
    """The file system from which the guest finds the host's."""
    modules = list(_load_order(release / "kernel"))
    if "rdma_rxe" not in [name for name, _ in modules]:
        raise Unavailable(f"Linux {release.name} has no soft-RoCE")
    entries = [Entry("bin", b"", 0o040755), Entry("modules", b"", 0o040755)]
    entries += [Entry(name, b"", 0o040755) for name in ("proc", "sys", "dev", "host", "extra", "memory", "root")]
    entries.append(Entry("bin/busybox", busybox.read_bytes()))
    entries.append(Entry("init", (FOLDER / "init").read_bytes()))
    entries += [Entry(f"modules/{index:03}-{name}.ko", data) for index, (name, data) in enumerate(modules)]
    return archive(entries)


def _load_order(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the modules, each after what it depends on."""
    files = {path.name.split(".ko")[0].replace("-", "_"): path for path in folder.rglob("*.ko*")}
    loaded: set[str] = set()

    def load(name: str) -> Iterator[tuple[str, bytes]]:
        if name in loaded or name not in files:
            return
        loaded.add(name)
        data = files[name].read_bytes()
        if files[name].suffix == ".xz":
            data = lzma.decompress(data)
        elif files[name].suffix == ".zst":
            data = _unzstd(data)
        found = re.search(rb"\0depends=([^\0]*)\0", data)
        for needed in (found.group(1).decode() if found else "").split(","):
            yield from load(needed.replace("-", "_"))
        yield name, data

    for name in MODULES:
        yield from load(name)


@dataclass(frozen=True)
class Entry:
    """A file of an archive, or a folder."""

    name: str
    data: bytes
    mode: int = 0o100755


def archive(entries: list[Entry]) -> bytes:
    """An initial file system as the kernel reads it: cpio, of the kind "newc"; several may follow each other."""
    parts: list[bytes] = []
    for inode, entry in enumerate([*entries, Entry("TRAILER!!!", b"", 0)], 1):
        name = entry.name.encode() + b"\0"
        numbers = [inode, entry.mode, 0, 0, 1, 0, len(entry.data), 0, 0, 0, 0, len(name), 0]
        header = b"070701" + b"".join(b"%08x" % number for number in numbers)
        parts += [header, name, _padding(len(header) + len(name)), entry.data, _padding(len(entry.data))]
    return b"".join(parts)


def _padding(length: int) -> bytes:
    return b"\0" * (-length % 4)
