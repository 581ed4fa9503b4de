"""The journal of measured candidates: what an interrupted search leaves behind and a resumed one goes on from."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from mapper.records import SCHEMA_VERSION, Candidate, Prediction


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: str
    group_key: str
    choice_key: str
    machine_id: str
    compiler: str
    candidate: Candidate
    prediction: Prediction | None = None  # what the cost model expected, part by part


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
    _found: dict[str, dict[str, _Entry]] = field(default_factory=dict)  # by group key, then choice key
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
            self._found.setdefault(entry.group_key, {})[entry.choice_key] = entry

    def __len__(self) -> int:
        """Return how many outcomes can be found."""
        return sum(len(outcomes) for outcomes in self._found.values())

    def find(self, group_key: str, choice_key: str) -> Candidate | None:
        """Return the latest outcome of a choice, marked as journalled; None when there is none."""
        entry = self._found.get(group_key, {}).get(choice_key)
        return None if entry is None else replace(entry.candidate, source="journal")

    def of_group(self, group_key: str) -> tuple[Candidate, ...]:
        """Return every outcome of a group, in the order in which they were first written."""
        found = self._found.get(group_key, {}).values()
        return tuple(replace(entry.candidate, source="journal") for entry in found)

    def predicted(self) -> Iterator[tuple[str, Prediction, float]]:
        """Return (template, what was predicted, seconds measured) of every outcome that has both."""
        for outcomes in self._found.values():
            for entry in outcomes.values():
                if entry.prediction is not None and entry.candidate.time_s is not None:
                    yield entry.candidate.choice.template, entry.prediction, entry.candidate.time_s

    def append(self, candidate: Candidate, group_key: str, prediction: Prediction | None = None) -> None:
        """Write one outcome, with what was predicted for it, and wait until it is on the disk.

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
            prediction=prediction,
        )
        line = msgspec.json.encode(entry, order="sorted") + b"\n"
        while line:  # one write in practice; a full disk raises
            line = line[os.write(self._file, line) :]
        os.fsync(self._file)
        self._found.setdefault(group_key, {})[candidate.choice_key] = entry

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
