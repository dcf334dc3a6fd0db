"""Every gate, what it depends on and what it needs."""

from __future__ import annotations

from dataclasses import dataclass

# in patterns `*` stands for any characters, slashes too; each must name a file (tests/test_gates.py sees to it)
CPP = ("*.cpp", "*.h", "*.inc", "*/build_flags.py")
MEANING = ("caw/capacity.py", "caw/ladder.py", "caw/op_indices.py", "caw/prf.py")  # what kernels import
LIBRARY = ("caw/*.py", "*triton_kernels/*.py", *CPP)


@dataclass(frozen=True)
class Gate:
    """name: of its tests' mark and of its receipt; inputs: patterns of the files it depends on; tools: what it needs.

    parallel: its tests run side by side (not where there is one, or where they use all cores themselves).
    minutes: about how long it takes on two idle cores.
    """

    name: str
    checks: str
    inputs: tuple[str, ...]
    tools: tuple[str, ...] = ()
    parallel: bool = False
    minutes: float = 1

    def __post_init__(self) -> None:
        if not self.name.replace("-", "").isalnum() or not self.inputs:
            raise ValueError(f"a gate needs a name of letters and digits and inputs, got {self}; give both")


GATES = (
    Gate(
        "cuda",
        "the CUDA sources compile for every architecture of the wheel, without spills",
        ("*.cu", "*.h", "*/build_flags.py", "*/compile_cuda.py", "*/test_build.py"),
        tools=("nvcc",),
    ),
    Gate(
        "cuda-on-cpu",
        "the CUDA kernels as C++ on a CPU under the address sanitizer; every barrier left out is found",
        ("*.cu", "csrc/*.h", "*/cuda_on_cpu.py", "*/cuda_on_cpu.hpp", "*/test_cuda_on_cpu.py"),
        tools=("g++",),
        parallel=True,
        minutes=5,
    ),
    Gate(
        "rehearsal",
        "all that a GPU will be asked, by the code that will ask it, kernels interpreted; and long benchmarks in small",
        (
            *LIBRARY,
            "benchmarks/*.py",
            "*/test_benchmarks.py",
            "*/test_gpu_check.py",
            "*/test_cuda_graph.py",
            "*/test_kernel_step.py",
            "*/test_packed_weights.py",
        ),
        tools=("g++",),
        minutes=6,
    ),
    Gate(
        "aot",
        "Triton's kernels compile ahead of time within their bounds for three GPUs",
        ("*triton_kernels/*.py", *MEANING, "benchmarks/aot*.py", "*/test_aot.py"),
        parallel=True,
    ),
    Gate(
        "instructions",
        "hot paths in C++ take no more instructions than recorded",
        (*CPP, "*/instruction_counts.py", "*/instruction_counts.json", "*/test_instruction_counts.py"),
        tools=("valgrind", "g++"),
    ),
    Gate(
        "ladders",
        "a million rows of every ladder, compiled against the reference",
        (
            *CPP,
            "caw/watermarks/*.py",
            "*triton_kernels/*_ref.py",
            *MEANING,
            "caw/ops.py",
            "caw/record.py",
            "*csrc/test_candidates.py",
        ),
        parallel=True,
        minutes=4,
    ),
    Gate(
        "sanitizers",
        "the tests of the C++ ops under the address and undefined-behaviour sanitizers",
        (*CPP, "*csrc/*.py", "caw/ops.py"),
        tools=("g++",),
        minutes=4,
    ),
    Gate(
        "fuzzer",
        "a minute of random arguments to the C++ ops under the sanitizers",
        (*CPP, "*/sanitize.py", "*/fuzz.py", "*/test_sanitizers.py", "caw/ops.py"),
        tools=("g++",),
        minutes=2,
    ),
    Gate(
        "drafts",
        "texts with drafts are those without, over every mark, policy and architecture and on the demo model",
        (
            "caw/decoding/*.py",
            "caw/watermarks/*.py",
            "caw/policies/*.py",
            "caw/evaluator/*.py",
            *CPP,
            "tests/decoding/drafts/*.py",
            "*/architectures.py",
            "*/mixing.py",
        ),
        parallel=True,
        minutes=4,
    ),
    Gate(
        "soak",
        "memory stays where it was over two thousand prompts",
        ("caw/*.py", *CPP, "*/test_soak.py", "*/architectures.py"),
        parallel=True,
        minutes=1,
    ),
    Gate(
        "serve",
        "a hundred clients at once get the texts that they would get alone, and memory stays where it was",
        ("caw/serve/*.py", "caw/decoding/*.py", "caw/detectable/*.py", *CPP, "tests/serve/*.py", "tests/tiny.py"),
        minutes=5,
    ),
    Gate(
        "siege",
        "a server in a process of its own, attacked and killed: nobody else notices, and no receipt is lost",
        ("caw/serve/*.py", "caw/registry/*.py", "caw/cli/serve*.py", "tests/serve/*.py", "tests/tiny.py"),
        minutes=6,
    ),
    Gate(
        "clients",
        "lm-eval, installed for it, has forty questions answered by a server with the demo model; so has openai",
        (
            "caw/serve/*.py",
            "caw/models/conversations.py",
            "tests/serve/test_clients.py",
            "tests/serve/test_messages.py",
            "tests/serve/serving.py",
            "tests/tiny.py",
        ),
        minutes=4,
    ),
    Gate(
        "postgres",
        "the registry on a real PostgreSQL, killed and started again",
        ("caw/registry/*.py", "caw/serve/*.py", "tests/registry/*.py", "tests/serve/*sieg*.py"),
        tools=("initdb", "pg_ctl"),
        minutes=3,
    ),
    Gate(
        "wheel",
        "the wheel and the sdist: built, repaired, installed without a compiler, and every compiled op in place",
        ("caw/*.py", "*triton_kernels/*.py", *CPP, "setup.py", "pyproject.toml", "MANIFEST.in", "tests/test_wheel.py"),
        tools=("g++",),
        minutes=9,
    ),
    Gate(
        "vllm",
        "a real vLLM, installed for it: its server and engine give the tokens of generate, whatever comes between",
        (
            "caw/integrations/vllm*.py",
            "caw/integrations/engine_texts.py",
            "caw/integrations/profiles.py",
            "caw/decoding/chooser.py",
            "caw/decoding/choosing.py",
            "caw/decoding/texts.py",
            "caw/decoding/row*.py",
            "caw/watermarks/*.py",
            "caw/policies/*.py",
            "tests/integrations/*vllm_e*.py",
            "tests/integrations/test_vllm_server.py",
        ),
        minutes=15,
    ),
    Gate(
        "ray",
        "a real Ray, installed for it: two replicas on a PostgreSQL, one killed in mid-stream; a data set",
        (
            "caw/ray.py",
            "caw/integrations/ray_serve.py",
            "caw/registry/*.py",
            "caw/serve/*.py",
            "tests/integrations/*ray*.py",
            "tests/test_ray.py",
            "tests/serve/*sieg*.py",
            "tests/registry/test_postgres.py",
        ),
        tools=("initdb", "pg_ctl"),
        minutes=3,
    ),
    Gate(
        "browser",
        "the server's page and the audit's in a real Chromium: by keyboard, without scripts, with hostile texts",
        (
            "caw/registry/report*.py",
            "caw/registry/templates/*",
            "tests/browsing.py",
            "tests/registry/test_report*.py",
            "caw/io/show.py",
            "caw/serve/page.py",
            "caw/serve/detecting.py",
            "caw/serve/templates/*",
            "caw/detection/html_report.py",
            "caw/detection/drawing.py",
            "caw/detection/many_keys.py",
            "caw/io/pages.py",
            "tests/serve/test_page*.py",
            "tests/serve/serving.py",
        ),
        tools=("chromium", "chromedriver"),
    ),
    Gate(
        "isa",
        "the fast tests with the instruction sets of this processor and of older ones",
        # all tests but those of docs and registry, which it leaves out
        (*LIBRARY, "tests/[!dr]*.py", "tests/d[!o]*.py"),
        minutes=15,
    ),
)
