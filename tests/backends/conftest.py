"""One worker for all tests of kernels: it compiles for this machine, whatever that is."""

import dataclasses

import numpy as np
import onnx
import pytest
from small_groups import AVX2

from mapper import templates
from mapper.measure import device
from mapper.measure.target import tvm_target
from mapper.search.space import make_space
from mapper.validate.numerics import verify
from mapper.worker.client import ChildFailureError
from mapper.worker.workers import TvmWorker


class Kernels:
    """Builds and runs choices of small groups."""

    def __init__(self, folder):
        self.folder = folder
        self.worker = TvmWorker(folder, threads=2, target=tvm_target(device.describe_cpu(), 2))

    def define(self, case):
        path = self.folder / f"{case.spec.key}.onnx"
        if not path.exists():
            onnx.save_model(case.local_model, path)
        self.worker.define(case.spec, path)

    def wrong(self, case, choices, values=None, wanted=None):
        """Return, for each choice whose kernel does not compute what the reference does, its tile and why not."""
        self.define(case)
        values = values or case.values()
        wanted = wanted or case.expected(values)
        found = []
        for choice in choices:
            try:
                got = self.worker.run_kernel(case.spec.key, choice, values)
            except ChildFailureError as error:
                found.append(f"{choice.template} {dict(choice.tile)} {choice.layouts}: {error.step}: {error.reason}")
                continue
            checks = verify("kernel", got, wanted, "reference", scope="kernel").checks
            notes = [f"{check.tensor}: {check.note}" for check in checks if not check.passed]
            found += [f"{choice.template} {dict(choice.tile)} {choice.layouts}: {note}" for note in notes]
            self.worker.forget(case.spec.key, [choice])
        return found

    def close(self):
        self.worker.close()


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    """Give the kernels' one worker."""
    made = Kernels(tmp_path_factory.mktemp("kernels"))
    yield made
    made.close()


@pytest.fixture
def few():
    """Give a function that picks choices of a case: the best prediction of every kind, then seeded others."""

    def pick(case, count=4, machine=AVX2, policy="nhwc", output=None):
        layouts = case.layouts(policy, output)
        template = templates.template_for(case.spec)
        choices = template.choices(case.spec, machine, layouts)
        if not choices:
            template = templates.by_name("generic")
            choices = template.choices(case.spec, machine, layouts)
        ranked = make_space(case.spec, layouts, choices, lambda c: template.cost(case.spec, c, machine), 1).ranked
        kinds = {}
        for choice, _ in ranked:
            kinds.setdefault((choice.tile.get("stage"), choice.tile.get("grain")), choice)
        picked = list(kinds.values())
        rest = [choice for choice, _ in ranked if choice not in picked]
        order = np.random.default_rng(len(rest)).permutation(len(rest))
        return [*picked, *(rest[index] for index in order)][:count]

    return pick


@pytest.fixture
def retiled():
    """Give a function that changes fields of a choice's tile."""
    return lambda choice, **fields: dataclasses.replace(choice, tile={**choice.tile, **fields})
