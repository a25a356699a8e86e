"""Flags that are wrong, on every command that has them."""

import pytest

WORDS = {
    # time-outs
    "run op.yaml --timeout nan": "not a number of seconds",
    "run op.yaml --timeout -1": "not a number of seconds",
    "run op.yaml --timeout 0": "not a number of seconds",
    "run op.yaml --timeout inf": "not a number of seconds",
    "run op.yaml --timeout 1e300": "not a number of seconds",
    "run op.yaml --timeout soon": "--timeout",
    "compare op.yaml --timeout nan": "not a number of seconds",
    "inspect op.yaml --timeout -1": "not a number of seconds",
    "regress suite.yaml --timeout nan": "not a number of seconds",
    "diff a b op.yaml --timeout -5": "not a number of seconds",
    "bisect a b op.yaml --timeout -5": "not a number of seconds",
    "ops --timeout nan": "not a number of seconds",
    "ops --silence nan": "not a number of seconds",
    "ops --silence -1": "not a number of seconds",
    # counts
    "run op.yaml --repeat 0": "--repeat",
    "run op.yaml --repeat -3": "--repeat",
    "run op.yaml --repeat 99999999999999999999": "--repeat",
    "run op.yaml --repeat 1.5": "--repeat",
    "run op.yaml --threads 0": "--threads",
    "run op.yaml --threads -1": "--threads",
    "run op.yaml --threads 1000000": "--threads",
    "run op.yaml --schedule -1": "--schedule",
    "run op.yaml --schedule 99999999999999999999999": "--schedule",
    "compare op.yaml --threads 1000000": "--threads",
    "compare op.yaml --schedule -1": "--schedule",
    "compare op.yaml --repeat 0": "--repeat",
    "compare op.yaml --repeat 1000000000": "--repeat",
    "compare op.yaml --sample 0": "--sample",
    "compare op.yaml --sample -1": "--sample",
    "compare op.yaml --sample some": "--sample",
    "compare op.yaml --sample ²": "--sample",
    "compare op.yaml --model perhaps": "--model",
    "regress suite.yaml --workers 0": "--workers",
    "regress suite.yaml --workers 1000000": "--workers",
    "ops --workers 0": "--workers",
    "ops --workers 1000000": "--workers",
    "study op.yaml --head 1": "--head",
    "study op.yaml --sequence 9": "--sequence",
    "study op.yaml --tile-q 0": "--tile-q",
    "study op.yaml --algorithm fa9": "--algorithm",
    "study op.yaml --case nothing": "--case",
    "study op.yaml --inspected op.yaml": "op.yaml",
    "study op.yaml --inspected nowhere.json": "nowhere.json",
    "study op.yaml --inspected /dev/zero": "a device, not a file",
    "inspect op.yaml --stops 0": "--stops",
    "inspect op.yaml --trace --at block": "--at 'block' is not a place",
    "inspect op.yaml --trace --at block=x": "--at 'block=x' is not a place",
    "inspect op.yaml --trace --at block=-1": "--at 'block=-1' is not a place",
    "inspect op.yaml --trace --at lane=32": "--at 'lane=32' is not a place",
    "inspect op.yaml --trace --at blok=1": "allowed: block, warp, lane, kb0",
    "inspect op.yaml --values K[": "--values",
    "inspect op.yaml --values X[0]": "X[0]",
    "inspect op.yaml --break nothing": "--break",
    "inspect op.yaml --break (@fattn.cu": "--break",
    "inspect op.yaml --debugger '": "--debugger",
    "debug op.yaml --debugger '": "--debugger",
    # targets
    "run op.yaml --on h200": "did you mean sim:h200",
    "run op.yaml --on sim:h20": "nearest: h200",
    "run op.yaml --on ,": "--on",
    "run op.yaml --source tree --on gpu:99999999999999999999": "--on gpu",
    "run op.yaml --on sim:h200;true": "h200;true",
    "run op.yaml --on cpu,cuda": "--on 'cuda'",
    "plan op.yaml --build .": "No such option",
    "compare op.yaml --on": "(see `fattn-probe compare --help`)",
    "plan op.yaml --on a,b,c": "--on 'c'",
    "compare op.yaml --on tpu": "--on",
    "inspect op.yaml --on tpu": "--on",
    "ops --on sim:h200,sim:h100": "one target",
    "bisect pypi:a==1 pypi:a==2 op.yaml --on sim:h200,sim:h100": "one target",
    "regress suite.yaml --on tpu": "--on",
    "device show nothing": "nothing",
    # sources
    "run op.yaml --source nowhere": "nowhere",
    "run op.yaml --source op.yaml": "op.yaml",
    "run op.yaml --source /": "no ggml/src/ggml-cuda/fattn.cu",
    "run op.yaml --source pypi:": "not one of",
    "run op.yaml --source pypi:xllamacpp": "version is missing",
    "run op.yaml --source pypi:xllamacpp=1": "did you mean 'pypi:xllamacpp==1'",
    "run op.yaml --source pypi:../x==1": "not one of",
    "run op.yaml --source xllamacpp==0.2.8": "did you mean 'pypi:xllamacpp==0.2.8'",
    "run op.yaml --source git:--upload-pack=true": "not a commit, tag or branch",
    "run op.yaml --source git:": "not a commit",
    "run op.yaml --source git:a..b": "not a commit",
    "run op.yaml --source git+https://host/repo": "commit is missing",
    "run op.yaml --source git+ssh://host/x@main": "not one of",
    "run op.yaml --source git+file:///nowhere@main": "nowhere",
    "source get pypi:": "not one of",
    "source show nowhere": "nowhere",
    "bisect nowhere b op.yaml": "releases",
    # patches, and what a build has
    "run op.yaml --source tree --patch nothing": "nothing",
    "run op.yaml --source tree --patch ./nowhere.patch": "nowhere.patch",
    "run op.yaml --source tree --patch /dev/zero": "a device, not a file",
    "run op.yaml --source tree --debug --check": "choose one",
    "run op.yaml --source tree --sanitize magic": "magic",
    "run op.yaml --build nowhere": "nowhere",
    "run op.yaml --build /dev/null": "/dev/null",
    "build --source tree --arch 9.0": "9.0",
    "build --source tree --arch 90 --engine tpu": "--engine",
    "build --source tree --kernel magic": "magic",
    "build --source tree --engine cuda --arch 90 --sanitize address": "--sanitize",
    "build nowhere.yaml --source tree": "nowhere.yaml",
    # suites, histories
    "regress nowhere.yaml": "nowhere.yaml",
    "regress /dev/zero": "a device, not a file",
    "regress suite.yaml --shard 1/2": "--shard needs --run NAME",
    "regress suite.yaml --shard x --run a": "x",
    "history list --history nowhere.db": "there is no history",
    "history show x --history nowhere.db": "nowhere.db",
    "history accept --why x --history nowhere.db": "name one run",
    "history merge nowhere.db --history new.db": "nowhere.db",
    "history prune yesterday --history nowhere.db": "yesterday",
    "history judge --lost nan --history nowhere.db": "--lost",
    "history judge --lost 2 --history nowhere.db": "--lost",
    "compare op.yaml --on sim:h200 --kernel ,,": "--kernel: no name is given; kernels: llama",
    "inspect op.yaml --at block=999": "--at sets the location for --trace, --npz and --break",
    "regress op.yaml": "op.yaml:1: the file: this is a scenario (see `fattn-probe compare`)",
    "compare suite.yaml": "suite.yaml:1: the file: this is a suite (see `fattn-probe regress`)",
    "scenario check tree": "no scenario in tree",
    # what takes long
    "fuzz --on gpu": "only simulated GPUs (sim:ID) can tell in advance which kernels a random case needs",
    "fuzz --on sim:h2000": "h2000",
    "fuzz --minutes 0": "a number of minutes",
    "fuzz --minutes nan": "a number of minutes",
    "fuzz --cases 0": "--cases",
    "fuzz --new-kernels 1.5": "not a share from 0 to 1",
    "fuzz --seed -1": "--seed",
    "mutate suite.yaml --file fattn.cuh": "mutants are created only in fattn-mma-f16.cuh",
    "mutate suite.yaml --on gpu": "only simulated GPUs (sim:ID) can report what a case executes",
    "coverage suite.yaml --on gpu": "only simulated GPUs (sim:ID) can report what a case executes",
    # programs and kernels
    "program none.cu --on sim:h200": "there is no such file",
    "compare op.yaml --kernel none.cu:x --on cpu": "--kernel none.cu:x:",  # no picture
    # words
    "frobnicate": "frobnicate",
    "run": "SCENARIO",
    "run op.yaml --nonsense": "--nonsense",
    "compare a.gguf": "a.gguf: cannot read the GGUF file",
    "compare a.gguf b.gguf c.gguf": "c.gguf: cannot read the GGUF file",
    "compare a.gguf b.gguf": "a.gguf",
    "scenario": "a command is missing",
    "scenario list nowhere": "nowhere",
    "scenario new op.yaml": "exists",
    "scenario from-ops nothing": "FLASH_ATTN_EXT",
    "scenario from-ops FLASH_ATTN_EXT(": "FLASH_ATTN_EXT",
    "scenario from-ops FLASH_ATTN_EXT(hsk=x)": "hsk",
    "device list --devices nowhere.yaml": "nowhere.yaml",
    "device list --devices /dev/zero": "a device, not a file",
}


