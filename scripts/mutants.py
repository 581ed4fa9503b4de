"""Corrupt kernels of the zoo's mappings, one at a time, and see whether the verification notices.

    scripts/mutants.py                               all of the zoo, explored first with a small budget
    scripts/mutants.py squeezenet --from mapping     the mapping that mapper explore --out mapping/squeezenet wrote
    scripts/mutants.py --markdown                    the table of docs/verification.md

docs/verification.md explains the method. Ends with 0 when every mutant was noticed and enough could be made on every
model, with 1 when not, and with 2 on a bad request.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mapper.cli.params import cache_dir
from mapper.cli.progress import make_progress
from mapper.config import Budget, ExploreRequest, Progress
from mapper.errors import MapperError
from mapper.flows.corrupting import Mutant
from mapper.flows.explore import explore
from mapper.flows.mutating import MutantStudy, find_schedule, study_mutants
from mapper.report.gfm import table
from mapper.validate.mutants import KINDS

ZOO = ("squeezenet", "resnet50", "densenet121", "shufflenet", "ppocr-cls", "ppocr-det", "ppocr-rec", "magika")
TITLES = ("model", "mapping", "mutants", "caught by the model", "caught alone only", "missed", "no-ops", "not made")


def main(arguments: Sequence[str]) -> int:
    """Run the studies."""
    options = _parse(arguments)
    progress = make_progress(options.quiet)
    studies, code = [], 0
    for name in options.models or ZOO:
        try:
            studies.append(_study(name, options, progress))
        except MapperError as error:
            print(f"mutants.py: {name}: {error}", file=sys.stderr)
            code = max(code, error.exit_code)
        finally:
            progress.done()
    for line in markdown(studies) if options.markdown else report(studies, options.count):
        print(line)
    return code or (0 if all(is_strong(study, options.count) for study in studies) else 1)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    assert __doc__ is not None
    first, _, rest = __doc__.partition("\n")
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("mutants.py", description=first, epilog=rest, formatter_class=form)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"names of the zoo [{' '.join(ZOO)}]")
    parser.add_argument("--count", type=int, default=20, help="mutants a model [20]")
    parser.add_argument("--seed", type=int, default=0, help="which mutants [0]")
    parser.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="where schedule.json lies")
    parser.add_argument(
        "--budget", type=int, default=20, metavar="TRIALS", help="of the exploration without --from [20]"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="[what this process may use]")
    parser.add_argument("--markdown", action="store_true", help="print only the table")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser.parse_args(arguments)


def _study(name: str, options: argparse.Namespace, progress: Progress) -> MutantStudy:
    with tempfile.TemporaryDirectory(prefix="mapper-mutants-") as scratch:
        request = ExploreRequest(
            model=f"zoo:{name}",
            out_dir=Path(scratch),
            budget=Budget(trials=options.budget),
            threads=options.threads,
            cache_dir=cache_dir(),
            command="scripts/mutants.py",
        )
        if options.folder is None:
            explore(request, progress)
        schedule = find_schedule(options.folder or Path(scratch), name)
        return study_mutants(request, schedule, options.count, options.seed, progress)


def is_strong(study: MutantStudy, count: int) -> bool:
    """Say whether `count` mutants were tested and none was missed."""
    return len(study.tested) >= count and not study.of("missed")


def report(studies: Sequence[MutantStudy], count: int) -> list[str]:
    """Return the table, who was missed or caught late, the kinds, and what was too few, as Markdown."""
    lines = markdown(studies)
    for study in studies:
        kinds = Counter(mutant.kind for mutant in study.tested)
        shown = ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS if kinds[kind])
        used = len({mutant.kernel for mutant in study.tested})
        lines += ["", f"**{study.model}**: {used} of {study.kernels} kernels, {shown}"]
        lines += [f"- MISSED: {_described(mutant)}" for mutant in study.of("missed")]
        lines += [f"- caught alone only: {_described(mutant)}" for mutant in study.of("alone")]
        blind = [mutant for mutant in study.of("model") if not mutant.by_kernel_check]
        lines += [f"- caught by the model only: {_described(mutant)}" for mutant in blind]
        lines += [f"- not made: {_described(mutant)}: {mutant.reason}" for mutant in study.of("not made")]
        if len(study.tested) < count:
            lines.append(f"- only {len(study.tested)} of {count} mutants could be made")
    return lines


def markdown(studies: Sequence[MutantStudy]) -> list[str]:
    """Return the table of docs/verification.md."""
    return list(table(TITLES, [_cells(study) for study in studies]))


def _cells(study: MutantStudy) -> tuple[str, ...]:
    counts = [len(study.of(outcome)) for outcome in ("model", "alone", "missed", "no-op", "not made")]
    return study.model, study.mapping, str(len(study.tested)), *map(str, counts)


def _described(mutant: Mutant) -> str:
    return f"{mutant.kind} of {mutant.kernel}: {mutant.note}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
