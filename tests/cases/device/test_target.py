import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import load_devices, parse_target, parse_targets


@pytest.mark.parametrize(
    ("text", "engine", "backend", "shown"),
    [
        ("sim:h200", "sim", "CUDA0", "sim:h200"),
        ("gpu", "cuda", "CUDA0", "gpu:0"),
        ("gpu:1", "cuda", "CUDA0", "gpu:1"),
        ("sim:mi50", "sim", "ROCm0", "sim:mi50"),
        (" cpu ", "cpu", "CPU", "cpu"),
    ],
)
def test_targets(text, engine, backend, shown):
    target = parse_target(text, load_devices())
    assert (target.engine, target.backend, str(target)) == (engine, backend, shown)


def test_environment_of_a_target():
    devices = load_devices()
    assert parse_target("sim:t4", devices).env == {"FATTN_PROBE_DEVICE": devices["t4"].spec()}
    assert parse_target("gpu:1", devices).env == {"CUDA_VISIBLE_DEVICES": "1"}
    assert parse_target("cpu", devices).env == {}


@pytest.mark.parametrize("text", ["", "sim:", "sim", "gpu:-1", "gpu:x", "cpu:0", "cuda", "gpu:"])
def test_invalid_targets_list_the_allowed_ones(text):
    with pytest.raises(InputError, match="allowed: sim:ID"):
        parse_target(text, load_devices())


@pytest.mark.parametrize("text", ["musa", "MUSA0", "sim:mtt-s80"])
def test_moore_threads_gpus_are_refused(text):
    with pytest.raises(InputError, match=r"MUSA \(Moore Threads\) is not simulated"):
        parse_target(text, load_devices())


def test_list_of_targets_names_every_wrong_word():
    assert [str(target) for target in parse_targets("sim:rtx4070,sim:h200", load_devices())] == [
        "sim:rtx4070",
        "sim:h200",
    ]
    with pytest.raises(InputError) as caught:
        parse_targets("sim:h20,gpu,x", load_devices())
    assert "nearest: h200" in str(caught.value) and "--on 'x'" in str(caught.value)
