import pytest

from fattn_probe.llama.build import symbols
from fattn_probe.llama.source import KernelCase

TYPES = {0: "f32", 1: "f16", 2: "q4_0", 8: "q8_0", 30: "bf16"}
CASES = [
    KernelCase("mma", ("64", "64", "8", "8"), "MMA_F16"),
    KernelCase("mma", ("64", "64", "8", "1"), "MMA_F16"),
    KernelCase("mma", ("576", "512", "4", "16"), "MMA_F16"),
    KernelCase("tile", ("128", "128"), "TILE"),
    KernelCase("vec", ("128", "GGML_TYPE_F16", "GGML_TYPE_Q8_0"), "VEC"),
    KernelCase("vec", ("64", "GGML_TYPE_BF16", "GGML_TYPE_BF16"), "VEC"),
]
ARGS = "(ggml_backend_cuda_context&, ggml_tensor*)"


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("void ggml_cuda_flash_attn_ext_mma_f16_case<64, 64, 8, 8>", "mma 64,64,8,8"),
        ("void ggml_cuda_flash_attn_ext_mma_f16_case<64, 64, 8, 1>", "mma 64,64,8,1"),
        ("void ggml_cuda_flash_attn_ext_mma_f16_case<576, 512, 4, 16>", "mma 576,512,4,16"),
        ("void ggml_cuda_flash_attn_ext_tile_case<128, 128>", "tile 128,128"),
        (
            "void ggml_cuda_flash_attn_ext_vec_case<128, (ggml_type)1, (ggml_type)8>",
            "vec 128,GGML_TYPE_F16,GGML_TYPE_Q8_0",
        ),
        (
            "void ggml_cuda_flash_attn_ext_vec_case<64, (ggml_type)30, (ggml_type)30>",
            "vec 64,GGML_TYPE_BF16,GGML_TYPE_BF16",
        ),
        (
            "void simt_body::flash_attn_ext_vec<128, 2, (ggml_type)1, (ggml_type)8, false>",
            "vec 128,2,GGML_TYPE_F16,GGML_TYPE_Q8_0,false",
        ),
        ("void simt_body::flash_attn_combine_results<128>", None),
        ("void simt_body::flash_attn_ext_f16<64, 64, 16, 8, false, false, false>", None),
        ("void ggml_cuda_flash_attn_ext_mma_f16_case<64, 64, 16, 8>", None),
        ("ggml_cuda_flash_attn_ext_tile", None),
        ("void mul_mat_q_case<(ggml_type)2>", None),
    ],
)
def test_case_of_a_symbol(name, case):
    found = symbols.case_of(name + ARGS, {case.name: case for case in CASES}, TYPES)
    assert (found.name if found else None) == case


def test_symbols_are_demangled_and_others_left():
    assert symbols.demangle("_Z14ggml_cuda_infov") == "ggml_cuda_info()"
    assert symbols.demangle("ggml_abort") == "ggml_abort"


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("ggml_cuda_op_add(ggml_backend_cuda_context&, ggml_tensor*)", "ggml_cuda_op_add"),
        ("void mul_mat_q_case<(ggml_type)2>(ggml_backend_cuda_context&)", "mul_mat_q_case"),
        ("ggml_get_to_fp16_cuda(ggml_type)", "ggml_get_to_fp16_cuda"),
        ("void space::f<std::pair<int, long> >(int)", "f"),
    ],
)
def test_bare_name_of_a_function(name, function):
    assert symbols.function_name(name) == function


BINBCAST = """
void ggml_cuda_op_repeat(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

void ggml_cuda_op_add(ggml_backend_cuda_context & ctx,
                      ggml_tensor * dst) {
    ggml_cuda_op_repeat(ctx, dst);
}
static void local(int x) {
}
bool ggml_cuda_should_use_topk_moe(const ggml_tensor * softmax,
    const ggml_tensor * weights) {
    if (weights
        && ggml_cuda_should_use_mmq(softmax->type)) {
        return false;
    }
}
"""


