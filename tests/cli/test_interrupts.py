"""Ctrl-C at any moment: exit code 130 and one sentence. Signals are sent at given imports, and at given times."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SENTENCE = "caw: interrupted\n"
# sends SIGINT to itself at the Nth import after `main` was called, wherever that is
AT_IMPORT = """
import os, signal, sys
from caw.cli import main
seen, wanted = 0, {wanted}
def hook(event, arguments):
    global seen
    if event == "import":
        seen += 1
        if seen == wanted:
            os.kill(os.getpid(), signal.SIGINT)
sys.argv = ["caw", *{arguments}]
sys.addaudithook(hook)
main()
"""


def heed_interrupts() -> None:
    """Shells start background jobs with Ctrl-C ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def program(script: str, *, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True, text=True, timeout=timeout, check=False, preexec_fn=heed_interrupts,
    )  # fmt: skip


@pytest.mark.parametrize("wanted", [1, 5, 150])
def test_at_an_import(wanted: int) -> None:
    arguments = ["detect", "--key", "1", "--tokenizer", "smollm2-135m", "/no/such/file"]
    done = program(AT_IMPORT.format(wanted=wanted, arguments=arguments))
    assert (done.returncode, done.stderr, done.stdout) == (130, SENTENCE, "")


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [300])
def test_at_a_late_import(wanted: int) -> None:
    """In the middle of PyTorch's own imports, which turn exceptions into others."""
    done = program(AT_IMPORT.format(wanted=wanted, arguments=["detect", "--key", "1", "/no/such/file"]))
    assert (done.returncode, done.stderr, done.stdout) == (130, SENTENCE, "")


def test_while_a_command_works() -> None:
    done = program("""
        import os, signal, typer
        from caw.cli import main
        from caw.cli.program import app
        from caw.cli.errors import user_errors
        @app.command("busy")
        def busy():
            with user_errors():
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                    for _ in range(10**7): pass
                finally:
                    print("cleaned", flush=True)
        import sys; sys.argv = ["caw", "busy"]
        main()
    """)
    assert (done.returncode, done.stderr, done.stdout) == (130, SENTENCE, "cleaned\n")


def test_an_interrupt_in_a_finaliser_is_not_lost() -> None:
    done = program("""
        import os, signal, time
        from caw.cli import main
        from caw.cli.program import app
        from caw.cli.errors import user_errors
        class Thing:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000): pass
        @app.command("busy")
        def busy():
            with user_errors():
                thing = Thing()
                del thing
                time.sleep(30)
        import sys; sys.argv = ["caw", "busy"]
        main()
    """)
    assert (done.returncode, done.stderr, done.stdout) == (130, SENTENCE, "")


@pytest.mark.parametrize("when", ["atexit", "thread", "reading options"])
def test_outside_of_the_command(when: str) -> None:
    done = program(f"""
        import atexit, os, signal, sys, threading, time
        from caw.cli import main
        def interrupt():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        when = {when!r}
        sys.argv = ["caw", "--version"]
        if when == "atexit":
            from caw.cli.interrupts import leave_on_interrupt
            original = atexit.register
            def late(*arguments):  # registered after the program's own, so it runs before
                original(*arguments)
                original(interrupt)
            atexit.register = late
        if when == "thread":  # the interpreter waits for it
            threading.Thread(target=lambda: (time.sleep(2), interrupt(), time.sleep(20))).start()
        if when == "reading options":
            from caw.cli import program as module
            import typer
            typer.echo = lambda text: interrupt()
        main()
    """)
    assert (done.returncode, done.stderr) == (130, SENTENCE)


def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    """nohup and shells without job control ignore SIGINT for what runs in the background."""
    done = program("""
        import os, signal
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from caw.cli import main
        import sys; sys.argv = ["caw", "--version"]
        import typer
        real = typer.echo
        typer.echo = lambda text: (os.kill(os.getpid(), signal.SIGINT), real(text))
        main()
    """)
    assert done.returncode == 0 and done.stdout.startswith("caw ")
