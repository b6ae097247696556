"""The base of every pydantic model here: frozen, closed to unknown keys, documented field by field."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.errors import RequestError
from schemas.version import SCHEMA_VERSION

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]


class Section(BaseModel):
    """A frozen part of a configuration or manifest; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Document(Section):
    """A JSON object that stands in the store by itself and carries the schema version it was written with."""

    schema_version: int = SCHEMA_VERSION
    """The version of the stored formats; another one is refused."""

    def to_bytes(self) -> bytes:
        """Readable JSON, keys in the order of the fields."""
        return (self.model_dump_json(indent=2) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Self:
        """The document in these bytes; RequestError names `where` if it is of another version or damaged."""
        try:
            version = _Versioned.model_validate_json(data).schema_version
            if version != SCHEMA_VERSION:
                raise RequestError(
                    f"{where} was written with schema version {version}, this program reads {SCHEMA_VERSION}: "
                    f"use the headrace release that wrote it, or start a new run"
                )
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            at = ".".join(str(p) for p in first["loc"]) or "the document"
            raise RequestError(
                f"{where} is not a valid {cls.__name__} ({at}: {first['msg']}): it is damaged or not ours"
            ) from error


class _Versioned(BaseModel):
    schema_version: int
