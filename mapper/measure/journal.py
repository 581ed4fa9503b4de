"""The journal of measured candidates: what an interrupted search leaves behind and a resumed one goes on from."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from mapper.records import SCHEMA_VERSION, Candidate


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: str
    group_key: str
    choice_key: str
    machine_id: str
    compiler: str
    candidate: Candidate


@dataclass(slots=True, kw_only=True)
class Journal:
    """An append-only file of candidate outcomes, one JSON line each, on disk before `append` returns.

    An outcome is known by group key, choice key, machine id and compiler. Lines of another machine or compiler stay
    in the file, are never returned, and are counted in `ignored_machine` and `ignored_compiler`; `damaged` counts
    lines that cannot be read. A last line torn by a crash loses that one outcome and nothing else.
    """

    path: Path
    machine_id: str
    compiler: str
    ignored_machine: int = 0
    ignored_compiler: int = 0
    damaged: int = 0
    _found: dict[tuple[str, str], Candidate] = field(default_factory=dict)
    _file: int = -1

    @classmethod
    def open(cls, path: Path, machine_id: str, compiler: str) -> Self:
        """Read the journal at `path` and open it for appending, created with its folder when missing.

        Args:
            path: The file.
            machine_id: Whose outcomes count.
            compiler: Compiler, code generator and flags that made them, as one text.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        journal = cls(path=path, machine_id=machine_id, compiler=compiler)
        content = path.read_bytes() if path.exists() else b""
        for line in content.splitlines():
            journal._take(line)
        journal._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if content and not content.endswith(b"\n"):
            os.write(journal._file, b"\n")  # keeps the torn line apart from what follows
        return journal

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            entry = msgspec.json.decode(line, type=_Entry)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.damaged += 1
            return
        if entry.schema_version != SCHEMA_VERSION:
            self.damaged += 1
        elif entry.machine_id != self.machine_id:
            self.ignored_machine += 1
        elif entry.compiler != self.compiler:
            self.ignored_compiler += 1
        else:
            self._found[entry.group_key, entry.choice_key] = entry.candidate

    def __len__(self) -> int:
        """Return how many outcomes can be found."""
        return len(self._found)

    def find(self, group_key: str, choice_key: str) -> Candidate | None:
        """Return the latest outcome of a choice, marked as journalled; None when there is none."""
        candidate = self._found.get((group_key, choice_key))
        return None if candidate is None else replace(candidate, source="journal")

    def of_group(self, group_key: str) -> tuple[Candidate, ...]:
        """Return every outcome of a group, in the order in which they were first written."""
        found = (candidate for (group, _), candidate in self._found.items() if group == group_key)
        return tuple(replace(candidate, source="journal") for candidate in found)

    def append(self, candidate: Candidate, group_key: str) -> None:
        """Write one outcome and wait until it is on the disk.

        Raises:
            ValueError: The journal is closed.
        """
        if self._file < 0:
            raise ValueError(f"{self.path}: the journal is closed")
        entry = _Entry(
            schema_version=SCHEMA_VERSION,
            group_key=group_key,
            choice_key=candidate.choice_key,
            machine_id=self.machine_id,
            compiler=self.compiler,
            candidate=candidate,
        )
        line = msgspec.json.encode(entry, order="sorted") + b"\n"
        while line:  # one write in practice; a full disk raises
            line = line[os.write(self._file, line) :]
        os.fsync(self._file)
        self._found[group_key, candidate.choice_key] = candidate

    def close(self) -> None:
        """Close the file; outcomes already read can still be found."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        """Return the open journal."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the journal, also after an error."""
        self.close()
