"""Owns the schedule file: the choices of one mapping as data that people edit and `explore --schedules` replays."""

from pathlib import Path

from mapper.errors import BadInputError
from mapper.records import SCHEMA_VERSION, ScheduleFile
from mapper.report.jsonfile import read_record, record_bytes, write_atomic

SCHEDULE_NAME = "schedule.json"


def write_schedule(schedule: ScheduleFile, path: Path) -> None:
    """Write `schedule` to the file `path`, atomically.

    Raises:
        BadInputError: the file cannot be written.
    """
    write_atomic(path, record_bytes(schedule))


def read_schedule(path: Path) -> ScheduleFile:
    """Read a schedule file; whether its tiles are legal is for the templates to say.

    Raises:
        BadInputError: it is missing, not JSON, of another version; a field is unknown, missing or of the wrong
            type; or an operator stands in two groups.
    """
    schedule = read_record(path, ScheduleFile, SCHEMA_VERSION, "schedule file")
    seen: set[int] = set()
    for position, operators in enumerate(schedule.partition):
        for operator in operators:
            if operator in seen:
                raise BadInputError(
                    f"{path}: partition[{position}]: operator {operator} is in two groups: list every operator once"
                )
            seen.add(operator)
    return schedule
