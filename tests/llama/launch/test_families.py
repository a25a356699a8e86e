"""Every reader of a launch takes its sizes from the source: error model, rounding model and geometry agree."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from fattn_probe.cases.scenario import expand
from fattn_probe.cases.scenario.schema import Scenario
from fattn_probe.llama.launch.architecture import AMD, CDNA1, CDNA2, CDNA3, GFX906, RDNA2, RDNA3, RDNA4, is_cdna
from fattn_probe.llama.launch.constants import constants_of, default_constants, max_offset, vec_adds_in_f16
from fattn_probe.llama.launch.families import FAMILIES, MMA_F16, TILE, VEC, renamed_kernel
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.llama.launch.kernel import attention_of
from fattn_probe.llama.launch.record import LaunchRecord, parse_launches
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.llama.source.features import CUDA, kernel_parameters, probe
from fattn_probe.llama.source.tree import Tree
from fattn_probe.verdict.truth.rounding_model.mma_plan import mma_plan_of
from fattn_probe.verdict.truth.rounding_model.tile import tile_plan_of
from fattn_probe.verdict.truth.rounding_model.vec import vec_plan_of
from tests.verdict.truth.models import kernel_of

CONFIGURATION = re.compile(r"(?m)^.*get_config_(?:nvidia_)?(\w+)\(|GGML_CUDA_FATTN_\w+_CONFIG_CASE\(([\d ,]+),")
ARCHITECTURES = {"ampere": (80, 89, 90, 100, 120), "turing": (75,), "volta": (70,), "fp16": (60, 70, 90), "fp32": (61,)}
ARCHITECTURES |= {"rdna": (RDNA3, RDNA4), "cdna": (CDNA1, CDNA2, CDNA3), "amd": (GFX906, CDNA3)}
ARCHITECTURES |= {"amd_rdna": (RDNA2, RDNA3, RDNA4)}
FEWEST = {"volta": 32, "rdna": 16, "cdna": 16}
"""Columns that a warp works on: with fewer, the mma kernel has no code."""
SHAPE = {"grid": (1, 1, 1), "block": (32, 4, 1), "shared": 0}
PLANS: dict = {MMA_F16: mma_plan_of, TILE: tile_plan_of}


def launch(family, values, threads, wave=32):
    named = tuple(zip(family.parameters, map(str, values), strict=False))
    return LaunchRecord(0, family.kernel, named, (8, 3, 8), (wave, threads // wave, 1), 0)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_kernel_with_the_parameters_of_a_family_that_the_source_lacks_is_its_kernel_renamed(family):
    """Beside the family's own kernel, it is another one: a model of the family would find it wrong."""
    others, arguments = {"mine": (), "flash_attn_mask_to_KV_max": ()}, launch(family, (64,) * 7, 128).template_args
    assert renamed_kernel("mine", arguments, others) == family.kernel
    assert renamed_kernel("mine", arguments, others | {family.kernel: ()}) == ""
    assert renamed_kernel("mine", (*arguments, ("more", "1")), others) == renamed_kernel("mine", (), others) == ""
    assert renamed_kernel("mine", arguments, None) == renamed_kernel(family.kernel, arguments, others) == ""
    values = "; ".join(f"int {name} = 64" for name, _ in arguments)
    line = json.dumps({"order": 0, "kernel": f"void mine(int) [with {values}]"} | SHAPE)
    ((renamed,), (other,)) = (parse_launches(line, names=some) for some in (others, others | {family.kernel: ()}))
    assert (renamed.kernel, renamed.family, other.family) == ("mine", family, None)
    (again,) = parse_launches(json.dumps(renamed.document()))
    assert again.family is family and "renamed" not in other.document()


def op_of(hsk=128, hsv=128, **more):
    fields = {"version": 1, "about": "x", "hsk": hsk, "hsv": hsv, "n_head": 8, "n_head_kv": 2, "n_q": 16, "n_kv": 1000}
    return expand(Scenario.model_validate(fields | more).named("test"))[0].op


def tile(ncols, threads, constants=None, arch=90):
    return kernel_of(op_of(112, 112), [launch(TILE, (112, 112, ncols, 1, "false"), threads)], arch, constants)


def test_heads_of_112_have_the_steps_of_the_source():
    assert [tile(16, 256).split.rows, tile(32, 256).split.rows] == [32, 128]


