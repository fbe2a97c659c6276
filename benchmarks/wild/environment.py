"""An environment for each project, on top of the packages of the one that runs this, which stay as they are."""

import os
import subprocess
import sys
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path

from benchmarks.wild.catalogue import Project

ROOT = Path(__file__).parents[2]

DEFAULT_FOLDER = Path(tempfile.gettempdir()) / "hookboard_wild"

KEPT = ("torch", "torchvision", "lightning")
"""A project whose requirements exclude one of these versions is not installed."""

DONE = "installed.txt"


def is_installed(project: Project, folder: Path) -> bool:
    done = folder / project.name / DONE
    return done.exists() and done.read_text().split() == list(project.needs)


def install(project: Project, folder: Path) -> str:
    """Make the environment of a project; returns "" or what pip said last."""
    home = folder / project.name
    if not python_of(home).exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    own = sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
    Path(own, "zz_hookboard.pth").write_text(sysconfig.get_path("purelib") + "\n")
    constraints = home / "constraints.txt"
    constraints.write_text("".join(f"{name}=={metadata.version(name)}\n" for name in KEPT))
    if project.needs:
        pip = [str(python_of(home)), "-m", "pip", "install", "-q", "--no-compile", "-c", str(constraints)]
        done = subprocess.run([*pip, *project.needs], capture_output=True, text=True, check=False)
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    (home / DONE).write_text("\n".join(project.needs))
    return ""


START = f"""
import runpy, sys, types
sys.modules["benchmarks"] = types.ModuleType("benchmarks")
sys.modules["benchmarks"].__path__ = [{str(ROOT / "benchmarks")!r}]
runpy.run_module("benchmarks.wild.inside", run_name="__main__")
"""
"""Runs `inside.py`, also where a project has brought a package of the name `benchmarks`, as opacus does."""


def python_of(home: Path) -> Path:
    return home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def variables() -> dict[str, str]:
    """The variables of a process in a project's environment: one thread, no GPU, nothing from outside."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    return {
        **os.environ,
        **one,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "MPLBACKEND": "agg",
    }
