"""What a stranger installs: the wheel, the source distribution, and what they ask for."""

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path, PurePath

import pytest
import setuptools
from packaging.requirements import Requirement

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 does not read TOML")

ROOT = Path(__file__).parents[1]
CONFIGURED = tomllib.loads((ROOT / "pyproject.toml").read_text())
DECLARED = CONFIGURED["project"]

NAMES = {"PIL": "pillow", "google_crc32c": "google-crc32c"}
"""Of what is imported, where the distribution has another."""

KERNEL = "hookboard/measure/_native"

WHERE_THERE = {"IPython", "pandas", "transformers", "triton", "wandb"}
"""What is imported only where it is there, or after the user has imported it."""

NOT_IMPORTED = {"torchvision"}
"""pyproject.toml says why it is asked for."""

LEAVINGS = (".venv*", ".git", "build", "dist", "logs", "cache", "*.egg-info", "__pycache__", "*.so", "*_cache")

built = pytest.mark.xdist_group("built")


def oldest_python():
    return re.fullmatch(r">=3\.(\d+)", DECLARED["requires-python"])[1]


def build(what, source, out, **environment):
    """The path of what the build backend makes of the source."""
    code = f"import sys; from setuptools import build_meta; build_meta.build_{what}(sys.argv[1])"
    command = [sys.executable, "-c", code, str(out)]
    done = subprocess.run(command, cwd=source, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = out.iterdir()
    return path


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("sdist")
    shutil.copytree(ROOT, folder / "copy", ignore=shutil.ignore_patterns(*LEAVINGS))
    return build("sdist", folder / "copy", folder / "out")


@pytest.fixture(scope="module")
def unpacked(sdist, tmp_path_factory):
    with tarfile.open(sdist) as archive:
        archive.extractall(folder := tmp_path_factory.mktemp("unpacked"), filter="data")
    return next(folder.iterdir())


@pytest.fixture(scope="module")
def wheel(unpacked, tmp_path_factory):
    path = build("wheel", unpacked, tmp_path_factory.mktemp("wheel"))
    if not is_compiled(path):
        pytest.skip("there is no C compiler")
    return path


REMOVED = "hookboard/health/rules/removed.py"


@pytest.fixture(scope="module")
def one_after_the_other(unpacked, tmp_path_factory):
    """Two wheels that are built in one folder without a compiler; between them a file was removed."""
    folder = tmp_path_factory.mktemp("without")
    shutil.copytree(unpacked, folder / "source", ignore=shutil.ignore_patterns(*LEAVINGS))
    (folder / "source" / "src" / REMOVED).touch()
    before = build("wheel", folder / "source", folder / "before", CC="false")
    (folder / "source" / "src" / REMOVED).unlink()
    return before, build("wheel", folder / "source", folder / "after", CC="false")


def sizes(wheel):
    """By path in the package, the bytes of each file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info.file_size for info in archive.infolist() if ".dist-info/" not in info.filename}


def is_compiled(wheel):
    return any(path.endswith((".so", ".pyd")) for path in sizes(wheel))


def imported():
    """The distributions that the package imports by name."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.partition(".")[0])
    return {NAMES.get(name, name) for name in found - sys.stdlib_module_names - {"hookboard"}}


def set_up(monkeypatch, **config):
    """What setup.py gives to setuptools, where Python has been built with these variables."""
    given = {}
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    of_python = sysconfig.get_config_var
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: config.get(name, of_python(name)))
    runpy.run_path(str(ROOT / "setup.py"))
    return given


@built
@pytest.mark.spawns
@pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="it has no limited API")
def test_one_wheel_serves_every_python_that_is_allowed(wheel):
    assert re.fullmatch(rf"hookboard-[\d.]+-cp3{oldest_python()}-abi3-\w+\.whl", wheel.name)


@built
@pytest.mark.spawns
def test_the_wheel_has_what_runs_and_no_source_in_c(wheel):
    package = ROOT / "src"
    ends = ("*.py", "*.pyi", "py.typed", "static/*", "report/*", "plotly/*.js", "base/*.md")
    kept = [path for end in ends for path in package.rglob(end) if path.is_file()]
    compiled = {path for path in sizes(wheel) if path.endswith((".so", ".pyd"))}
    assert [path.partition(".")[0] for path in compiled] == [KERNEL]
    assert sizes(wheel).keys() - compiled == {path.relative_to(package).as_posix() for path in kept}


@built
@pytest.mark.spawns
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere debug information is no part of a library")
def test_the_wheel_has_no_debug_information(wheel):
    assert sum(size for path, size in sizes(wheel).items() if path.endswith(".so")) < 400_000


@built
@pytest.mark.spawns
def test_without_a_compiler_the_wheel_lacks_the_compiled_kernel_alone(wheel, one_after_the_other):
    lacking = sizes(wheel).keys() - sizes(one_after_the_other[1]).keys()
    assert [path.partition(".")[0] for path in lacking] == [KERNEL]


@built
@pytest.mark.spawns
def test_the_source_distribution_has_every_file_of_the_repository(sdist):
    if not (ROOT / ".git").exists():
        pytest.skip("this is no repository")
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    with tarfile.open(sdist) as archive:
        there = {PurePath(*PurePath(name).parts[1:]).as_posix() for name in archive.getnames()}
    assert [path for path in listed if (ROOT / path).is_file() and path not in there] == []


