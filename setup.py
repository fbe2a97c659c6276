"""The compiled functions, and the README; all else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import Extension, setup


def readme() -> str:
    """README.md. Its links lead to the `Repository` of `[project.urls]`, if there is one: PyPI has only this one."""
    text = Path("README.md").read_text(encoding="utf-8")
    public = re.search(r'^Repository = "(.*?)/?"', Path("pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    if public is None:
        return text
    link = re.compile(r"(!?)(\[[^]]*\])\((?!\w+:|#)([^)\s]+)\)")
    return link.sub(lambda m: f"{m[1]}{m[2]}({public[1]}/{'raw' if m[1] else 'blob'}/HEAD/{m[3]})", text)


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
setup(ext_modules=compiled, long_description=readme(), long_description_content_type="text/markdown")
