"""The compiled kernel; all else is in pyproject.toml."""

from setuptools import Extension, setup

# Without a C compiler the package installs all the same, and measures on the CPU with torch's own operations.
native = Extension(
    "hookboard.measure._native",
    ["src/hookboard/measure/_native.c"],
    extra_compile_args=["-O3"],
    py_limited_api=True,
    optional=True,
)
setup(ext_modules=[native])
