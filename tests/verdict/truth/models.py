"""The models of a run, by its launches."""

from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.llama.launch.kernel import attention_of
from fattn_probe.verdict.truth.error_model import kernel as error_kernel
from fattn_probe.verdict.truth.error_model import predict
from fattn_probe.verdict.truth.reference.adapter import operand_values, reference_of
from fattn_probe.verdict.truth.rounding_model import dispatch
from tests.made import case_of, launch_of


def of_scenario(text, kernel, grid, arch):
    """The rounding model's output, the exact answer and the prediction of a scenario."""
    case, launches = case_of(text), [launch_of(kernel, grid)]
    inputs = make_inputs(case)
    prediction = predicted(case.op, operand_values(case.op, inputs), launches, arch)
    return model_of(case, inputs, launches, arch), reference_of(case.op, inputs), prediction


def kernel_of(op, launches, arch, constants=None):
    return error_kernel.kernel_of(op, geometry_of(op, launches, arch, constants), arch)


def predicted(op, values, launches, arch, **limits):
    return predict.predict(op, values, kernel_of(op, launches, arch), **limits)


def model_of(case, inputs, launches, arch, **more):
    kernel = attention_of(launches, arch, default_constants())
    return kernel and dispatch.model_of(case, inputs, kernel, arch, constants=default_constants(), **more)
