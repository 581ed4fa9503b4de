"""From searched kernels to whole mappings that are right: wrong kernels and wrong compositions become failures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mapper.flows.planning import Draft
from mapper.flows.prepare import Array
from mapper.flows.run import Run
from mapper.flows.searching import Search
from mapper.flows.verifying import KernelCheck, ModelCheck, fastest_right, strengthen
from mapper.records import Candidate, Choice, Failure, Verification
from mapper.search.space import Space
from mapper.worker.client import ChildFailureError


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The fastest candidate of a space that computes the right thing, and how that was seen."""

    candidate: Candidate
    verification: Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A mapping with every choice made. Only a verified one is timed and ranked."""

    draft: Draft
    choices: tuple[Choice, ...]  # one a group of the plan
    verification: Verification
    memory: Mapping[str, int]  # weights_b, workspace_b

    @property
    def label(self) -> str:
        """Short name, unique among the finalists."""
        return self.draft.label


def keep_right_kernels(run: Run, spaces: Mapping[str, Space], search: Search) -> dict[str, Kept]:
    """Compare the fastest candidate of every space alone with the reference; a wrong one yields to the next."""
    check = _kernel_check(run)
    run.progress.stage("verifying kernels", len(spaces))
    kept: dict[str, Kept] = {}
    for key, space in spaces.items():
        tried = search.tried.get(key, [])
        run.failures += [candidate.failure for candidate in tried if candidate.failure is not None]
        found = fastest_right(tried, space.spec, check, run.failures)
        if found is not None:
            kept[key] = Kept(candidate=found[0], verification=found[1])
        run.progress.step(space.spec.name)
    return kept


def make_finalists(
    run: Run, drafts: Sequence[Draft], kernels: Mapping[str, Kept], reference: Mapping[str, Array]
) -> list[Finalist]:
    """Compose every draft whose kernels all exist, and compare it whole with the original model's outputs."""
    run.progress.stage("verifying mappings", len(drafts))
    check = ModelCheck(prepared=run.prepared, wanted=reference)
    finalists = []
    for draft in drafts:
        missing = [key for key in draft.space_keys if key not in kernels]
        if missing:
            reason = f"{len(missing)} of its kernels did not build or verify, first {missing[0]}"
            run.failures.append(Failure(subject=draft.label, step="lower", reason=reason))
        else:
            finalists += _composed(run, draft, kernels, check)
        run.progress.step(draft.label)
    return finalists


def _composed(run: Run, draft: Draft, kernels: Mapping[str, Kept], check: ModelCheck) -> list[Finalist]:
    choices = tuple(kernels[key].candidate.choice for key in draft.space_keys)
    try:
        memory = run.worker.compose(draft.label, draft.plan, choices, check.ends, run.prepared.feeds_file)
        verification = check.check(draft, run.worker.run_model(draft.label))
    except ChildFailureError as error:
        run.failures.append(Failure(subject=draft.label, step=error.step, reason=error.reason))
        return []
    if not verification.passed:
        reason = next((c.note for c in verification.checks if not c.passed), "outputs differ")
        run.failures.append(Failure(subject=draft.label, step="numerics", reason=reason))
    return [Finalist(draft=draft, choices=choices, verification=verification, memory=memory)]


def put_to_the_test(run: Run, best: Finalist, reference: Mapping[str, Array]) -> Verification:
    """Return the best mapping's verification with its strength: mutants of its kernels that it noticed."""
    check = ModelCheck(prepared=run.prepared, wanted=reference)
    run.progress.stage("verifying the verification")
    try:
        verification, missed = strengthen(best.verification, best.draft, best.choices, check, _kernel_check(run))
    except ChildFailureError as error:
        run.warnings.append(f"the verification was not put to the test: {error.reason}")
        return best.verification
    run.warnings += [f"verification is weak: nobody noticed {one}" for one in missed]
    return verification


def _kernel_check(run: Run) -> KernelCheck:
    return KernelCheck(prepared=run.prepared, reference=run.reference, worker=run.worker, seed=run.request.seed)
