"""The compiled kernel, the README and the links; all else is in pyproject.toml.

Without a C compiler the package installs all the same, and measures on the CPU with torch's own operations.
"""

import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

OLDEST = (3, 10)
"""As `requires-python` says: one wheel serves this Python and all later ones."""

IS_LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""Whether to build for the limited API, which a free-threaded Python does not have: its wheel serves no other."""


def repository() -> str:
    """The public address that pyproject.toml names, or "". That of a clone becomes that of its page."""
    text = Path("pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r"""^repository\s*=\s*["'](.*?)(?:\.git)?/*["']""", text, re.MULTILINE)
    if not found or (found[1] and not found[1].startswith("https://")):
        raise ValueError("pyproject.toml: `repository`, of [tool.hookboard], is an address with https:// or empty.")
    return found[1]


def readme() -> str:
    """README.md. Where there is a public address its links lead there: PyPI has no other file."""
    text = Path("README.md").read_text(encoding="utf-8")
    if not (public := repository()):
        return text
    link = re.compile(r"(!?)(\[[^]]*\])\((?!\w+:|#)([^)\s]+)\)")
    return link.sub(lambda m: f"{m[1]}{m[2]}({public}/{'raw' if m[1] else 'blob'}/HEAD/{m[3]})", text)


def urls() -> dict[str, str]:
    """The links of the project's page on PyPI, none without a public address."""
    public = repository()
    pages = {
        "Repository": "",
        "Documentation": "/blob/HEAD/docs/README.md",
        "Changelog": "/blob/HEAD/CHANGELOG.md",
        "Issues": "/issues",
    }
    return {name: public + page for name, page in pages.items()} if public else {}


HEADERS = [f"src/hookboard/measure/_native_{name}.h" for name in ("values",)]


class BuildAfresh(build):
    """Builds into an empty folder.

    setuptools would add to what an earlier build has left. The package takes every file in some of its folders, such as
    those of rules, so that a file that a newer version has no more would take part.
    """

    def run(self) -> None:
        """Empty the folder, then build."""
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildFor(build_ext):
    """Builds with the options of the compiler at hand."""

    def build_extensions(self) -> None:
        """Choose the options, then build."""
        for extension in self.extensions:
            extension.extra_compile_args, extension.extra_link_args = options_of(self.compiler.compiler_type)
        super().build_extensions()


def options_of(compiler: str) -> tuple[list[str], list[str]]:
    """The options to compile and to link with.

    Python asks its compilers for debug information, which would be two thirds of the wheel. A root that may set `errno`
    is not vectorized.
    """
    if compiler == "msvc":  # setuptools optimizes for speed there, and leaves debug information out
        return [], []
    return ["-O3", "-g0", "-fno-math-errno"], [] if sys.platform == "darwin" else ["-Wl,-s"]


kernel = Extension(
    "hookboard.measure._native",
    ["src/hookboard/measure/_native.c"],
    depends=HEADERS,
    define_macros=[("Py_LIMITED_API", "0x{:02X}{:02X}0000".format(*OLDEST))] if IS_LIMITED else [],
    py_limited_api=IS_LIMITED,
    optional="CIBUILDWHEEL" not in os.environ,  # a wheel for others has the kernel
)
setup(
    ext_modules=[kernel],
    long_description=readme(),
    long_description_content_type="text/markdown",
    project_urls=urls(),
    cmdclass={"build": BuildAfresh, "build_ext": BuildFor},
    options={"bdist_wheel": {"py_limited_api": "cp{}{}".format(*OLDEST)}} if IS_LIMITED else {},
)
