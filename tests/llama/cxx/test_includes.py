"""Which files a C++ file includes."""

from fattn_probe.llama.cxx.includes import included


def test_what_a_file_includes_is_found_beside_it_in_the_folder_and_above(tmp_path):
    texts = {
        "x.cu": '#include "common.cuh"\n#include <vector>\n// #include "other.cuh"\n',
        "common.cuh": '#pragma once\n  # include "cuda/vendors/cuda.h"\n#include "../ggml.h"\n#include "gone.h"\n',
        "vendors/cuda.h": '#include "../mma.cuh"\n#include "common.cuh"\n',
        "mma.cuh": "",
        "other.cuh": "",
        "../ggml.h": "",
    }
    cuda = tmp_path / "cuda"
    (cuda / "vendors").mkdir(parents=True)
    for path, text in texts.items():
        (cuda / path).write_text(text)
    found = {
        path.relative_to(cuda).as_posix()
        for path in included([cuda / "x.cu", cuda / "absent.cu"], (cuda, tmp_path), cuda)
    }
    assert found == {"x.cu", "common.cuh", "vendors/cuda.h", "mma.cuh"}
