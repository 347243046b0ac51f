"""Debian packages unpacked into a folder of our own: no root, no service started, nothing on the machine changed."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from elps.contracts.errors import SetupError

APT_S = 300.0
"""Bound on each call of apt: 40 MB over a slow line."""

ALWAYS = re.compile(r"rabbitmq-|erlang-|redis")
"""Fetched even if the package is installed: an unpacked RabbitMQ runs on the unpacked Erlang, never on a mixture."""

NOT_NEEDED = frozenset(
    {
        "adduser", "debconf", "init-system-helpers", "libc6", "locales", "logrotate", "lsb-base", "openssl", "perl",
        "procps", "python3", "socat", "sysvinit-utils", "ucf",
    }
)  # fmt: skip
"""Wanted only by the packages' installation scripts, or on every machine."""

MARKER = "unpacked.json"


class _Marker(msgspec.Struct, frozen=True):
    """Written last: the folder is complete."""

    root: str
    packages: list[str]


@dataclass(frozen=True)
class Unpacked:
    """A folder with unpacked packages."""

    root: Path

    @property
    def library_path(self) -> str:
        """Folders with shared libraries, for LD_LIBRARY_PATH."""
        folders = [
            f
            for top in ("usr/lib", "lib")
            for f in sorted((self.root / top).glob("*-linux-gnu*"))
            if f.is_dir()
        ]
        return os.pathsep.join(map(str, folders))


def unpacked(home: Path) -> Unpacked | None:
    """What was unpacked under `home` before, if it is complete and still where it was."""
    root = home / "binaries" / "root"
    try:
        marker = msgspec.json.decode((root.parent / MARKER).read_bytes(), type=_Marker)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    if marker.root != str(root) or not root.is_dir():
        return None  # the checkout was moved: the scripts inside hold the old path
    return Unpacked(root)


def unpack(home: Path, packages: Sequence[str], say: Callable[[str], None]) -> Unpacked:
    """Download these packages with what they need and unpack them under `home`; `SetupError` if that cannot be done."""
    for tool in ("apt-get", "apt-cache", "dpkg"):
        if not shutil.which(tool):
            raise SetupError(
                f"{tool} is not on this machine, so Debian packages cannot be unpacked"
            )
    folder = home / "binaries"
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        present = unpacked(home)
        marker = folder / MARKER
        have = msgspec.json.decode(marker.read_bytes(), type=_Marker).packages if present else []
        if set(packages) <= set(have):
            return Unpacked(folder / "root")
        marker.unlink(missing_ok=True)
        wanted = sorted({*packages, *have})
        downloads, root = folder / "downloads", folder / "root"
        for path in (downloads, root):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        try:
            needed = _download(folder, downloads, wanted, say)
            for archive in sorted(downloads.glob("*.deb")):
                _run(["dpkg", "-x", str(archive), str(root)])
        finally:
            shutil.rmtree(downloads, ignore_errors=True)
            shutil.rmtree(folder / "apt", ignore_errors=True)
        _relocate(root)
        marker.write_bytes(msgspec.json.encode(_Marker(str(root), wanted)))
        say(f"unpacked {len(needed)} packages into {root}")
        return Unpacked(root)


def install_with_apt(packages: Sequence[str]) -> None:
    """Install for the whole machine; for root, and the last resort, since it may start system services."""
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    _run(["apt-get", "update"], env=env)
    _run(["apt-get", "install", "-y", "--no-install-recommends", *packages], env=env)


