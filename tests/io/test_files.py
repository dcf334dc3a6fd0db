"""Files that are replaced whole or stay as they were; outputs that are no input; locks."""

import builtins
import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from caw.io import files
from caw.io.files import cache_root, check_paths, content_mark, lock, write_text, write_whole

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX files")


class Full:
    """A file that takes three bytes, then nothing more."""

    def __init__(self, handle: int, *arguments: Any, **options: Any) -> None:
        self.file, self.left = builtins.open(handle, "wb", buffering=0), 3  # noqa: SIM115

    def write(self, data: Any) -> int:
        if not self.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken, self.left = self.left, 0
        return self.file.write(bytes(data)[:taken])

    def __enter__(self) -> "Full":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()


def test_a_file_is_replaced_whole_or_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    write_text(path, "old ü")
    assert path.read_bytes() == "old ü".encode()
    monkeypatch.setattr(files, "open", Full, raising=False)
    with pytest.raises(OSError, match=r"page\.html") as caught:
        write_text(path, "new and longer")
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half a pair \ud800")
    assert path.read_bytes() == "old ü".encode() and os.listdir(tmp_path) == ["page.html"]
    write_whole(path, b"")
    assert path.read_bytes() == b""


@posix
def test_mode_and_links_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "a.json", tmp_path / "link.json"
    before = os.umask(0o027)
    try:
        write_whole(target, b"1")
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    target.chmod(0o604)
    link.symlink_to(target.name)
    write_whole(link, b"2")
    assert link.is_symlink() and target.read_bytes() == b"2" and stat.S_IMODE(target.stat().st_mode) == 0o604
    (tmp_path / "nowhere.json").symlink_to("made.json")
    write_whole(tmp_path / "nowhere.json", b"3")
    assert (tmp_path / "made.json").read_bytes() == b"3" and (tmp_path / "nowhere.json").is_symlink()


@posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"1")
    path.chmod(0o444)
    with pytest.raises(PermissionError):
        write_whole(path, b"2")
    assert path.read_bytes() == b"1"


@posix
def test_pipes_and_descriptors_get_the_content(tmp_path: Path) -> None:
    fifo, found = tmp_path / "fifo", list[bytes]()
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: found.append(fifo.read_bytes()))
    reader.start()
    write_whole(fifo, b"x" * 100_000)
    reader.join(timeout=60)
    assert found == [b"x" * 100_000] and stat.S_ISFIFO(fifo.stat().st_mode)
    with open(tmp_path / "redirected", "w+b", buffering=0) as file:
        file.write(b"before ")
        write_whole(f"/dev/fd/{file.fileno()}", b"after")
    assert (tmp_path / "redirected").read_bytes() == b"before after"
    write_whole(os.devnull, b"gone")


def test_an_output_is_no_input(tmp_path: Path) -> None:
    source = tmp_path / "e.jsonl"
    source.write_text("{}\n")
    (tmp_path / "symbolic.html").symlink_to(source)
    (tmp_path / "hard.html").hardlink_to(source)
    for same in ("e.jsonl", "./e.jsonl", "symbolic.html", "hard.html"):
        with pytest.raises(ValueError, match="--html must be another file than --input"):
            check_paths({"--input": str(source)}, {"--html": tmp_path / same})
    check_paths({"--input": str(source), "--model": "a name"}, {"--html": tmp_path / "new.html", "--qq": None})
    with pytest.raises(ValueError, match="--plot and --json must be two files"):
        check_paths({}, {"--json": tmp_path / "new", "--plot": tmp_path / "." / "new"})
    (tmp_path / "to-new").symlink_to("new")
    with pytest.raises(ValueError, match="two files"):
        check_paths({}, {"--json": tmp_path / "new", "--plot": tmp_path / "to-new"})
    check_paths({}, {"--json": os.devnull, "--plot": os.devnull})


def test_an_output_is_no_part_of_a_model(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "notes.json"):
        (tmp_path / name).write_text("{}")
    for name in ("config.json", "model.safetensors"):
        with pytest.raises(ValueError, match="--json must be another file than --model"):
            check_paths({"--model": str(tmp_path)}, {"--json": tmp_path / name})
    check_paths({"--model": str(tmp_path)}, {"--json": tmp_path / "notes.json"})
    check_paths({"--model": str(tmp_path)}, {"--json": tmp_path / "generation_config.json"})  # is none yet


