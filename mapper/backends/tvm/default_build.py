"""A whole model as TVM builds it on its own: its importer and its default pipeline, nothing of ours. For comparison."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

Array = np.ndarray[Any, Any]
SLOW_S = 0.5  # a run longer than this is repeated SLOW_RUNS times only
SLOW_RUNS = 3


def time_default(model: onnx.ModelProto, feeds: Sequence[Array], runs: int, target: Any) -> list[float]:
    """Build a static model with `relax.build` for `target` and return the seconds of each run, after a first one.

    `feeds` follow the model's inputs. Runs `runs` times, three times when the first run takes over half a second.
    """
    module = from_onnx(model, keep_params_in_input=False)
    machine = relax.VirtualMachine(relax.build(module, target=target), tvm.cpu())
    machine.set_input("main", *(tvm.runtime.tensor(np.asarray(value, order="C")) for value in feeds))
    once_s = _time(machine, 1)[0]
    return _time(machine, SLOW_RUNS if once_s > SLOW_S else runs)


def _time(machine: Any, runs: int) -> list[float]:
    evaluate = machine.time_evaluator("invoke_stateful", tvm.cpu(), number=1, repeat=runs)
    return [float(result) for result in evaluate("main").results]
