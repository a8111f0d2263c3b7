"""Result files as git has them in a revision: read out of the repository, nothing checked out.

git is called without a shell, with plumbing commands that run no hook, filter or pager. A revision
is turned into the hash of its commit first; from there on nothing that a user wrote is an argument
that git could take for an option.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headscope.core.errors import InputError
from headscope.core.safe_text import visible

#: No question on the terminal, no lock, no network (a partial clone would fetch), plain English.
_QUIET = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C",
}
#: What git stores in place of a file that Git LFS keeps elsewhere.
_LFS = b"version https://git-lfs.github.com/spec/"
_HASH = re.compile(r"[0-9a-f]{40,64}")


@dataclass(frozen=True)
class InRevision:
    """A file or folder of a repository as it was in a commit; it is read as a path is."""

    shown: str  # What messages call it: ``REVISION:PATH`` as the user wrote them.
    commit: str  # The hash of the commit.
    inside: str  # The path from the top of the repository, with slashes.
    here: Path  # A folder in the repository, which git is called in.

    def __str__(self) -> str:
        """As messages call it."""
        return self.shown

    def __truediv__(self, name: str) -> InRevision:
        """Return what lies in this folder under a name."""
        shown = f"{self.shown.rstrip('/')}/{name}"
        return InRevision(shown, self.commit, f"{self.inside}/{name}".lstrip("/"), self.here)

    def exists(self) -> bool:
        """Whether the commit has it."""
        return self._kind() != ""

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self._kind() == "tree"

    def read_text(self, encoding: str) -> str:
        """Return the content of a file."""
        if self._kind() != "blob":
            raise InputError(f"{visible(self)} is no file in that revision.")
        data = _git(self.here, "cat-file", "blob", f"{self.commit}:{self.inside}").stdout
        if data.startswith(_LFS):
            raise InputError(
                f"{visible(self)} is kept by Git LFS, so git itself has only a pointer to it; "
                "check the two revisions out and compare the files."
            )
        return data.decode(encoding)

    def _kind(self) -> str:
        """Return git's word for what it is (blob, tree, commit); empty if it is not there."""
        done = _git(self.here, "cat-file", "-t", f"{self.commit}:{self.inside}")
        return "" if done.returncode else done.stdout.decode("ascii").strip()


def in_revision(revision: str, path: Path) -> InRevision:
    """Find a file or folder in a revision of the repository that it lies in."""
    whole = Path(os.path.abspath(path))  # not resolved: a link in a repository is no other place
    here = next(folder for folder in (whole, *whole.parents) if folder.is_dir())
    # Where that folder lies in its repository: empty, or a path that ends in a slash.
    prefix = _git(here, "rev-parse", "--show-prefix")
    if prefix.returncode:
        error = os.fsdecode(prefix.stderr).strip()
        if "not a git repository" in error:
            raise InputError(f"{visible(path)} lies in no git repository.")
        raise InputError(f"git refuses to read the repository of {visible(path)}: {visible(error)}")
    inside = os.fsdecode(prefix.stdout.removesuffix(b"\n")) + whole.relative_to(here).as_posix()
    inside = "/".join(part for part in inside.split("/") if part not in ("", "."))
    # Names of revisions never begin with a hyphen; options do.
    plain = revision and not revision.startswith("-") and revision.isprintable()
    query = ("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    commit = _git(here, *query).stdout.decode("ascii", "replace").strip() if plain else ""
    if not _HASH.fullmatch(commit):
        raise InputError(
            f"git knows no revision {visible(repr(revision))}; give a branch, tag or commit that "
            "the repository has (a shallow clone, as CI makes it, lacks most)."
        )
    file = InRevision(f"{revision}:{path}", commit, inside, here)
    if not file.exists():
        raise InputError(f"There is no {visible(path)} in revision {visible(revision)}.")
    return file


def _git(here: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("git")
    if program is None:
        raise InputError("git is not installed, or not on the PATH; it is what knows revisions.")
    return subprocess.run(
        [program, *arguments],
        cwd=here,
        env={**os.environ, **_QUIET},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
