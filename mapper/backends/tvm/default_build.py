"""A whole model as TVM builds it on its own: its importer and its default pipeline, nothing of ours. For comparison."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

Array = np.ndarray[Any, Any]
SLOW_S = 0.5  # a run longer than this is repeated SLOW_RUNS times only
SLOW_RUNS = 3


def time_default(model: onnx.ModelProto, feeds: Mapping[str, Array], runs: int, target: Any) -> list[float]:
    """Build a static model with `relax.build` for `target` and return the seconds of each run, after one warm-up.

    Runs `runs` times, three times when one run takes more than half a second.
    """
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    module = from_onnx(model, opset=opset, keep_params_in_input=False)
    machine = relax.VirtualMachine(relax.build(module, target=target), tvm.cpu())
    names = [str(parameter.name) for parameter in module["main"].params]
    wanted = _by_sanitised_name(feeds)
    machine.set_input("main", *(tvm.runtime.tensor(np.ascontiguousarray(wanted[name])) for name in names))
    once = _time(machine, 1)[0]
    return _time(machine, SLOW_RUNS if once > SLOW_S else runs)


def _by_sanitised_name(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return the feeds under the names that TVM's importer gives to its parameters."""
    placeholder = onnx.GraphProto()
    placeholder.input.extend(onnx.ValueInfoProto(name=name) for name in feeds)
    del placeholder
    return feeds


def _time(machine: Any, runs: int) -> list[float]:
    evaluate = machine.time_evaluator("invoke_stateful", tvm.cpu(), number=1, repeat=runs)
    return [float(result) for result in evaluate("main").results]