EMPTY = {  # as an unset variable of a shell gives; it was the current folder
    "plan ''": "the name is empty: give the name of a shipped scenario, or a path",
    "compare ''": "the name is empty",
    "study ''": "the name is empty",
    "regress ''": "the name is empty: give the name of a shipped suite",
    "run op.yaml --source tree --patch ''": "the name is empty: give the name of a shipped patch",
    "scenario new ''": "is empty: name a path",
    "scenario new ..": "..: is a folder, allowed: a new file",
    "kernel new ''": "file is empty: name a path",
    "program ''": "file is empty: name a path",
    "run op.yaml --source ''": "source '' is not one of",
    "reproduce op.yaml --out ''": "--out is empty: name a path",
    "reproduce op.yaml --out=": "--out is empty: name a path",
    "regress quick --history ''": "--history is empty: name a path",
    "history merge ''": "is empty: name a path",
    "build op.yaml --export ''": "--export is empty: name a path",
}


@pytest.mark.parametrize("words", EMPTY)
def test_an_empty_word(words, probe, here):
    probe(*words.replace("''", "").split(" ")).refused(2, EMPTY[words])


@pytest.mark.parametrize("words", WORDS)
def test_words(words, probe, here):
    probe(*words.split(" ")).refused(2, WORDS[words])


@pytest.mark.parametrize("words", ["run op.yaml --timeout nan", "run op.yaml --on tpu", "run nowhere.yaml", "run", "x"])
def test_a_program_reads_the_error_on_stdout(words, probe, here):
    ended = probe(*words.split(" "), "--json")
    ended.refused(2)
    assert ended.error()["exit_code"] == 2
    assert ended.error()["kind"] == "InputError"
    assert " ".join(ended.error()["message"].split()) == ended.said
