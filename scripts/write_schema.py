"""Write docs/sheet.schema.json from the records; run it after a change to records.py."""

from pathlib import Path

from mapper.report.jsonfile import write_atomic
from mapper.report.sheet import schema_bytes

if __name__ == "__main__":
    target = Path(__file__).resolve().parent.parent / "docs" / "sheet.schema.json"
    write_atomic(target, schema_bytes())
    print(target)