@built
@pytest.mark.spawns
def test_the_source_distribution_has_nothing_of_what_runs_and_tools_leave_behind(sdist, unpacked, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(unpacked, source, ignore=shutil.ignore_patterns(*LEAVINGS))
    names = [
        name for line in (ROOT / ".gitignore").read_text().splitlines() if not {*"*/"} & {*(name := line.strip("/"))}
    ]
    for place in ("examples", "docs", "src/hookboard/health"):
        for name in names:
            (source / place / name / "run").mkdir(parents=True)
            (source / place / name / "run" / "events.out.tfevents.1").touch()
    with tarfile.open(build("sdist", source, tmp_path / "out")) as after, tarfile.open(sdist) as before:
        assert {"logs", "build", ".pytest_cache"} <= {*names}
        assert after.getnames() == before.getnames()


@built
@pytest.mark.spawns
def test_a_wheel_has_nothing_that_only_an_earlier_version_had(one_after_the_other):
    """Each file in the folder of rules is imported."""
    before, after = one_after_the_other
    assert REMOVED in sizes(before)
    assert REMOVED not in sizes(after)


def test_what_is_imported_is_asked_for_and_nothing_else():
    asked = {Requirement(each).name for each in DECLARED["dependencies"]}
    assert imported() - WHERE_THERE == asked - NOT_IMPORTED


def test_the_versions_that_are_tested_are_the_oldest_that_are_allowed_and_others_that_are():
    extras = [each for extra in DECLARED["optional-dependencies"].values() for each in extra]
    asked = [Requirement(each) for each in [*DECLARED["dependencies"], *extras, *group("dev")]]
    oldest, tested = pinned("oldest.txt"), pinned("tested.txt")
    for each in asked:
        if each.name != "hookboard":
            assert tested[each.name].removeprefix("==") in each.specifier
    for each in asked[: len(DECLARED["dependencies"]) + len(extras)]:
        if each.name != "hookboard":
            assert oldest[each.name].startswith(str(each.specifier).replace(">=", "=="))


def test_the_versions_that_were_tested_last_are_exact_and_have_no_address():
    heading, *lines = (ROOT / "requirements" / "tested.txt").read_text().splitlines()
    assert heading == runpy.run_path(str(ROOT / ".ci" / "pins.py"))["HEADING"]
    assert lines == sorted(lines)
    exact = re.compile(r'[a-z0-9-]+==[\w.]+( ; python_full_version >= "[\d.]+")?')
    assert [line for line in lines if not exact.fullmatch(line)] == []


def group(name):
    """What a dependency group asks for, and those that it includes."""
    for each in CONFIGURED["dependency-groups"][name]:
        if isinstance(each, str):
            yield each
        else:
            yield from group(each["include-group"])


@pytest.mark.skipif(shutil.which("make") is None or sys.platform == "win32", reason="there is no make")
@pytest.mark.parametrize(("versions", "folder"), [("tested", ".venv"), ("oldest", ".venv-oldest")])
def test_all_that_make_installs_is_held_to_the_versions_that_are_asked_for(versions, folder):
    command = ["make", "--always-make", "--dry-run", "test", f"VERSIONS={versions}"]
    options = {"cwd": ROOT, "env": {"PATH": os.environ["PATH"]}}  # make may run the tests, and tell this one of itself
    done = subprocess.run(command, **options, capture_output=True, text=True, check=True)
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert installs
    assert all(f"{folder}/bin/python" in line for line in installs)
    assert all(f"--constraint requirements/{versions}.txt" in line for line in installs)


def pinned(name):
    """Name to version."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / "requirements" / name).read_text().splitlines()]
    return {each.name: str(each.specifier) for each in map(Requirement, filter(None, lines))}


def test_changelog_and_citation_name_the_version_of_the_package():
    faults = runpy.run_path(str(ROOT / ".ci" / "agree.py"))["faults"]
    assert faults(ROOT, []) == []
    assert any(each.startswith("the tag v9.9.9 is of 9.9.9, the package is ") for each in faults(ROOT, ["v9.9.9"]))


def test_each_python_that_is_named_is_allowed():
    named = re.findall(r"Python :: 3\.(\d+)", "\n".join(DECLARED["classifiers"]))
    assert named == [str(minor) for minor in range(int(oldest_python()), int(oldest_python()) + len(named))]


def test_all_but_a_free_threaded_python_get_the_limited_api_of_the_oldest_one(monkeypatch):
    given = set_up(monkeypatch, Py_GIL_DISABLED=1)
    assert [(each.py_limited_api, each.define_macros) for each in given["ext_modules"]] == [(False, [])]
    assert given["options"] == {}
    given = set_up(monkeypatch, Py_GIL_DISABLED=0)
    version = f"0x03{int(oldest_python()):02X}0000"
    assert [dict(each.define_macros)["Py_LIMITED_API"] for each in given["ext_modules"]] == [version]
    assert given["options"] == {"bdist_wheel": {"py_limited_api": f"cp3{oldest_python()}"}}
