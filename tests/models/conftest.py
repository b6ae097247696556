"""Every variant of the tiny model."""

import pytest
from support.tiny import VARIANTS, lively

from models.config import DecoderConfig
from models.pure import Params, init_params


@pytest.fixture(scope="session", params=VARIANTS.values(), ids=VARIANTS.keys())
def config(request: pytest.FixtureRequest) -> DecoderConfig:
    return request.param


@pytest.fixture(scope="session")
def params(config: DecoderConfig) -> Params:
    return lively(init_params(config, seed=0))