def _download(
    folder: Path, downloads: Path, wanted: Sequence[str], say: Callable[[str], None]
) -> list[str]:
    """With the machine's package lists; if those are missing or old, with fresh ones of our own."""
    options = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
    try:
        return _download_with(options, downloads, wanted, say)
    except SetupError as error:
        say(
            f"the machine's package lists do not do ({str(error).splitlines()[0]}); fetching fresh ones"
        )
    apt = folder / "apt"
    for name in ("state/lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    options += ["-o", f"Dir::State={apt / 'state'}", "-o", f"Dir::Cache={apt / 'cache'}"]
    options += ["-o", "Dir::State::status=/var/lib/dpkg/status", "-o", "Acquire::Languages=none"]
    _run(["apt-get", "-q", *options, "update"])
    return _download_with(options, downloads, wanted, say)


def _download_with(
    options: list[str], downloads: Path, wanted: Sequence[str], say: Callable[[str], None]
) -> list[str]:
    needed = _closure(options, wanted)
    say(f"downloading {len(needed)} packages: {', '.join(needed)}")
    _run(["apt-get", "-q", *options, "download", *needed], cwd=downloads)
    return needed


def _closure(options: list[str], wanted: Sequence[str]) -> list[str]:
    """The wanted packages and everything they need that this machine lacks."""
    ignored = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    command = [
        "apt-cache",
        *options,
        "depends",
        "--recurse",
        *(f"--no-{name}" for name in ignored),
        *wanted,
    ]
    needs = parse_depends(_run(command))
    listing = _run(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"])
    installed = {
        words[0]
        for line in listing.splitlines()
        if len(words := line.split()) == 2 and words[1] == "installed"
    }
    return closure(needs, wanted, installed)


def parse_depends(text: str) -> dict[str, list[list[str]]]:
    """Read the output of `apt-cache depends`: package to its needs, each a list of alternatives."""
    needs: dict[str, list[list[str]]] = {}
    current: list[list[str]] = []
    alternatives: list[str] = []
    for line in text.splitlines():
        if not line.startswith((" ", "|")):
            current = needs.setdefault(line.strip(), [])
            alternatives = []
        elif match := re.match(r"^ ([ |])(?:Pre)?Depends: (\S+)$", line):
            if not (name := match[2]).startswith("<"):
                alternatives.append(name.partition(":")[0])
            if match[1] == " " and alternatives:
                current.append(alternatives)
                alternatives = []
    return needs


def closure(
    needs: dict[str, list[list[str]]], wanted: Iterable[str], installed: set[str]
) -> list[str]:
    """All packages to fetch for `wanted`, sorted; of alternatives an installed one wins, else the first."""
    chosen: set[str] = set()
    open_: list[str] = sorted(wanted)
    while open_:
        name = open_.pop()
        if name in chosen:
            continue
        if name not in needs:
            raise SetupError(f"no package {name} in the package lists")
        chosen.add(name)
        for alternatives in needs[name]:
            if any(option in NOT_NEEDED for option in alternatives):
                continue
            if any(option in installed and not ALWAYS.match(option) for option in alternatives):
                continue
            open_.append(
                next((option for option in alternatives if option in needs), alternatives[0])
            )
    return sorted(chosen)


def _relocate(root: Path) -> None:
    """Make the unpacked programs find each other: Debian's scripts and some links hold absolute paths."""
    for script in [*root.glob("usr/lib/erlang/bin/*"), *root.glob("usr/lib/erlang/erts-*/bin/*")]:
        if script.is_symlink() or not script.is_file() or not script.read_bytes().startswith(b"#!"):
            continue
        text = script.read_text(encoding="utf-8")
        script.write_text(
            re.sub(r"(?<![\w/])/usr/lib/erlang", f'"{root}/usr/lib/erlang"', text), encoding="utf-8"
        )
    for folder, subfolders, files in os.walk(root):
        for path in (Path(folder) / name for name in [*subfolders, *files]):
            if path.is_symlink() and (target := str(path.readlink())).startswith("/"):
                inside = root / target.lstrip("/")
                if inside.exists():
                    path.unlink()
                    path.symlink_to(inside)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one command at a time unpacks here."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(
    command: Sequence[str], *, cwd: Path | None = None, env: dict[str, str] | None = None
) -> str:
    environment = {**(os.environ if env is None else env), "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=APT_S,
        )
    except subprocess.TimeoutExpired:
        raise SetupError(
            f"{command[0]} did not end within {APT_S:.0f} s: {' '.join(command)}"
        ) from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        reason = next(
            (line for line in lines if line.startswith("E:")), lines[-1] if lines else "no output"
        )
        raise SetupError(f"{Path(command[0]).name} failed: {reason}")
    return done.stdout
