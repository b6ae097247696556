"""Core binding and the record of what decides the bytes."""

import os
import subprocess
import sys

import jax
import pytest

from schemas.errors import RequestError
from schemas.mesh import Mesh
from trainer.numerics import bind_cores, numerics


def test_no_cores_bind_nothing():
    before = os.sched_getaffinity(0)
    bind_cores(())
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("cores", [(99_999,), (-1,)])
def test_a_core_that_is_not_there_is_refused(cores):
    with pytest.raises(RequestError, match="can't all be used here: usable are"):
        bind_cores(cores)


def test_a_missing_core_beside_a_real_one_is_refused():
    core = min(os.sched_getaffinity(0))
    code = f"from trainer.numerics import bind_cores; bind_cores(({core}, 1000))"
    paths = os.pathsep.join(p for p in sys.path if p)
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert found.returncode == 1
    assert "can't all be used here" in found.stderr


def test_the_environment_is_recorded(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    found = numerics(Mesh(fsdp=2))
    assert (found.jax, found.device_count) == (jax.__version__, jax.device_count())
    assert found.xla_flags == "--xla_cpu_multi_thread_eigen=false"
    assert found.mesh == (1, 2, 1)
    assert found.cores == len(os.sched_getaffinity(0))