@pytest.mark.parametrize(
    ("function", "defined"),
    [
        ("ggml_cuda_op_add", True),
        ("ggml_cuda_should_use_topk_moe", True),
        ("ggml_cuda_op_repeat", False),
        ("local", False),
        ("op_add", False),
        ("ggml_cuda_should_use_mmq", False),
    ],
)
def test_definitions_are_told_from_declarations(function, defined):
    assert symbols.defines(BINBCAST, function) is defined


def test_the_file_that_defines_a_function(tmp_path):
    (tmp_path / "acc.cu").write_text("void ggml_cuda_op_acc(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {\n}\n")
    (tmp_path / "binbcast.cu").write_text(BINBCAST)
    files = sorted(tmp_path.iterdir())
    assert symbols.defining_source("ggml_cuda_op_add" + ARGS, files) == "binbcast.cu"
    assert symbols.defining_source("ggml_cuda_op_nothing" + ARGS, files) is None


MODELS = {
    "afmoe.cpp": "llama_model_afmoe::graph::graph(const llama_model & model) : llm_graph_context(params) {\n}\n",
    "gemma.cpp": "template <bool iswa>\nllama_model_gemma::graph<iswa>::graph(const llama_model & model) {\n}\n",
    "mamba-base.cpp": "llm_build_mamba_base::llm_build_mamba_base(const llm_graph_params & params) {}\n",
    "qwen2.cpp": (
        "void llama_model_qwen2::load_arch_hparams(llama_model_loader & ml) {\n"
        "    llama_model_qwen::load_arch_hparams(ml);\n}\n"
    ),
    "qwen2moe.cpp": "void llama_model_qwen2moe::load_arch_hparams(llama_model_loader & ml) {\n}\n",
}


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("vtable for llama_model_qwen2", "qwen2.cpp"),
        ("vtable for llama_model_qwen2moe", "qwen2moe.cpp"),
        ("vtable for llama_model_qwen", None),
        ("llama_model_afmoe::graph::graph(llama_model const&)", "afmoe.cpp"),
        ("llama_model_gemma::graph<true>::graph(llama_model const&)", "gemma.cpp"),
        ("llama_model_gemma::graph<false>::other(int) const", "gemma.cpp"),
        ("llm_build_mamba_base::llm_build_mamba_base(llm_graph_params const&)", "mamba-base.cpp"),
        ("llama_model_llama::graph::graph(llama_model const&)", None),
        ("ggml_cuda_op_scale(ggml_backend_cuda_context&, ggml_tensor*)", None),
    ],
)
def test_the_file_of_a_class(tmp_path, name, file):
    for path, text in MODELS.items():
        (tmp_path / path).write_text(text)
    assert symbols.defining_class(name, sorted(tmp_path.iterdir())) == file


def test_the_class_of_a_function():
    assert symbols.class_name("void a::b<c::d>::e(f::g)") == "void a::b"
    assert symbols.class_name("free_function(int)") == ""


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("void mul_mat_q_case<(ggml_type)8, (ggml_prec)30>(ggml_backend_cuda_context&)", "mmq-instance-q8_0.cu"),
        ("void mul_mat_f_cuda<__half2, 32, 16>(__half2 const*, float const*)", "mmf-instance-ncols_16.cu"),
        ("void mul_mat_f_cuda<__half2, 32, 3>(__half2 const*, float const*)", None),
        ("void mul_mat_f_cu<16>(int)", None),
        ("ggml_cuda_op_rope(ggml_backend_cuda_context&, ggml_tensor*)", None),
    ],
)
def test_the_file_of_an_instance_of_matrix_products(tmp_path, name, file):
    folder = tmp_path / "template-instances"
    folder.mkdir()
    texts = {"mmf-instance-ncols_16.cu": ("mmf", "MMF", "16"), "mmq-instance-q8_0.cu": ("mmq", "MMQ", "GGML_TYPE_Q8_0")}
    for instance, (header, family, argument) in texts.items():
        (folder / instance).write_text(f'#include "../{header}.cuh"\n\nDECL_{family}_CASE({argument});\n')
    (tmp_path / "mmf.cuh").write_text("template <typename T, int rows, int cols> void mul_mat_f_cuda(const T * x) {")
    (tmp_path / "mmq.cuh").write_text("template <ggml_type type> void mul_mat_q_case(context & ctx) {")
    assert symbols.product_of(name, sorted(folder.iterdir()), TYPES) == file