@posix
def test_stdin_and_stdout_are_files_too(tmp_path: Path) -> None:
    code = (
        "import sys, types\n"
        "sys.modules['caw'] = types.ModuleType('caw'); sys.modules['caw'].__path__ = [sys.argv[1]]\n"
        "from caw.io.files import check_paths\n"
        "check_paths({'--input': sys.argv[2]}, {'--html': sys.argv[3]})\n"
    )
    package, path = str(Path(files.__file__).parents[1]), tmp_path / "e.jsonl"

    def refused(source: str, output: str) -> str:
        with open(path, "a+") as file:
            command = [sys.executable, "-c", code, package, source, output]
            return subprocess.run(command, stdin=file, stdout=file, stderr=subprocess.PIPE, text=True).stderr

    assert "--html must be another file than --input" in refused("-", str(path))
    assert "--html must be another file than stdout" in refused("other", str(path))
    assert "stdout must be another file than --input" in refused(str(path), str(tmp_path / "page.html"))
    assert refused("other", "/dev/stdout") == ""


@posix
def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    for path, reason in [
        (tmp_path, "is a folder"),
        (tmp_path / "none" / "x", "folder must exist"),
        ("/dev/full", "is a device"),
        ("/dev/zero", "is a device"),
    ]:
        with pytest.raises((ValueError, OSError), match=reason) as caught:
            check_paths({}, {"--html": path})
        assert "--html" in str(caught.value) and "\n" not in str(caught.value)
    if os.geteuid():
        tmp_path.chmod(0o555)
        with pytest.raises(PermissionError, match="can be written"):
            check_paths({}, {"--html": tmp_path / "x"})


@posix
def test_without_locks_there_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def none(file: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with open(tmp_path / "x", "ab") as file, pytest.warns(UserWarning, match="one process at a time"):
        lock(file, "busy")


@posix
def test_the_lock_of_a_killed_process_blocks_nobody_though_its_child_lives(tmp_path: Path) -> None:
    """A forked child inherits the open file, and with it the lock."""
    path = tmp_path / "out.jsonl"
    code = (
        "import os, sys, time, types\n"
        "sys.modules['caw'] = types.ModuleType('caw'); sys.modules['caw'].__path__ = [sys.argv[1]]\n"
        "from caw.io.jsonl import JsonlWriter\n"
        "w = JsonlWriter(sys.argv[2])\n"
        "w.write({'id': 1})\n"
        "child = os.fork()\n"
        "if not child: print(os.getpid(), flush=True)\n"  # the child says so: by then it has let go of the file
        "time.sleep(600)\n"
    )
    package = Path(files.__file__).parents[1]
    parent = subprocess.Popen([sys.executable, "-c", code, str(package), str(path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        from caw.io.jsonl import JsonlWriter

        with pytest.raises(ValueError, match="is being written by another process"):
            JsonlWriter(path, resume=True)
        parent.kill()
        parent.wait()
        with JsonlWriter(path, resume=True) as writer:
            assert writer.existing == [{"id": 1}]
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


@pytest.mark.parametrize("place", [0, 1 << 20, files.HEAD + 5, -1])
def test_another_content_of_the_same_size_and_time_is_another_file(place: int, tmp_path: Path) -> None:
    file, content = tmp_path / "file", bytearray(files.HEAD + 3 * files.SAMPLE)
    marks = []
    for byte in (0, 1, 0):
        content[place] = byte
        file.write_bytes(content)
        os.utime(file, (1, 1))
        marks.append(content_mark(file))
    assert marks[0] == marks[2] != marks[1]


def test_without_a_home_the_cache_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(uid: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("pwd.getpwuid", none)
    for name in ("HOME", "CAW_CACHE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OSError, match="set CAW_CACHE to a folder"):
        cache_root()
    monkeypatch.setenv("CAW_CACHE", "/some/place")
    assert cache_root() == Path("/some/place")
