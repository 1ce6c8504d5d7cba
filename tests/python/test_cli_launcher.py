# SPDX-License-Identifier: Apache-2.0
"""The launcher ./colibri, with a Python, an apt-get and an id that only write down what they were asked for.

What it really installs is seen wherever the suite runs through it.
"""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

PYTHON = """#!/bin/sh
# Stands in for Python: creates what `venv` and `pip install` would.
case "$1 $2" in
"-c "*) exit 0 ;;
"-m venv") echo "venv" >>"$LOG"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
"-m pip")
    echo "pip $*" >>"$LOG"
    printf '#!/bin/sh\\nprintf "[%%s]" "$@"\\n' >"${0%/*}/colibri-sdk"
    chmod +x "${0%/*}/colibri-sdk" ;;
esac
"""
APT = """#!/bin/sh
echo "apt-get $*" >>"$LOG"
[ "$1" != install ] || printf '#!/bin/sh\\n' >"$PACKAGES_BIN/second-tool" && chmod +x "$PACKAGES_BIN/second-tool"
echo "chatter of apt"
"""
PACKAGES = """# comment
first-package  | missing-a,sh            | is there: its alternative is
second-package | second-tool             | is not there
third-package  | /usr/bin/en[v]          | is there, as a file pattern
"""


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class Checkout:
    """A checkout in a directory with spaces in its name, and a PATH of stand-ins before the real one."""

    def __init__(self, tmp_path: Path, root: Path, uid: int) -> None:
        self.directory = tmp_path / "a path with  spaces"
        (self.directory / "python_sdk").mkdir(parents=True)
        shutil.copy(root / "colibri", self.directory / "colibri")
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(root / "python_sdk" / name, self.directory / "python_sdk" / name)
        (self.directory / "python_sdk" / "system-packages.txt").write_text(PACKAGES)
        self.bin = tmp_path / "bin"
        executable(self.bin / "python3", PYTHON)
        executable(self.bin / "apt-get", APT)
        executable(self.bin / "id", f"#!/bin/sh\necho {uid}\n")
        self.log = tmp_path / "log"
        self.log.touch()
        self.environment = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "LOG": str(self.log),
            "PACKAGES_BIN": str(self.bin),
            "HOME": str(tmp_path),
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.directory / "colibri"), *arguments],
            env=self.environment,
            cwd="/",
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str) -> tuple[str, str]:
        """stdout and stderr of a run that has to end well."""
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return out, err

    def done(self) -> list[str]:
        """First words of what the stand-ins were asked for, since the last call."""
        lines = [line.split()[0] for line in self.log.read_text().splitlines()]
        self.log.write_text("")
        return lines


@pytest.fixture
def user(tmp_path: Path, repo_root: Path) -> Checkout:
    return Checkout(tmp_path, repo_root, uid=1000)


@pytest.fixture
def superuser(tmp_path: Path, repo_root: Path) -> Checkout:
    return Checkout(tmp_path, repo_root, uid=0)


def test_arguments_arrive_as_they_are_and_stdout_has_nothing_else(user: Checkout) -> None:
    out, err = user.run("run", "two words", "", "--json", "*")
    assert out == "[run][two words][][--json][*]"
    assert "setting up" in err


def test_sets_up_once_and_again_when_the_pins_change(user: Checkout) -> None:
    user.run("boards")
    assert user.done() == ["venv", "pip"]
    _, err = user.run("boards")
    assert user.done() == []
    assert err == ""
    with (user.directory / "python_sdk" / "pyproject.toml").open("a") as file:
        file.write("# another version\n")
    user.run("boards")
    assert user.done() == ["venv", "pip"]


def test_interrupted_set_up_is_done_again(user: Checkout) -> None:
    user.run("boards")
    (user.directory / ".venv" / "stamp").unlink()
    user.done()
    user.run("boards")
    assert user.done() == ["venv", "pip"]


def test_checkout_that_moved_is_set_up_anew(user: Checkout) -> None:
    user.run("boards")
    user.done()
    moved = user.directory.rename(user.directory.with_name("elsewhere"))
    user.directory = moved
    user.run("boards")
    assert user.done() == ["venv", "pip"]


def test_two_at_once_set_up_once(user: Checkout) -> None:
    both = [user.start("one"), user.start("two")]
    answers = [process.communicate(timeout=60)[0] for process in both]
    assert answers == ["[one]", "[two]"]
    assert user.done() == ["venv", "pip"]


def test_user_gets_the_one_line_to_run_once(user: Checkout) -> None:
    _, err = user.run("boards")
    assert "apt-get install --no-install-recommends second-package \n" in err
    assert "apt-get" not in user.log.read_text()
    assert user.run("boards")[1] == ""


def test_root_gets_what_is_missing_installed(superuser: Checkout) -> None:
    out, err = superuser.run("boards")
    assert out == "[boards]"
    assert "chatter of apt" in err
    log = superuser.log.read_text()
    assert "apt-get install -y -qq --no-install-recommends second-package\n" in log
    superuser.done()
    superuser.run("boards")
    assert superuser.done() == []


def test_root_can_forbid_it(superuser: Checkout) -> None:
    superuser.environment["COLIBRI_APT"] = "0"
    _, err = superuser.run("boards")
    assert "apt-get install" in err
    assert "apt-get" not in superuser.done()


def test_exit_code_is_that_of_the_command(user: Checkout) -> None:
    user.run("boards")
    executable(user.directory / ".venv" / "bin" / "colibri-sdk", "#!/bin/sh\nexit 7\n")
    with user.start("boards") as process:
        process.communicate(timeout=60)
    assert process.returncode == 7


def test_linked_from_elsewhere_it_finds_its_checkout(user: Checkout, tmp_path: Path) -> None:
    link = tmp_path / "colibri-link"
    link.symlink_to(user.directory / "colibri")
    done = subprocess.run(
        [link, "boards"], env=user.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "[boards]", done.stderr
