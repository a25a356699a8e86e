from fattn_probe.cases.device import Resources
from fattn_probe.llama.build.make import read_resources

LOG = """\
ptxas info    : 27245 bytes gmem, 256 bytes cmem[4]
ptxas info    : Compiling entry function '_Z1kILi8EEvi' for 'sm_90'
ptxas info    : Function properties for _Z1kILi8EEvi
    40 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 40 bytes cumulative stack size, 4352 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 5.308 ms
ptxas info    : Compiling entry function '_Z1gv' for 'sm_90'
ptxas info    : Function properties for _Z1gv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers, 560 bytes cmem[0]
"""
FOUND = {"_Z1kILi8EEvi": Resources(168, 4352, 40), "_Z1gv": Resources(24)}


def test_resources_are_read_from_all_logs_of_a_build_without_kernels_that_were_not_finished(tmp_path):
    first, second = tmp_path / "obj/ggml-cuda/fattn.cu.o.log", tmp_path / "obj/ggml-cuda/instances/fattn-vec.cu.o.log"
    second.parent.mkdir(parents=True)
    half = LOG.index("ptxas info    : Compiling entry function '_Z1gv'")
    first.write_text(LOG[:half])
    second.write_text(LOG[half:])
    assert read_resources(tmp_path) == FOUND
    second.write_text(LOG)
    first.unlink()
    assert read_resources(tmp_path) == FOUND
    second.write_text(LOG.replace("ptxas info    : Used 168", "ptxas fatal   : 168"))
    assert read_resources(tmp_path) == {"_Z1gv": Resources(24)}
