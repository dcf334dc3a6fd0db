"""Files that are written whole or not at all, by one process at a time, and never over an input."""

import contextlib
import errno
import functools
import hashlib
import os
import re
import secrets
import stat
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

StrPath = str | os.PathLike[str]
# /dev/stdout and process substitution name an open descriptor, perhaps a file, which must not be renamed over
DESCRIPTOR = re.compile(r"/dev/(std(?:out|err))|/(?:dev|proc/self)/fd/([0-9]+)")
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
# files of a model's folder and of stored positions, which an output of this name would overwrite
MODEL_PARTS = re.compile(
    r"(model|pytorch_model|consolidated)\b.*|.*\.(gguf|npy)|(config|generation_config|tokenizer\w*|vocab|added_tokens|"
    r"special_tokens_map|meta)\.\w+|merges\.txt|chat_template\..*"
)


def write_whole(path: StrPath, content: bytes) -> None:
    """Write a file atomically: whatever happens, `path` has its old content or all of `content`.

    Written beside, synced and renamed. An existing file keeps its mode, a symbolic link stays and its target is
    replaced; a pipe, a terminal or an open descriptor (/dev/stdout) gets the content as it is. Raises OSError with the
    path in it, ValueError for a folder or a device.
    """
    with naming(path):
        found = _status(path)
        if descriptor := DESCRIPTOR.fullmatch(os.path.abspath(path)):
            sys.stdout.flush()
            _write_descriptor(_number(descriptor), content)
        elif found is not None and not stat.S_ISREG(found.st_mode):
            _check_kind(found, str(path), "output")
            with open(path, "wb", buffering=0) as file:
                write_all(file, content)
        else:
            _replace(Path(os.path.realpath(path)), found, [content])


def replace_file(path: Path, parts: Iterable[bytes]) -> None:
    """Replace the content of a regular file, as `write_whole` does, one part at a time."""
    with naming(path):
        _replace(Path(os.path.realpath(path)), os.stat(path), parts)


def write_text(path: StrPath, text: str) -> None:
    """Run `write_whole` on UTF-8; invalid Unicode raises before anything is written."""
    write_whole(path, text.encode("utf-8"))


def write_all(file: Any, content: bytes) -> None:
    """Write to an unbuffered file until every byte is written: one call may write only a part (full disk)."""
    rest = memoryview(content)
    while rest:
        count = file.write(rest)
        if not count:
            raise OSError(errno.EIO, "nothing more could be written")
        rest = rest[count:]


def _write_descriptor(number: int, content: bytes) -> None:
    with open(number, "wb", buffering=0, closefd=False) as file:
        write_all(file, content)


def _number(descriptor: re.Match[str]) -> int:
    return {"stdout": 1, "stderr": 2}[descriptor[1]] if descriptor[1] else int(descriptor[2])


