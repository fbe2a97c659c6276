"""The compiled functions; all else is in pyproject.toml."""

from setuptools import Extension, setup

# Without a C compiler the package installs all the same, and measures on the CPU with torch's own operations;
# TensorBoard then computes its checksums itself.
HEADERS = [f"src/hookboard/measure/_native_{name}.h" for name in ("values", "tensor", "reader")]
compiled = [
    Extension(
        f"hookboard.{name}",
        [f"src/hookboard/{name.replace('.', '/')}.c"],
        depends=HEADERS if name == "measure._native" else [],
        extra_compile_args=["-O3"],
        py_limited_api=True,
        optional=True,
    )
    for name in ("measure._native", "writers._checksum")
]
setup(ext_modules=compiled)
