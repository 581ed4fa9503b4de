"""Owns `sheet.json`: writing, reading and the published JSON Schema of a mapping sheet."""

from pathlib import Path
from typing import Any

import msgspec

from mapper.records import SCHEMA_VERSION, MappingSheet
from mapper.report.jsonfile import encode, plain, read_record, write_atomic

SHEET_NAME = "sheet.json"


def write_sheet(sheet: MappingSheet, path: Path) -> None:
    """Write `sheet` to the file `path`, atomically.

    Raises:
        BadInputError: the file cannot be written.
        ValueError: a number that must not be null is not finite.
    """
    write_atomic(path, sheet_bytes(sheet))


def sheet_bytes(sheet: MappingSheet) -> bytes:
    """Return the content of `sheet.json`: keys sorted, a newline at the end, finite numbers only.

    A number that is not finite is written as null where the schema allows null, and a warning of the sheet names it.

    Raises:
        ValueError: such a number stands where the schema does not allow null.
    """
    notes: list[str] = []
    tree = plain(sheet, notes)
    if notes:
        tree["warnings"].extend(notes)
        try:
            msgspec.convert(tree, MappingSheet)
        except msgspec.ValidationError as error:
            raise ValueError(f"a mapping sheet cannot hold this number: {'; '.join(notes)}") from error
    return encode(tree)


def read_sheet(path: Path) -> MappingSheet:
    """Read a sheet from its file, or from the folder that `mapper explore` wrote it to.

    Raises:
        BadInputError: it is missing, not JSON, of another version, or a field is unknown, missing or wrong.
    """
    file = path / SHEET_NAME if path.is_dir() else path
    return read_record(file, MappingSheet, SCHEMA_VERSION, "mapping sheet")


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a sheet, derived from the records."""
    tree = msgspec.json.schema(MappingSheet)
    for definition in tree["$defs"].values():
        if "properties" in definition:
            definition["additionalProperties"] = False
            definition["required"] = sorted(definition["properties"])
    tree["$defs"]["MappingSheet"]["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "mapper mapping sheet", **tree}


def schema_bytes() -> bytes:
    """Return the content of the published schema file."""
    return encode(schema())