def _replace(target: Path, found: os.stat_result | None, parts: Iterable[bytes]) -> None:
    if found is not None and not os.access(target, os.W_OK):  # renaming would ignore the file's permissions
        raise PermissionError(errno.EACCES, "the file is read-only")
    beside = target.parent / f".caw-{secrets.token_hex(8)}"
    try:
        # 0o666 less the umask, as any new file
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        with open(handle, "wb", buffering=0) as file:
            for part in parts:
                write_all(file, part)
            if found is not None:
                _keep_owner_and_mode(handle, found)
            os.fsync(handle)
        os.replace(beside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    _sync_folder(target.parent)


def _keep_owner_and_mode(handle: int, found: os.stat_result) -> None:
    if not hasattr(os, "fchmod"):  # Windows
        return
    made = os.fstat(handle)
    if (made.st_uid, made.st_gid) != (found.st_uid, found.st_gid):
        with contextlib.suppress(OSError):  # only root may change the owner
            os.fchown(handle, found.st_uid, found.st_gid)
    os.fchmod(handle, stat.S_IMODE(found.st_mode))


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power failure, if the file system supports that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def naming(path: StrPath) -> Iterator[None]:
    """Make OSErrors of the block name `path`, not a descriptor or temporary file."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def lock(file: Any, busy: str, *, wait: bool = False) -> None:
    """Hold an open file for this process until it is closed or the process ends.

    Raises ValueError(busy) if another one holds it, unless told to wait. Warns where there are no locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        warnings.warn("this system has no file locks; let one process at a time write an output", stacklevel=2)
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise ValueError(busy) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        warnings.warn("this file system has no locks; let one process at a time write an output", stacklevel=2)


def unlock(file: Any) -> None:
    """Release a lock; the file stays open."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Wait for and hold a lock file, for a file that is replaced as a whole and so cannot be locked itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        lock(file, f"{what} is being written by another process; wait for it", wait=True)
        yield


def check_paths(inputs: Mapping[str, StrPath | None], outputs: Mapping[str, StrPath | None]) -> None:
    """Reject, before any work, outputs that cannot be written or that are the same file as an input or each other.

    Names are what the user knows the paths by ("--html"). "-" among the inputs is stdin. The same file is found through
    links, too. Inputs that do not exist are left to those who read them; devices are refused here. Raises OSError or
    ValueError in one sentence.
    """
    read = {name: path for name, path in inputs.items() if path is not None}
    written = {name: path for name, path in outputs.items() if path is not None}
    for name, path in written.items():
        check_output(path, name)
    for name, path in read.items():
        found = _input_status(path)
        if found is not None and not stat.S_ISDIR(found.st_mode):  # a model may be a folder
            _check_kind(found, "stdin" if path == "-" else str(path), name)
    names = list(written)
    for place, name in enumerate(names):
        for other in names[:place]:
            if _same(written[name], written[other], _status(written[other])):
                raise ValueError(f"{name} and {other} must be two files, got {written[name]} for both; name another")
        for other, path in read.items():
            if _same(written[name], path, _input_status(path)) or _is_part(written[name], path):
                raise ValueError(f"{name} must be another file than {other}, got {written[name]}; name a new file")
        if _is_stdout(written[name]):
            raise ValueError(f"{name} must be another file than stdout, got {written[name]} for both; name a new file")
    for other, path in read.items():
        if _is_stdout(path):
            raise ValueError(f"stdout must be another file than {other}, got {path} for both; redirect it elsewhere")


def check_output(path: StrPath, name: str = "output") -> None:
    """Raise OSError or ValueError in one sentence if no file can be written at `path`."""
    with naming(path):
        found = _status(path)
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise ValueError(f"{name} must be a file, {path} is a folder; name a file in it")
    if DESCRIPTOR.fullmatch(os.path.abspath(path)):
        return
    if found is not None and not stat.S_ISREG(found.st_mode):
        return _check_kind(found, str(path), name)
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{name} folder must exist, found none at {folder}; create it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{name} needs a folder that can be written, {folder} cannot; name another")
    return None


def check_input(found: os.stat_result, name: str) -> None:
    """Raise ValueError for a folder and for a device, which may never end."""
    if stat.S_ISDIR(found.st_mode):
        raise ValueError(f"input must be a file, {name} is a folder; name a file in it")
    _check_kind(found, name, "input")


def _check_kind(found: os.stat_result, path: str, name: str) -> None:
    """Accept files, pipes, sockets, terminals and /dev/null; other devices may read or write without end."""
    kind = found.st_mode
    if stat.S_ISREG(kind) or stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or _is_null(found):
        return
    if stat.S_ISCHR(kind) and _is_terminal(found):
        return
    raise ValueError(f"{name} must be a file or a pipe, {path} is a device; name a file")


def _is_null(found: os.stat_result) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(found, os.stat(os.devnull))
    return False


def _is_terminal(found: os.stat_result) -> bool:
    for number in (0, 1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(found, os.fstat(number)) and os.isatty(number):
                return True
    return os.major(found.st_rdev) in (4, 5, *range(136, 144))  # Linux: consoles, /dev/tty, pseudo-terminals


def _status(path: StrPath) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _input_status(path: StrPath) -> os.stat_result | None:
    if path != "-":
        with contextlib.suppress(OSError, ValueError):  # a model's name need not be a path
            return os.stat(path)
        return None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.fstat(sys.stdin.fileno())
    return None


def _same(output: StrPath, other: StrPath, there: os.stat_result | None) -> bool:
    found = _status(output)
    if found is not None and there is not None:
        return stat.S_ISREG(found.st_mode) and os.path.samestat(found, there)
    # neither exists yet; a missing input is reported by whoever reads it
    return found is there is None and os.path.realpath(output) == os.path.realpath(other)


def _is_part(output: StrPath, folder: StrPath) -> bool:
    """Return whether the output is an existing file of a model's folder."""
    target = Path(os.path.realpath(output))
    return bool(
        os.path.isdir(folder)
        and target.parent == Path(os.path.realpath(folder))
        and target.is_file()
        and MODEL_PARTS.fullmatch(target.name)
    )


def _is_stdout(path: StrPath) -> bool:
    if path == "-" or DESCRIPTOR.fullmatch(os.path.abspath(path)):
        return False
    found = _input_status(path)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return found is not None and stat.S_ISREG(found.st_mode) and os.path.samestat(found, os.fstat(1))
    return False


HEAD, SAMPLES, SAMPLE = 8 << 20, 256, 4096  # bytes of a file that are read whole; samples of its rest, and their bytes


def content_mark(file: Path) -> str:
    """Return a text that changes with a file: place, size and time, which another may have had before it (images give
    all files one time), and SHA-256 of its head and of samples to its end."""
    about = file.stat()
    digest = _digest(file, (about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns))
    return f"{file.resolve()} {about.st_size} {about.st_mtime_ns} {digest}"


@functools.lru_cache(64)  # takes 10 ms; no program sets the time of change (ctime) by which it is known here
def _digest(file: Path, about: tuple[int, ...]) -> str:
    digest, rest = hashlib.sha256(), max(about[1] - HEAD - SAMPLE, 0)
    with open(file, "rb") as stream:
        digest.update(stream.read(HEAD))
        for i in range(SAMPLES + 1):
            stream.seek(HEAD + rest * i // SAMPLES)
            digest.update(stream.read(SAMPLE))
    return digest.hexdigest()


def cache_root() -> Path:
    """Return the cache folder: CAW_CACHE, or ~/.cache/caw; OSError for a user without a home, as containers have."""
    if place := os.environ.get("CAW_CACHE"):
        return Path(place)
    try:
        return Path.home() / ".cache" / "caw"
    except RuntimeError:
        raise OSError("the cache needs a home folder, this user has none; set CAW_CACHE to a folder") from None