def check(family, sizes, *, threads, rows, arch, constants):
    """All three say `rows` KV rows a step, and the same number of warps a column."""
    DKQ, DV, ncols = sizes
    wave = 64 if family is MMA_F16 and arch >= AMD and is_cdna(arch) else 32
    one = launch(family, (DKQ, DV, ncols, 1, "false", "false", "false"), threads, wave)
    op = op_of(DKQ, DV)
    error, cut = kernel_of(op, [one], arch, constants), geometry_of(op, [one], arch, constants)
    kernel = PLANS[family](attention_of([one], arch, constants), arch, constants).kernel
    assert (error.split.rows, cut.rows, kernel.nbatch_fa) == (rows, rows, rows), (family.name, sizes, arch)
    assert error.split.warps == kernel.warps_per_column, (family.name, sizes, arch)
    assert cut.grid.iter_k == -(-op.sizes.n_kv // rows)


def configurations(family, root):
    """(function, DKQ, DV, ncols, nthreads, nbatch_fa) as the source's own configuration functions have them."""
    function = ""
    for name, numbers in CONFIGURATION.findall((root / CUDA / family.file).read_text()):
        function = name or function
        if numbers:
            DKQ, DV, ncols, threads, _, rows = (int(word) for word in numbers.split(",")[:6])
            yield function, DKQ, DV, ncols, threads, rows


@pytest.mark.network
@pytest.mark.parametrize("family", [MMA_F16, TILE], ids=lambda family: family.name)
def test_every_configuration_of_the_source_is_read_alike(family, tree):
    constants = constants_of(tree)
    found = [one for one in configurations(family, tree.root) if one[0] in ARCHITECTURES]
    assert len(found) > 40
    for function, DKQ, DV, ncols, threads, rows in found:
        for arch in ARCHITECTURES[function]:
            if family is TILE or ncols >= FEWEST.get(function, 0):
                check(family, (DKQ, DV, ncols), threads=threads, rows=rows, arch=arch, constants=constants)
                check(family, (DKQ, DV, ncols), threads=threads, rows=rows, arch=arch, constants=default_constants())


@pytest.mark.parametrize("arch", [61, 70, 75, 89, 90, GFX906, CDNA3, RDNA3])
@pytest.mark.parametrize(("D", "types"), [(64, "F16"), (128, "F16"), (256, "Q8_0"), (128, "Q4_1")])
def test_vec_kernels_are_read_alike(arch, D, types):
    one = launch(VEC, (D, 2, f"GGML_TYPE_{types}", f"GGML_TYPE_{types}", "false"), 128)
    op = op_of(D, D)
    error, cut = kernel_of(op, [one], arch), geometry_of(op, [one], arch)
    plan = vec_plan_of(cut.kernel, arch)
    assert (error.split.rows, cut.rows) == (128, 128)
    assert 32 // error.split.warps == plan.threads_V
    assert cut.kernel.type_K == types.lower()


def test_template_arguments_are_read_by_the_names_of_the_source_wherever_they_are():
    arguments = {"has_alibi": "true", "DKQ": "576", "DV": "512", "ncols1": "4", "ncols2": "16"}
    more = {"use_sparse": "false", "use_logit_softcap": "false", "V_is_K_view": "true"}
    one = LaunchRecord(0, MMA_F16.kernel, tuple((arguments | more).items()), (16, 1, 1), (32, 8, 1), 95552)
    kernel = attention_of([one], 90, default_constants())
    assert (kernel.DKQ, kernel.DV, kernel.ncols1, kernel.ncols2) == (576, 512, 4, 16)
    assert (kernel.softcap, kernel.sparse) == (False, False)
    unnamed = replace(one, template_args=tuple(("", value) for value in ("576", "512", "4", "16", *more.values())))
    assert attention_of([unnamed], 90, default_constants()).ncols2 == 16


@pytest.mark.parametrize("flag", ["false", "true"])
@pytest.mark.parametrize("softcap", [0, 10])
def test_whether_there_is_a_softcap_is_a_fact_of_the_op(softcap, flag):
    """The model of a kernel that was launched without the op's softcap has it, so the kernel's output is wrong."""
    one = launch(VEC, (128, 2, "GGML_TYPE_F16", "GGML_TYPE_F16", flag), 128)
    assert geometry_of(op_of(logit_softcap=softcap), [one], 90).kernel.softcap == (softcap != 0)


def test_sizes_that_the_source_does_not_have_are_not_guessed():
    one = launch(TILE, (48, 48, 8, 1, "false"), 128)
    assert attention_of([one], 90, default_constants()) is None
    assert kernel_of(op_of(), [one], 90) is None
    assert geometry_of(op_of(), [one], 90) is None


@pytest.mark.network
def test_template_parameters_and_shipped_constants_are_the_sources(tree):
    named = kernel_parameters(tree.root)
    assert {family.kernel: list(family.parameters) for family in FAMILIES}.items() <= named.items()
    assert constants_of(resolve(DEFAULT_SOURCE)) == default_constants()
    assert constants_of(resolve("pypi:xllamacpp==0.2.8")).max_offset == np.float32(0.6931)


@pytest.mark.network
@pytest.mark.night  # five releases are downloaded
def test_the_vec_kernel_added_in_f16_until_the_end_of_2025_and_mma_on_cdna_until_september_2026():
    older, newer = resolve("pypi:pywhispercpp==1.4.1"), resolve("pypi:xllamacpp==0.2.8")
    assert vec_adds_in_f16(older, 90) and not vec_adds_in_f16(older, 61)
    assert not vec_adds_in_f16(newer, 90) and not vec_adds_in_f16(resolve(DEFAULT_SOURCE), 90)
    releases = ("0.2.14", "2026.8.10566", "2026.9.11063")
    assert [constants_of(resolve(f"pypi:xllamacpp=={one}")).cdna_in_f32 for one in releases] == [False, False, True]


@pytest.mark.parametrize(("guard", "adds_in_f16"), [("FAST_FP16_AVAILABLE", True), ("V_DOT2_F32_F16_AVAILABLE", False)])
def test_in_which_type_the_vec_kernel_adds_is_in_the_source(guard, adds_in_f16, tmp_path):
    (tmp_path / CUDA).mkdir(parents=True)
    (tmp_path / CUDA / "fattn-vec.cuh").write_text(f"#ifdef {guard}\n    half2  VKQ[ncols][16];\n#endif\n")
    tree = Tree("here", tmp_path, "?", guard, probe(tmp_path))
    assert (vec_adds_in_f16(tree, 90), vec_adds_in_f16(tree, 61)) == (adds_in_f16, False)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("#define FATTN_KQ_MAX_OFFSET (3.0f*0.6931f)", 3 * 0.6931),
        ("#define FATTN_KQ_MAX_OFFSET 0.6931f", 0.6931),
        ("#define SOFTMAX_FTZ_THRESHOLD -20.0f", 0.0),
    ],
)
def test_the_offset_of_the_maximum_is_in_the_source(line, value):
    assert max_offset(f"// comment\n{line}\nint x;\n") == value
