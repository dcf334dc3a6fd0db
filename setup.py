"""Package folders; metadata lives in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["caw", "caw.*"]), "caw.triton_kernels"],
    # kernels sit at the top of the tree but are installed inside the package: Triton's own tree has a
    # top-level `triton_kernels`, and other libraries probe for that name
    package_dir={"caw": "caw", "caw.triton_kernels": "triton_kernels"},
    package_data={"caw": ["evaluator/weights/*", "py.typed"]},
)
